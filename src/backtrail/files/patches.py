r"""How one file differs: which lines are matched, and the patch that git takes. Pure.

A line ends at `\n` and nowhere else. Equal lines are matched where both texts have them once, in
the longest order that both have; between two of these the same again, and what has no such line, as
the longest sequences that are the same. So nothing is guessed where each line is in the file once
and stays in its order. `git apply` takes a patch, as long as contents are UTF-8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .names import hidden
from .trees import Entry

Lines = Sequence[bytes]

_LONG = 1_000_000
"""The product of two lengths above which what has no line of its own counts as written anew."""


def lines_of(text: bytes) -> list[bytes]:
    r"""The lines of a text, each with its `\n`; only the last may have none."""
    lines = text.split(b"\n")
    last = lines.pop()
    found = [line + b"\n" for line in lines]
    return [*found, last] if last else found


def match(old: Lines, new: Lines) -> list[int]:
    """For each line of `new`, the place in `old` where it comes from, or -1."""
    found = [-1] * len(new)
    spans = [(0, len(old), 0, len(new))]
    while spans:
        i, j, m, n = spans.pop()
        head = _alike(old, new, i, m, min(j - i, n - m), 1)
        found[m : m + head] = range(i, i + head)
        i, m = i + head, m + head
        tail = _alike(old, new, j, n, min(j - i, n - m), -1)
        found[n - tail : n] = range(j - tail, j)
        j, n = j - tail, n - tail
        if i == j or m == n:
            continue
        pairs = _anchors(old[i:j], new[m:n])
        for a, b in pairs:
            found[m + b] = i + a
        if pairs:
            ends = [(-1, -1), *pairs, (j - i, n - m)]
            spans += [
                (i + a + 1, i + c, m + b + 1, m + d)
                for (a, b), (c, d) in pairwise(ends)
                if c > a + 1 and d > b + 1
            ]
        elif (j - i) * (n - m) <= _LONG:
            for a, b, size in _blocks(old[i:j], new[m:n]):
                found[m + b : m + b + size] = range(i + a, i + a + size)
    return found


def _alike(old: Lines, new: Lines, i: int, m: int, most: int, way: int) -> int:
    """How many lines are alike from two places on, or before them; whole slices compare quickly."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        a, b = sorted((way * low, way * middle))
        if old[i + a : i + b] == new[m + a : m + b]:
            low = middle
        else:
            high = middle - 1
    return low


def _anchors(old: Lines, new: Lines) -> list[tuple[int, int]]:
    """Lines that both texts have once, as many as keep their order."""
    pairs = in_both(old, new)
    if all(one < other for (_, one), (_, other) in pairwise(pairs)):
        return pairs
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for at, (_, place) in enumerate(pairs):
        rank = bisect_left(ends, place)
        before.append(last[rank - 1] if rank else -1)
        ends[rank : rank + 1] = [place]
        last[rank : rank + 1] = [at]
    chain: list[tuple[int, int]] = []
    at = last[-1] if last else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def once_in(lines: Lines) -> dict[bytes, int]:
    """The lines that a text has exactly once, and where."""
    counts = Counter(lines)
    return {line: at for at, line in enumerate(lines) if counts[line] == 1}


def in_both(a: Lines, b: Lines) -> list[tuple[int, int]]:
    """The lines that both texts have exactly once: where they are in each, in the first's order."""
    there = once_in(b)
    return [(at, there[line]) for line, at in once_in(a).items() if line in there]


def _blocks(old: Lines, new: Lines) -> Iterator[tuple[int, int, int]]:
    from difflib import SequenceMatcher

    yield from SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()


# --- patches -----------------------------------------------------------------------------

_AROUND = 3
"""Lines that are the same and shown around a change."""


def is_text(content: bytes) -> bool:
    """Whether a content is shown by lines: it holds no NUL, as git decides."""
    return b"\0" not in content[:8000]


def line_counts(before: bytes, after: bytes) -> tuple[int, int]:
    """Lines added and removed; nothing for what is no text."""
    if before == after or not (is_text(before) and is_text(after)):
        return 0, 0
    old, new = lines_of(before), lines_of(after)
    kept = len(new) - match(old, new).count(-1)
    return len(new) - kept, len(old) - kept


def unified(before: bytes | None, after: bytes | None, old_name: str, new_name: str) -> str:
    """A unified diff, None where there is no file; one line for what is no text."""
    old, new = before or b"", after or b""
    left = "/dev/null" if before is None else git_name("a/", old_name)
    right = "/dev/null" if after is None else git_name("b/", new_name)
    if old == new:
        return ""
    if not (is_text(old) and is_text(new)):
        return f"Binary files {left} and {right} differ\n"
    # Behind a name with a space, git expects a tab: else a time might follow.
    heads = (f"{name}\t" if " " in name and not name.startswith('"') else name
             for name in (left, right))  # fmt: skip
    parts = ["--- {}\n+++ {}\n".format(*heads)]
    parts += _hunks(lines_of(old), lines_of(new))
    return "".join(parts)


Change = tuple[int, int, int, int]
"""Lines of the old text, first and end, and the lines of the new one that stand for them."""


def _changes(old: list[bytes], new: list[bytes]) -> Iterator[Change]:
    i = m = 0
    for at, place in enumerate(match(old, new)):
        if place >= 0:
            if (i, m) != (place, at):
                yield i, place, m, at
            i, m = place + 1, at + 1
    if i < len(old) or m < len(new):
        yield i, len(old), m, len(new)


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[str]:
    """The changed lines with some around them; changes that are near each other together."""
    together: list[Change] = []
    for change in _changes(old, new):
        if together and change[0] - together[-1][1] > 2 * _AROUND:
            yield _hunk(old, new, together)
            together = []
        together.append(change)
    if together:
        yield _hunk(old, new, together)


def _hunk(old: list[bytes], new: list[bytes], changes: list[Change]) -> str:
    above, below = min(changes[0][0], _AROUND), min(len(old) - changes[-1][1], _AROUND)
    first, end = changes[0][0] - above, changes[-1][1] + below
    start, last = changes[0][2] - above, changes[-1][3] + below
    parts = [f"@@ -{_span(first, end)} +{_span(start, last)} @@\n"]
    at = first
    for i, j, m, n in changes:
        parts += [_line(" ", line) for line in old[at:i]]
        parts += [_line("-", line) for line in old[i:j]]
        parts += [_line("+", line) for line in new[m:n]]
        at = j
    parts += [_line(" ", line) for line in old[at:end]]
    return "".join(parts)


def _span(first: int, end: int) -> str:
    count = end - first
    start = first + 1 if count else first
    return str(start) if count == 1 else f"{start},{count}"


def _line(mark: str, line: bytes) -> str:
    text = mark + line.decode("utf-8", "backslashreplace")
    return text if text.endswith("\n") else f"{text}\n\\ No newline at end of file\n"


# --- headers -----------------------------------------------------------------------------


def header(path: str, before: Entry | None, after: Entry | None, old_path: str | None) -> str:
    """What git writes above the lines of a file: its names, and modes that differ.

    A link that becomes a file, or a file a link, has none: it goes, and another comes.
    """
    old, new = _mode(before), _mode(after)
    if (before is not None and not old) or (after is not None and not new):
        return ""
    lines = [f"diff --git {git_name('a/', old_path or path)} {git_name('b/', path)}"]
    if before is None:
        lines.append(f"new file mode {new}")
    elif after is None:
        lines.append(f"deleted file mode {old}")
    elif old != new:
        lines += [f"old mode {old}", f"new mode {new}"]
    if old_path is not None:
        lines += [f"rename from {git_name('', old_path)}", f"rename to {git_name('', path)}"]
    return "\n".join(lines) + "\n"


def _mode(entry: Entry | None) -> str:
    """A mode as git has it; empty for what git does not keep."""
    if entry is None or entry.kind not in ("file", "link"):
        return ""
    return "120000" if entry.kind == "link" else "100755" if entry.mode & 0o100 else "100644"


_ODD = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def git_name(prefix: str, path: str) -> str:
    """A path as git writes it: quoted, if a character in it would be misread."""
    raw = hidden(path)
    try:
        text = raw.decode()
        if not any(ord(c) < 32 or c in '"\\\x7f' for c in text):
            return prefix + text
        quoted = "".join(_ODD.get(c) or (c if " " <= c != "\x7f" else _octal(ord(c))) for c in text)
    except UnicodeDecodeError:
        quoted = "".join(_ODD.get(chr(b)) or (chr(b) if 32 <= b < 127 else _octal(b)) for b in raw)
    return f'"{prefix}{quoted}"'


def _octal(byte: int) -> str:
    return f"\\{byte:03o}"
