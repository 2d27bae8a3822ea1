"""A plan for people: what going back does to conversation and files, before and after.

What is not captured is shown here too, the same by every verb.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .._startup.frozen import replace
from ..errors import Unsupported
from ..files.names import one_line
from ..files.trees import MOVED_FROM
from ..session.uncaptured import Row, row_dict
from .output import Output
from .wording import brief, mode_change, plural, size, things

if TYPE_CHECKING:
    from ..events import Json
    from ..session.session import Session
    from ..session.views import FileChange, Rewind
    from .output import Output, Span


Line = tuple["Span", ...]
"""One line in several styles."""

LONGEST_LIST = 40
"""Files that people see before the rest is only counted; scripts see all."""

_DONE = {
    "create": "created",
    "write": "restored",
    "delete": "deleted",
    "chmod": "mode set",
    "link": "linked",
    "merge": "merged",
    "move": "moved",
    "skip": "left",
    "conflict": "kept",
}
_COLORS = {"delete": "red", "conflict": "yellow", "skip": "dim"}
_ORDER = ("conflict", "delete", "write", "merge", "move", "link", "chmod", "create", "skip")


def lines_of(result: Rewind, messages: int, *, why_no_files: str = "") -> list[Line]:
    """What a rewind does, or did: files, what stays, what cannot be undone, conversation.

    `messages` is how many there were before.
    """
    found: list[Line] = []
    if why_no_files:
        found.append((("files: untouched, ", "bold"), (why_no_files, "")))
    elif result.files or result.cut is not None:
        found += _files(result)
    for warning in dict.fromkeys(result.warnings):
        found.append((("warning: ", "yellow"), (one_line(warning), "")))
    found.append((("conversation: ", "bold"), (_conversation(result, messages), "")))
    return found


def _files(result: Rewind) -> list[Line]:
    count = f"{_counted(result)} {'changed' if result.applied else 'to change'}"
    summary = f"{count}  {signed(result.insertions, result.deletions)}".rstrip()
    if result.conflicts:
        summary += f", {plural(len(result.conflicts), 'conflict')}"
    found: list[Line] = [(("files: ", "bold"), (summary, ""))]
    ordered = sorted(_as_moves(result.files), key=lambda file: _ORDER.index(file.action))
    shown = ordered[: max(LONGEST_LIST, len(result.conflicts))]
    words = [_DONE[file.action] if result.applied else file.action for file in shown]
    broad = max(map(len, words), default=0)
    for file, word in zip(shown, words, strict=True):
        found.append(_file(file, word.ljust(broad)))
    if len(shown) < len(ordered):
        found.append(((f"  … and {len(ordered) - len(shown)} more; --json lists all", "dim"),))
    return found


def _counted(result: Rewind) -> str:
    """How many files and folders change."""
    return things(file.folder for file in _as_moves(result.files) if file.acts) or "nothing"


def _as_moves(files: Sequence[FileChange]) -> list[FileChange]:
    """The files with both names of one that moves as one, as `diff` and `status` count them."""
    origins = {file.old_path for file in files if file.old_path is not None}
    return [
        file if file.old_path is None else replace(file, action="move")
        for file in files
        if not (file.action == "delete" and file.path in origins)
    ]


def _file(file: FileChange, word: str) -> Line:
    style = _COLORS.get(file.action, "green")
    name = brief(one_line(file.path), 200)
    if file.old_path is not None:
        name = f"{brief(one_line(file.old_path), 200)} → {name}"
    pieces: list[Span] = [(f"  {word}  ", style), (name, "")]
    pieces += [("/", "")] if file.folder else []
    if file.action != "conflict" and (file.insertions or file.deletions):
        pieces.append((f"  {signed(file.insertions, file.deletions)}", "dim"))
    if file.modes is not None:
        pieces.append((f"  {mode_change(file.modes)}", "dim"))
    if file.reason:
        pieces.append((f"  ({one_line(file.reason)})", "yellow" if style != "dim" else "dim"))
    return tuple(pieces)


def _conversation(result: Rewind, messages: int) -> str:
    stays = plural(result.message_count, "message")
    if result.events_dropped:
        gone = plural(result.events_dropped, "event")
        return f"{gone} {'dropped' if result.applied else 'to drop'}, {stays} left"
    more = result.message_count - messages
    if more > 0:
        return f"{plural(more, 'message')} {'came' if result.applied else 'to come'} back, {stays}"
    return f"unchanged, {stays}"


def show(out: Output, lines: Iterable[Line], *, aside: bool = False) -> None:
    """Print lines: as data, or aside, where the person is only to look before answering."""
    for line in lines:
        if aside and not out.is_terminal:
            out.note("".join(text for text, _ in line))
        else:
            out.spans(*line)


def why_unwatched(session: Session) -> str:
    """Why no files go back in this session; empty if they do."""
    try:
        session.not_captured()
    except Unsupported as error:
        return str(error)
    return ""


def never_touched(session: Session, plan: Rewind) -> list[Line]:
    """What lies in the folder and is not captured, in one line; of that, a plan may move some."""
    names = [one_line(f"{path} ({reason})") for path, reason, _ in session.not_captured()]
    if not names:
        return []
    moved = any(file.action == "move" for file in plan.files)
    text = f"not captured{'' if moved else ', so not touched'}: {listed(names, 5)}"
    return [((text, "dim"),)]


def listed(names: Sequence[str], most: int) -> str:
    """Some names in a sentence, and how many more there are."""
    shown = ", ".join(brief(name, 100) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def signed(insertions: int, deletions: int) -> str:
    """Lines added and removed; empty where there are none."""
    plus = f"+{insertions:,}" if insertions else ""
    minus = f"−{deletions:,}" if deletions else ""
    return " ".join(filter(None, (plus, minus)))


SHOWN = 3
"""Rows that people see; the rest is counted."""


def rows_json(rows: Sequence[Row]) -> list[Json]:
    """The rows as `not_captured` in JSON."""
    return [row_dict(row) for row in rows]


def row_line(row: Row) -> str:
    """A row on a line."""
    path, reason, taken = row
    name = brief(one_line(path), 200)
    return f"{name}  {one_line(reason)}{f', {size(taken)}' if taken else ''}"


def print_rows(out: Output, rows: Sequence[Row], verb: str) -> None:
    """How many there are, and the first of them; `verb` with --json has all."""
    if not rows:
        return
    out.line()
    # What is not where it first was, a rewind moves back.
    moved = any(MOVED_FROM.decode() in reason for _, reason, _ in rows)
    words = "Not captured" if moved else "Not captured, so never touched"
    out.line(f"{words}: {plural(len(rows), 'path')}", "yellow")
    for row in rows[:SHOWN]:
        out.line(f"  {row_line(row)}", "dim")
    if len(rows) > SHOWN:
        out.line(f"  … {len(rows) - SHOWN} more: `backtrail {verb} --json` has all", "dim")
