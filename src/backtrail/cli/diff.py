"""`diff`: what changed in the files between two points."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import BacktrailError
from ..files.names import one_line
from .call import Call
from .options import session_option
from .patches import print_diff, print_files, summary
from .plan import listed
from .prompts import NO_CALLS, not_alone
from .verbs import Command

if TYPE_CHECKING:
    from ..events import Event
    from ..files.differences import Diff
    from ..files.trees import Get
    from ..session.session import Session

    Where = Event | int

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
    kept: set[str] = set()
    if call.arguments.a is None:
        found, kept = _last_turn(call, session)
    else:
        found = _compared(call, session, start, end)
    if call.out.as_json:
        row = found.to_dict()
        if call.arguments.stat:
            for file in row["files"]:
                del file["text"]
        call.out.data({"session": session.id, "from": _seq(start), "to": _seq(end), **row})
        return
    if not found:
        call.out.note("nothing differs")
        return
    if call.arguments.stat:
        print_files(call.out, found.files)
    else:
        print_diff(call.out, found.files)
    own = [file for file in found.files if file.path not in kept]
    others = [file for file in found.files if file.path in kept]
    if own:
        call.out.note(summary(own))
    if others:
        names = listed([one_line(file.path) for file in others], 5)
        call.out.note(f"perhaps not its own: {summary(others)}: {names}")


def _span(call: Call, session: Session) -> tuple[Where, Where | None]:
    """The two points: as given, else around the last turn."""
    from .reading import last_done

    if call.arguments.a is not None:
        end = None if call.arguments.b is None else _point(call, session, call.arguments.b)
        return _point(call, session, call.arguments.a), end
    said = (event for event in call.store.walk(session.id) if event.kind == "user_message")
    # Where nobody said anything, as when a command was recorded, it is the whole session.
    return next(said, None) or 0, last_done(call.store, session.id)


def _last_turn(call: Call, session: Session) -> tuple[Diff, set[str]]:
    """What the last turn changed, without what others did; and which paths are perhaps theirs."""
    from ..files.contents.collect import has_contents, opened
    from ..files.differences import Diff
    from ..files.names import inside
    from ..session.filepoints import last_turn, point_at, turn_in_effect

    if not has_contents(call.store):
        return Diff(), set()
    root = os.fsencode(session.info().root or "/")
    paths = [inside(root, path) for path in call.paths] or None
    from ..session.watching import foreseen

    prompt, events = last_turn(call.store, session.id)
    with suppress(BacktrailError):
        # As status has it: a call that nobody ended is part of the turn. Where the folder cannot
        # be looked at, what the log has can.
        events += foreseen(session)
    if point_at(call.store, session.id, prompt or 0).tree is None:
        call.out.note(PARTLY)
    with opened(call.store) as depot:
        found = turn_in_effect(call.store, session.id, depot.blobs.get, events, paths)
    return found, {path for one in events if one.kind not in NO_CALLS for path in not_alone(one)}


def _compared(call: Call, session: Session, start: Where, end: Where | None) -> Diff:
    """What differs between two points, or between one and now."""
    from ..files.contents.collect import has_contents, opened
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
        "With one: from there to now. 0 is the beginning of the session.",
        rest="PATH",
    )
}
