"""Patches as data, and how hunks change a text. No I/O.

Two forms are read: unified diffs, git's among them, and the `*** Begin Patch` form of
coding agents. A hunk finds its place by the lines it holds; numbers only say where to look
first, since models count badly. Lines of the file that a hunk only mentions stay as they
are, whatever their spaces and endings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from .tool import ToolFailed

Kind = Literal["add", "update", "delete"]

_BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_LAST = "*** End of File"
_SECTION = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_KINDS: dict[str, Kind] = {"Add": "add", "Update": "update", "Delete": "delete"}
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_BOTH = re.compile(r"diff --git a/(.+) b/\1")
_UNCOUNTED = 1 << 60
_PREFIXES = ("a/", "b/", "c/", "i/", "o/", "w/")


@dataclass(slots=True)
class Hunk:
    """Lines to keep, to take out and to put in, and where they may be.

    `start` is a line number, from 1; `anchors` are lines above; `at_end` means the end of
    the file. `ends_open`: the new last line has no newline.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    start: int | None = None
    anchors: list[str] = field(default_factory=list)
    at_end: bool = False
    ends_open: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that must be there."""
        return [text.removesuffix("\r") for sign, text in self.lines if sign != "+"]


@dataclass(slots=True)
class Change:
    """What a patch does to one file."""

    kind: Kind
    path: str
    to: str | None = None
    hunks: list[Hunk] = field(default_factory=list)
    mode: int | None = None


def parse(patch: str) -> list[Change]:
    """The changes in a patch, in order; `ToolFailed` if it is none."""
    lines = patch.split("\n")
    if lines[-1] == "":
        lines.pop()
    if lines and all(line.endswith("\r") for line in lines):
        lines = [line[:-1] for line in lines]
    begins = [n for n, line in enumerate(lines) if line.strip() == _BEGIN]
    changes = _parse_sections(lines[begins[0] + 1 :]) if begins else _Unified(lines).changes()
    if not changes:
        raise ToolFailed("the patch changes nothing: it is neither a unified diff nor in sections")
    for change in changes:
        _tidy(change)
    return changes


def _tidy(change: Change) -> None:
    """Lines without a sign are empty lines of the file; at the end of a hunk they are none."""
    sign = "+" if change.kind == "add" else " "
    for hunk in change.hunks:
        while hunk.lines and not hunk.lines[-1][0]:
            hunk.lines.pop()
        hunk.lines = [(own or sign, text) for own, text in hunk.lines]
    if change.kind != "add":
        change.hunks = [hunk for hunk in change.hunks if hunk.lines]
    if change.kind == "update" and not (change.hunks or change.to or change.mode):
        raise ToolFailed(f"the patch has no hunk for `{change.path}`")


# --- sections ------------------------------------------------------------------------------


def _parse_sections(lines: list[str]) -> list[Change]:
    changes: list[Change] = []
    for number, line in enumerate(lines):
        if line.strip() == _END:
            return changes
        section = _SECTION.fullmatch(line.rstrip())
        if section is not None:
            changes.append(Change(_KINDS[section[1]], section[2].strip()))
            if changes[-1].kind != "update":
                changes[-1].hunks.append(Hunk())
        elif changes:
            before = lines[number - 1]
            _take_line(changes[-1], line, first=_SECTION.fullmatch(before.rstrip()) is not None)
        elif line.strip():
            raise ToolFailed(f"a section must come first in a patch, not {line[:80]!r}")
    raise ToolFailed(f"the patch is cut off: it has no `{_END}`")


def _take_line(change: Change, line: str, *, first: bool) -> None:
    """One line inside a section."""
    move = _MOVE.fullmatch(line.rstrip())
    if move is not None and first and change.kind == "update":
        change.to = move[1].strip()
    elif change.kind != "update" and line.strip() and (change.kind, line[0]) != ("add", "+"):
        raise ToolFailed(f"{line[:80]!r} does not belong to `{change.path}`, {change.kind}")
    elif change.kind != "update":
        change.hunks[-1].lines.append((line[:1].strip(), line[1:]))
    elif line.strip() == _LAST and change.hunks:
        change.hunks[-1].at_end = True
    elif line.startswith("@@"):
        _take_anchor(change, line)
    elif line == "" or line[0] in " +-":
        if not change.hunks or change.hunks[-1].at_end:
            change.hunks.append(Hunk())
        change.hunks[-1].lines.append((line[:1], line[1:]))
    else:
        raise ToolFailed(f"{line[:80]!r} starts with none of space, + and - in `{change.path}`")


def _take_anchor(change: Change, line: str) -> None:
    numbered = _HUNK.match(line)
    text = line[2:].strip() if numbered is None else ""
    if not change.hunks or change.hunks[-1].lines:
        change.hunks.append(Hunk())
    if text and text != "@@":
        change.hunks[-1].anchors.append(text.removesuffix("@@").rstrip())


# --- unified diffs -------------------------------------------------------------------------


class _Unified:
    """Reads unified diffs line by line."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        self._found: list[Change] = []
        self._git: Change | None = None

    def _line(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._lines[at] if at < len(self._lines) else ""

    def _is_header(self) -> bool:
        return self._line().startswith("--- ") and self._line(1).startswith("+++ ")

    def changes(self) -> list[Change]:
        """All of them."""
        while self._at < len(self._lines):
            line = self._line()
            if line.startswith("diff --git "):
                self._begin_git(line)
            elif self._is_header():
                self._begin(line[4:], self._line(1)[4:])
                self._at += 1
            elif line.startswith("@@"):
                self._hunk(line)
                continue
            elif line.startswith(("GIT binary patch", "Binary files ")):
                raise ToolFailed("the patch changes a binary file; only text can be patched")
            elif self._git is not None:
                self._extend(self._git, line)
            elif self._found and line[:1] in ("+", "-") and line != "-- ":
                raise ToolFailed(f"{line[:80]!r} belongs to no hunk of the patch")
            self._at += 1
        return [change for change in self._found if change.path]

    def _begin_git(self, line: str) -> None:
        same = _BOTH.fullmatch(line)
        self._git = Change("update", same[1] if same else "")
        self._found.append(self._git)

    def _extend(self, change: Change, line: str) -> None:
        word, _, rest = line.rpartition(" ")
        if word in ("new file mode", "new mode", "deleted file mode"):
            if rest.startswith(("12", "16")):
                raise ToolFailed(f"`{change.path}` is no plain file in the patch (mode {rest})")
            if word == "deleted file mode":
                change.kind = "delete"
                return
            change.mode = int(rest, 8)
            change.kind = "add" if word == "new file mode" else "update"
        elif line.startswith("rename from "):
            change.path = _unquoted(line[12:])
        elif line.startswith("rename to "):
            change.to = _unquoted(line[10:])
        elif line.startswith("copy from "):
            raise ToolFailed("the patch copies a file; write the copy instead")

    def _begin(self, old: str, new: str) -> None:
        """A file's two names."""
        old, new = (_unquoted(name.split("\t")[0].rstrip()) for name in (old, new))
        old, new = _without_prefixes(old, new)
        change = self._git
        self._git = None
        if change is None:
            change = Change("update", "")
            self._found.append(change)
        if old == "/dev/null":
            change.kind, change.path = "add", new
        elif new == "/dev/null":
            change.kind, change.path = "delete", old
        elif change.to is None:
            if old != new:
                raise ToolFailed(f"the patch names two files, `{old}` and `{new}`; it may move "
                                 "one only with `rename from` and `rename to`")  # fmt: skip
            change.path = old

    def _hunk(self, line: str) -> None:
        if not self._found:
            raise ToolFailed("the patch names no file before its first hunk")
        numbers = _HUNK.match(line)
        hunk = Hunk(start=int(numbers[1]) if numbers else None)
        left = [int(n or "1") for n in numbers.group(2, 4)] if numbers else [_UNCOUNTED] * 2
        self._at += 1
        while self._at < len(self._lines) and self._goes_on(left):
            self._take(hunk, left)
            self._at += 1
        self._found[-1].hunks.append(hunk)

    def _goes_on(self, left: list[int]) -> bool:
        """Whether the next line is in the hunk, even if its header counted wrong."""
        line = self._line()
        if line.startswith("\\"):
            return True
        if line.startswith(("@@", "diff --git ")):
            return False
        if max(left) <= 0:
            return line[:1] in ("+", "-", " ") and line != "-- " and not self._is_header()
        header = self._is_header() and self._line(2).startswith("@@")
        return not header and (line == "" or line[0] in "+- ")

    def _take(self, hunk: Hunk, left: list[int]) -> None:
        line = self._line()
        sign = line[:1] or (" " if left[0] < _UNCOUNTED // 2 else "")
        if sign == "\\":
            hunk.ends_open = bool(hunk.lines) and hunk.lines[-1][0] != "-"
            return
        left[0] -= sign != "+"
        left[1] -= sign != "-"
        hunk.lines.append((sign, line[1:]))


def _unquoted(name: str) -> str:
    """A name as git writes it, which quotes unusual ones."""
    if len(name) < 2 or name[0] != '"' or name[-1] != '"':
        return name
    try:
        raw = name[1:-1].encode().decode("unicode_escape").encode("latin-1")
        return raw.decode("utf-8", "surrogateescape")
    except ValueError as error:
        raise ToolFailed(f"{name} is not a file's name") from error


def _without_prefixes(old: str, new: str) -> tuple[str, str]:
    """The names without git's `a/` and `b/`."""
    names = [name for name in (old, new) if name != "/dev/null"]
    prefixed = all(name.startswith(_PREFIXES) for name in names)
    if not prefixed or (len(names) == 2 and old[:2] == new[:2]):
        return old, new
    old, new = (name if name == "/dev/null" else name[2:] for name in (old, new))
    return old, new


# --- applying ------------------------------------------------------------------------------

Line = tuple[str, str]
"""A line's text and its ending."""


def apply_hunks(change: Change, text: str) -> str:
    """The text with all hunks applied; `ToolFailed` if one does not fit."""
    lines = _split(text)
    ending = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    literal = any(new.endswith("\r") for hunk in change.hunks for _, new in hunk.lines)
    done: list[Line] = []
    cursor, offset = 0, 0
    for number, hunk in enumerate(change.hunks, 1):
        at = _locate(change, hunk, number, lines, cursor, offset)
        if hunk.start is not None and hunk.old:
            offset = at - (hunk.start - 1)
        done += lines[cursor:at]
        cursor = at
        for sign, new in hunk.lines:
            if sign == "+":
                own = "\r\n" if new.endswith("\r") else "\n"
                done.append((new.removesuffix("\r"), own if literal else ending))
                continue
            if sign == " ":
                done.append(lines[cursor])
            cursor += 1
        if hunk.ends_open and done:
            done[-1] = (done[-1][0], "")
    done += lines[cursor:]
    return "".join(body + (end or ending) for body, end in done[:-1]) + "".join(
        body + end for body, end in done[-1:]
    )


def _split(text: str) -> list[Line]:
    found: list[Line] = []
    for line in text.split("\n"):
        body = line.removesuffix("\r")
        found.append((body, line[len(body) :] + "\n"))
    last = text.rpartition("\n")[2]
    found.pop()
    return [*found, (last, "")] if last else found


def _locate(
    change: Change, hunk: Hunk, number: int, lines: list[Line], cursor: int, offset: int
) -> int:
    """The index of the first line of a hunk."""
    floor = cursor
    for anchor in hunk.anchors:
        floor = _anchored(change, anchor, lines, floor) + 1
    old = hunk.old
    if not old:
        if hunk.start is not None:
            return min(max(hunk.start + offset, cursor), len(lines))
        return floor if hunk.anchors else len(lines)
    for alike in (_exactly, _but_for_spaces):
        found = _matches(lines, old, floor, alike)
        if not found and hunk.anchors:
            found = _matches(lines, old, max(cursor, floor - 1), alike)
        if found and hunk.at_end and found[-1] == len(lines) - len(old):
            return found[-1]
        if found and hunk.start is not None:
            expected = hunk.start - 1 + offset
            return min(found, key=lambda at: abs(at - expected))
        if found:
            return found[0]
    wanted = "\n".join(old[:5])
    raise ToolFailed(
        f"hunk {number} of `{change.path}` does not fit: these lines are not there "
        f"(read the file again; nothing was changed):\n{wanted}"
    )


def _anchored(change: Change, anchor: str, lines: list[Line], floor: int) -> int:
    for at in range(floor, len(lines)):
        if lines[at][0].strip() == anchor.strip():
            return at
    raise ToolFailed(f"the line {anchor!r} is not in `{change.path}`, or not below the last hunk")


def _exactly(text: str) -> str:
    return text


def _but_for_spaces(text: str) -> str:
    return text.rstrip()


def _matches(
    lines: list[Line], old: list[str], floor: int, alike: Callable[[str], str]
) -> list[int]:
    """Where these lines are, from an index on."""
    wanted = [alike(text) for text in old]
    bodies = [alike(body) for body, _ in lines]
    last = len(bodies) - len(wanted)
    return [
        at
        for at in range(floor, last + 1)
        if bodies[at] == wanted[0] and bodies[at : at + len(wanted)] == wanted
    ]
