"""`restore`: one file or folder as it was."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from .._startup.frozen import replace
from .._startup.shell import quoted as shell_word
from ..errors import NotFound
from .back import common_options, may_act, messages, mode_option, report
from .rewind import Wish, check_known, go_back, inside_of, path_of, was_changed
from .verbs import Command
from .wording import brief, short

if TYPE_CHECKING:
    from ..events import Event
    from ..session.session import Session
    from .call import Call


def restore(call: Call) -> int:
    """Bring back one file."""
    from ..files.names import one_line, shown

    given = call.arguments
    may_act(call)
    session = call.session(_session_of(call) if given.session is None else given.session)
    path = path_of(session.info(), given.file)
    name = one_line(shown(os.fsencode(given.file)))
    if given.at is not None:
        wish = Wish(call.point(session, given.at))
        check_known(session, wish, [name], [path])
    else:
        change = _last_change(session, path)
        if change is None:
            return _nothing_to_restore(call, session, brief(name, 200))
        wish = Wish(change, before=True)
    wish = replace(wish, scope="files", mode=given.mode, on_conflict=given.on_conflict or "keep")
    return go_back(call, session, replace(wish, paths=[path]), brief(name, 200))


def _session_of(call: Call) -> str:
    """The newest session of this folder that changed the file; the latest one if none did."""
    latest = call.find(None)
    folder = latest.root or latest.cwd
    others = call.store.sessions(cwd=folder) if folder is not None else []
    for info in [latest, *(one for one in others if one.id != latest.id)]:
        if info.relation == "subagent":
            continue
        if was_changed(call.store, info, path_of(info, call.arguments.file)):
            if info.id != latest.id:
                call.out.note(f"session {short(info.id)}, the newest that changed it")
            return info.id
    return latest.id


def _nothing_to_restore(call: Call, session: Session, name: str) -> int:
    """Say that a file holds nothing of the session any more; `--at` names a point all the same."""
    from ..session.views import Rewind

    count = messages(session)
    head = next((event.seq for event in session.events(reverse=True)), 0)
    words = f"nothing to do: no change of this session to {name} is in effect"
    return report(call, session, Rewind(False, head, 0, count), words, "files", count)


def _last_change(session: Session, path: str) -> Event | None:
    """The last change of the session to a path, or below it, that is in effect; None if none is.

    `NotFound` where the session never changed it.
    """
    from ..files.depot import has_contents, opened
    from ..files.names import shown
    from ..files.restore.plan import last_in_effect
    from ..session.filepoints import changes_by
    from ..session.points import find_event

    there = inside_of(session.info(), path)
    name = shown(there)
    if not was_changed(session.store, session.info(), path) or not has_contents(session.store):
        raise NotFound(
            f"session `{session.id}` did not change `{name or '.'}`: `backtrail log -- "
            f"{shell_word(os.fsdecode(there) or '.')}` lists which "
            "one did, to be named with `--session`; or give a point with `--at` and `--mode exact`"
        )
    with opened(session.store) as depot:
        changes = (change for event in session.events() for change in changes_by(event))
        seq = last_in_effect(depot.blobs.get, changes, [there] if there else None)
    return find_event(session.store, session.id, seq) if seq else None


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file or folder")
    parser.add_argument(
        "--at",
        metavar="POINT",
        help="as it was then (default: before the last change of this session that is in effect)",
    )
    mode_option(parser)
    common_options(parser)


COMMANDS: dict[str, Command] = {
    "restore": Command(
        _options,
        restore,
        """
        backtrail restore app.py                 before this session last changed it
        backtrail restore src --at 12            a folder, as it was at event 12
        backtrail restore app.py --at @-2 --yes
        """,
        "The conversation stays as it is. `backtrail undo` takes it back.",
    ),
}
