r"""How one file differs, as git writes it: a header, and the changed lines. Pure.

`git apply` takes it, as long as contents are UTF-8. A line ends at `\n` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from .matching import lines_of, match
from .names import hidden
from .trees import Entry

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
