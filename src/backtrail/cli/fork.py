"""fork and resume: a new session from a point of another, and how to go on with one."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AlreadyExists, BacktrailError, NotFound
from ..exchange.resume import check_here, is_foreign, native_line, resume_line, written
from .numbers import Numbers
from .verbs import Command, session_argument, session_option
from .wording import brief, plural

if TYPE_CHECKING:
    from ..events import Json, SessionInfo
    from .call import Call


def fork(call: Call) -> int:
    """Begin a new session from a point of another."""
    given = call.arguments
    session = call.session(given.session)
    at = call.point(session, given.point) if given.point is not None else None
    title = {"title": given.title} if given.title is not None else {}
    into = os.path.realpath(given.into) if given.into is not None else None
    with session.fork(at, into=into, **title) as made:
        info = made.info()
        row: dict[str, Json] = {
            "session": info.id,
            "parent": session.id,
            "at": info.fork_seq,
            "title": info.title,
            "cwd": info.cwd,
            "messages": info.message_count,
            "resume": resume_line(info, call.store.url if given.store else None),
        }
        failed: Exception | None = None
        if is_foreign(info):
            try:
                native = written(made, into)
                row["native"] = {"id": native.id, "path": str(native.path)}
                row["resume"] = native.command
            except (BacktrailError, OSError) as error:
                # The parent's line would go on with the parent.
                failed, row["resume"], row["native_error"] = error, None, str(error)
    if call.out.as_json:
        call.out.data(row)
    else:
        _print(call, row)
    if failed is not None:
        call.out.note(f"backtrail: the fork is made, but not the agent's own session: {failed}")
    return 1 if failed is not None else 0


def _print(call: Call, row: dict[str, Json]) -> None:
    messages = plural(row["messages"], "message")
    place = Numbers(call.store, row["parent"]).place(row["at"] or 0)
    call.out.line(f"forked {row['parent']} at {place}, with {messages}", "bold")
    call.out.line(f"new session: {row['session']}  {brief(row['title'] or '')}".rstrip())
    files = "with the files of that point" if call.arguments.into else "with the files as they are"
    if row["cwd"]:
        call.out.line(f"folder: {row['cwd']}, {files}")
    if row["resume"]:
        call.out.line(f"go on with: {row['resume']}")


def resume(call: Call) -> int:
    """Say how to go on with a session, or do it."""
    given = call.arguments
    info = call.info(given.session) if given.into is None else _brought(call, given.into)
    store = call.store.url if given.store else None
    check_here(info)
    line = native_line(call.store, info) if is_foreign(info) else resume_line(info, store)
    if not given.run:
        if call.out.as_json:
            agent = info.agent_name if is_foreign(info) else "backtrail"
            call.out.data({"session": info.id, "agent": agent, "cwd": info.cwd, "command": line})
        else:
            call.out.line(line)
        return 0
    if is_foreign(info):
        call.store.close()
        os.execv("/bin/sh", ["/bin/sh", "-c", line])
    from . import main

    if info.cwd is not None:
        os.chdir(info.cwd)
    return main(["chat", "--resume", info.id, *(["--store", store] if store else [])])


def _brought(call: Call, folder: str) -> SessionInfo:
    """A session whose files, as it last left them, are in another folder from now on."""
    from ..session.elsewhere import bring_files
    from ..session.session import Session

    info, into = call.find(call.arguments.session), os.path.realpath(folder)
    if Path(into).is_dir() and any(Path(into).iterdir()):
        raise AlreadyExists(f"{into} exists and is not empty: choose another folder")
    with call.out.busy("bringing files"):
        if not bring_files(call.store, info.id, into, asked=True):
            raise NotFound(f"no state of the files of session `{info.id}` is known")
        with Session.resume(call.store, info.id, cwd=into) as session:
            return session.info()


def _fork_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "point",
        nargs="?",
        metavar="POINT",
        help="the last event that the new session has: its number or id, a checkpoint's label, "
        "`@-1` for your last prompt (default: all)",
    )
    parser.add_argument("--into", metavar="DIR", help="a new folder that gets the files of then")
    parser.add_argument("--title", metavar="TITLE", help="what to call it")
    session_option(parser)


def _resume_options(parser: ArgumentParser) -> None:
    session_argument(parser)
    parser.add_argument(
        "--into", metavar="DIR", help="bring its files to a new or empty folder, and go on there"
    )
    parser.add_argument("--run", action="store_true", help="run the line, do not only print it")


COMMANDS: dict[str, Command] = {
    "fork": Command(
        _fork_options,
        fork,
        """
        backtrail fork                                 from here, with the files as they are
        backtrail fork 12 --into ../plan-b             a copy of the files as they were then
        backtrail fork "before the rewrite" --title "plan B"
        """,
        "The original stays as it is. Without --into both work in the same folder.",
    ),
    "resume": Command(
        _resume_options,
        resume,
        """
        backtrail resume               the line that goes on with the latest session here
        backtrail resume 01a1e22c --run
        backtrail resume 01a1e22c --into ~/app    on another machine, with its files
        """,
        "A session of another agent goes on in that agent. Where that has no such session any\n"
        "more, or never had it on this machine, one is written.",
    ),
}
