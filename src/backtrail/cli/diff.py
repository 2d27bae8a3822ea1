"""`diff`: what changed in the files between two points, a line for each file or in full."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import BacktrailError
from ..files.names import one_line
from .call import Call
from .hunks import print_diff
from .output import Output
from .plan import listed
from .verbs import Command, session_option
from .wording import lines, mode_change, things

if TYPE_CHECKING:
    from ..events import Event
    from ..exchange.export.document import Net
    from ..files.differences import Diff
    from ..files.trees import Get
    from ..session.session import Session

    Where = Event | int
    from ..files.differences import FileDiff


PARTLY = "only what the calls of the session recorded is known of its files"
POINT = "the number of an event, an id, a label, or @-1 for your last prompt"


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("a", nargs="?", metavar="A", help=f"from this point: {POINT}")
    parser.add_argument("b", nargs="?", metavar="B", help="to this point; else to now")
    session_option(parser)
    parser.add_argument("--stat", action="store_true", help="only names and numbers of lines")


def _run(call: Call) -> None:
    session = call.session(call.arguments.session)
    start, end = _span(call, session)
    net = None
    if call.arguments.a is None:
        from ..files.differences import Diff

        net = _last_turn(call, session)
        found = Diff(net.files)
    else:
        found = _compared(call, session, start, end)
    if call.out.as_json:
        row = found.to_dict()
        if call.arguments.stat:
            for file in row["files"]:
                del file["text"], file["header"]
        call.out.data({"session": session.id, "from": _seq(start), "to": _seq(end), **row})
        return
    if not found:
        call.out.note("nothing differs")
        return
    with call.out.paged():
        if call.arguments.stat:
            print_files(call.out, found.files)
        else:
            print_diff(call.out, found.files)
    own = found.files if net is None else net.own
    others = [file for file in found.files if file not in own]
    if own:
        call.out.note(summary(own))
    if others:
        names = listed([one_line(file.path) for file in others], 5)
        call.out.note(f"perhaps not its own: {summary(others)}: {names}")


def _span(call: Call, session: Session) -> tuple[Where, Where | None]:
    """The two points: as given, else around the last turn."""
    if call.arguments.a is not None:
        end = None if call.arguments.b is None else _point(call, session, call.arguments.b)
        return _point(call, session, call.arguments.a), end
    said = (event for event in call.store.walk(session.id) if event.kind == "user_message")
    # Where there was no prompt, as when a command was recorded, it is the whole session.
    return next(said, None) or 0, _last_done(call, session)


def _last_done(call: Call, session: Session) -> int:
    """The last event that is no checkpoint: a checkpoint may stand for any earlier point."""
    events = call.store.read(session.id, reverse=True)
    passed = ("checkpoint", "checkpoint_deleted")
    return next((event.seq for event in events if event.kind not in passed), 0)


def _last_turn(call: Call, session: Session) -> Net:
    """What the last turn changed, without what others did."""
    from ..exchange.export.document import Net, Reader
    from ..files.depot import has_contents
    from ..files.names import inside
    from ..session.filepoints import last_turn, point_at

    if not has_contents(call.store):
        return Net()
    info = session.info()
    root = os.fsencode(info.root or "/")
    paths = [inside(root, path) for path in call.paths] or None
    prompt, events = last_turn(call.store, session.id)
    with suppress(BacktrailError):
        # As status has it: a call that was never ended is part of the turn. Where the folder
        # cannot be looked at, what the log has can.
        events += session.parts.browser.foreseen()
    if point_at(call.store, session.id, prompt or 0).tree is None:
        call.out.note(PARTLY)
    with Reader(call.store, info) as reader:
        return reader.net(events, paths)


def _compared(call: Call, session: Session, start: Where, end: Where | None) -> Diff:
    """What differs between two points, or between one and now."""
    from ..files.depot import has_contents, opened
    from ..files.differences import Diff, diff
    from ..files.names import inside
    from ..session.filepoints import point_at

    before = point_at(call.store, session.id, start).tree
    if end is None and before is not None:
        return session.diff(start, paths=call.paths or None)
    if not has_contents(call.store):
        return Diff()
    root = os.fsencode(session.info().root or "/")
    paths = [inside(root, path) for path in call.paths] or None
    # Two points need no folder: it may be gone, or on another machine.
    with opened(call.store) as depot:
        after = None if end is None else point_at(call.store, session.id, end).tree
        if before is not None and after is not None:
            return diff(depot.blobs.get, before, after, paths)
        call.out.note(PARTLY)
        last = session.info().head if end is None else _seq(end)
        return _recorded(call, session.id, depot.blobs.get, (_seq(start) or 0, last), paths)


def _recorded(
    call: Call, session_id: str, get: Get, span: tuple[int, int | None], paths: list[bytes] | None
) -> Diff:
    """What calls between two events did, path by path: from before the first to after the last."""
    from ..files.changes.effects import changes_of
    from ..files.differences import described
    from ..files.restore.plan import within
    from ..files.trees import Difference, diff_trees

    found: dict[bytes, Difference] = {}
    for event in call.store.read(session_id, after=span[0], until=span[1]):
        files = event.data.get("files")
        if not isinstance(files, dict) or "after" not in files:
            continue
        for change in changes_of(event.seq, files):
            for path, before, after in diff_trees(get, change.before, change.after):
                if within(path, paths) and path not in change.foreign:
                    first = found[path].before if path in found else before
                    found[path] = Difference(path, first, after)
    differing = [found[path] for path in sorted(found) if found[path].before != found[path].after]
    return described(get, differing)


def _seq(where: Where | None) -> int | None:
    return where if where is None or isinstance(where, int) else where.seq


def _point(call: Call, session: Session, name: str) -> Where:
    return 0 if name == "0" else call.point(session, name)


COMMANDS = {
    "diff": Command(
        _options,
        _run,
        """
        backtrail diff
        backtrail diff @-2 @-1 --stat
        backtrail diff "before the rewrite" -- src
        backtrail diff 0
        """,
        about="Without a point: what the last turn changed, without what others did.\n"
        "With one: from there to now. 0 is the beginning of the session.\n"
        "A terminal shows it in your pager (`PAGER`); a pipe gets what `git apply` takes.",
        rest="PATH",
    )
}


LETTERS = {
    "added": "A",
    "deleted": "D",
    "modified": "M",
    "renamed": "R",
    "mode": "M",
    "type": "T",
    "not captured": "?",
}
STYLES = {"A": "green", "D": "red", "M": "yellow", "R": "cyan", "T": "yellow", "?": "dim"}


def print_files(out: Output, files: Sequence[FileDiff], indent: str = "") -> None:
    """A line for each file: how it changed, and by how many lines."""
    for file in files:
        letter = LETTERS[file.status]
        moved = file.old_path if letter == "?" else None
        name = file.path if file.old_path in (None, moved) else f"{file.old_path} → {file.path}"
        changed = file.insertions or file.deletions
        notes = [lines(file.insertions, file.deletions)] if changed else []
        if file.modes:
            notes.append(mode_change(file.modes))
        if file.status in ("not captured", "type"):
            notes.append("not captured" if letter == "?" else "another kind of file")
        if moved is not None:
            notes.append(f"moved from {one_line(moved)}")
        more = f"  {', '.join(notes)}" if notes else ""
        shown = f"  {one_line(name)}{'/' if file.folder else ''}"
        out.spans((indent, ""), (letter, STYLES[letter]), (shown, ""), (more, "dim"))


def summary(files: Sequence[FileDiff]) -> str:
    """How much changed, such as "2 files, +10 −3"."""
    plus, minus = sum(f.insertions for f in files), sum(f.deletions for f in files)
    return f"{things(file.folder for file in files)}, {lines(plus, minus)}"
