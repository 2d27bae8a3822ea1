"""Differences between contents, by lines: counts, and unified diffs. Pure."""

from __future__ import annotations

from collections import Counter

from .names import one_line

_TOO_LONG = 20_000
"""Lines above which lines are counted, not matched: matching takes time squared."""


def is_text(content: bytes) -> bool:
    """Whether a content is shown by lines: it holds no NUL, as git decides."""
    return b"\0" not in content[:8000]


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "backslashreplace").splitlines(keepends=True)


def line_counts(before: bytes, after: bytes) -> tuple[int, int]:
    """Lines added and removed; nothing for what is no text."""
    if before == after or not (is_text(before) and is_text(after)):
        return 0, 0
    old, new = (content.splitlines() for content in _differing(before, after))
    head = 0
    while head < len(old) and head < len(new) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(old) > _TOO_LONG or len(new) > _TOO_LONG:
        a, b = Counter(old), Counter(new)
        return (b - a).total(), (a - b).total()
    from difflib import SequenceMatcher

    insertions = deletions = 0
    for tag, i, j, m, n in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            deletions += j - i
            insertions += n - m
    if not old and not new:
        # Only the newline at the end differs: a line was changed.
        return 1, 1
    return insertions, deletions


def _differing(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """The contents without the whole lines that they begin with alike: bytes compare quickly."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    start = before.rfind(b"\n", 0, low) + 1
    return before[start:], after[start:]


def unified(before: bytes | None, after: bytes | None, old_name: str, new_name: str) -> str:
    """A unified diff, None where there is no file; one line for what is no text."""
    old, new = before or b"", after or b""
    left = "/dev/null" if before is None else f"a/{one_line(old_name)}"
    right = "/dev/null" if after is None else f"b/{one_line(new_name)}"
    if not (is_text(old) and is_text(new)):
        return f"Binary files {left} and {right} differ\n" if old != new else ""
    from difflib import unified_diff

    parts: list[str] = []
    for line in unified_diff(_lines(old), _lines(new), left, right):
        parts.append(line)
        if not line.endswith("\n"):
            parts.append("\n\\ No newline at end of file\n")
    return "".join(parts)
