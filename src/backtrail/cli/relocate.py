"""`relocate`: a session's folder is somewhere else now."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotFound
from ..session.browse import moved_along
from .call import Call
from .diff import print_files, summary
from .nearby import came_from, latest_in
from .plan import LONGEST_LIST
from .verbs import Command, Usage, session_option
from .wording import plural

if TYPE_CHECKING:
    from ..events import SessionInfo


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="else this folder")
    session_option(parser)


def _run(call: Call) -> None:
    folder = Path(call.arguments.folder).expanduser().resolve()
    if not folder.is_dir():
        raise NotFound(f"{folder} is not a folder")
    chosen = _chosen(call, folder)
    before = chosen.root
    others = _left_behind(call, chosen, folder)
    session = call.session(chosen.id)
    found = session.relocate(folder)
    for info in others:
        call.store.update(info.id, cwd=moved_along(info, str(folder)), root=str(folder))
    if call.out.as_json:
        moved = {"session": session.id, "from": before, "to": str(folder)}
        call.out.data({**moved, "others": [info.id for info in others], **found.to_dict()})
        return
    more = f", with {plural(len(others), 'other session')}" if others else ""
    if before == str(folder):
        call.out.line(f"session {session.id} is in {folder}, as before")
    else:
        call.out.line(f"session {session.id} is in {folder} now{more}; it was in {before}")
    if found:
        call.out.line(f"its files differ from those it knew: {summary(found.files)}")
        print_files(call.out, found.files[:LONGEST_LIST], "  ")
        if len(found.files) > LONGEST_LIST:
            left = len(found.files) - LONGEST_LIST
            call.out.line(f"  … and {left} more; --json lists all", "dim")


def _chosen(call: Call, folder: Path) -> SessionInfo:
    """The session that is named; else the latest that this very folder had, there or here."""
    if call.arguments.session is not None:
        return call.info(call.arguments.session)
    old = came_from(call.store, folder)
    found = latest_in(call.store, old if old is not None else folder)
    if found is None:
        raise Usage(
            f"which session? None was recorded in {folder}, wherever it was: name one with "
            "`--session`; `backtrail ls --all` lists them"
        )
    return found


def _left_behind(call: Call, chosen: SessionInfo, folder: Path) -> list[SessionInfo]:
    """The other sessions of a folder that is not there any more: they move along."""
    if chosen.root is None or Path(chosen.root) == folder or Path(chosen.root).is_dir():
        return []
    return [
        info
        for info in call.store.sessions(cwd=chosen.root)
        if info.id != chosen.id and info.root == chosen.root
    ]


COMMANDS = {
    "relocate": Command(
        _options,
        _run,
        """
        cd new/place && backtrail relocate
        backtrail relocate ../new/place --session 019a8b2c-1234
        """,
        about="For a folder that was moved, or made anew at the same place. If the old place is\n"
        "gone, all its sessions move along. Without a session: the latest of this very\n"
        "folder, which is known again wherever it was moved to on the same disk.",
    )
}
