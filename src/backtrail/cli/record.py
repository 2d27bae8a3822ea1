"""`backtrail record`: any command as a session that can be rewound."""

from __future__ import annotations

import shlex
import shutil
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotFound, StoreFailed
from .advice import hint
from .nearby import root_here
from .plan import row_line, rows_json
from .verbs import CONFLICT, Command, Usage
from .wording import brief, short

if TYPE_CHECKING:
    from ..exchange.command import Recorded
    from ..session.session import Session
    from ..session.uncaptured import Row
    from .call import Call

NOT_THERE = 127
"""The exit code for a command that is not there, as shells have it."""

NOT_RUN = 126
"""The exit code for one that is there and cannot be run."""


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--title", metavar="TEXT", help="a title; else the command line")


def _run(call: Call) -> int:
    command = call.arguments.rest
    if not command:
        raise Usage("what should be run? `backtrail record -- COMMAND …`")
    if shutil.which(command[0]) is None:
        if "/" in command[0] and Path(command[0]).exists():
            return _not_run(call, f"`{command[0]}` may not be executed", NOT_RUN)
        return _not_run(call, f"there is no command `{command[0]}`", NOT_THERE)
    from ..exchange.command import record
    from ..files.workspace.roots import refuse_broad
    from ..session.session import Session
    from ..session.uncaptured import KINDS, missing

    cwd = str(Path.cwd())
    refuse_broad(cwd)
    _refuse_volatile(call)
    place = root_here(call, cwd)
    with call.out.progress("reading files") as step:
        session = call.keep(
            Session.create(
                call.store,
                cwd=cwd,
                root=place.path,
                title=call.arguments.title or brief(shlex.join(command)),
                agent_name="record",
                metadata={"command": command, **place.refused()},
                on_error="record",
                progress=step,
            )
        )
        # The first look at the files takes long. From then on the terminal is the command's.
        session.checkpoint("before")
    _refuse_uncaptured(call, session)
    # With --json stdout holds one document, and nothing of the command's.
    try:
        done = record(session, command, cwd, stdout=2 if call.out.as_json else None)
    except NotFound as error:
        if not isinstance(error.__cause__, OSError):
            raise
        # It would be the latest session, with nothing in it.
        call.store.delete(session.id)
        is_gone = isinstance(error.__cause__, FileNotFoundError)
        return _not_run(call, str(error), NOT_THERE if is_gone else NOT_RUN)
    lost = [one.row for one in missing(session.events(kinds=KINDS))]
    _print(call, session, done, lost)
    return done.exit_code or (CONFLICT if lost else 0)


def _print(call: Call, session: Session, done: Recorded, lost: list[Row]) -> None:
    for problem in session.problems:
        call.out.note(f"backtrail: {problem.what}: {problem.detail}")
    if call.out.as_json:
        call.out.data(
            {
                "session": session.id,
                "exit_code": done.exit_code,
                "checkpoints": done.points,
                "not_captured": rows_json(lost),
            }
        )
    else:
        # What went wrong may be missing from the way back.
        back = "" if session.problems else f"; `{hint(call, 'undo')}` takes it back"
        call.out.note(f"recorded as {short(session.id)}{back}")
        for row in lost:
            call.out.note(f"backtrail: not captured: {row_line(row)}")


def _not_run(call: Call, why: str, code: int) -> int:
    call.out.failed("not_found", f"{why}; nothing was recorded")
    return code


def _refuse_volatile(call: Call) -> None:
    """As below, before anything is read: what ends with this process is no way back."""
    from ..stores.memory import MemoryStore
    from ..stores.opening import refuse_remote

    refuse_remote(call.settings.store, "the command was not run: `record` writes")
    if isinstance(call.store, MemoryStore):
        raise Usage(
            f"the command was not run, because nothing is left of `{call.store.url}` afterwards: "
            "name a store on disk with --store"
        )


def _refuse_uncaptured(call: Call, session: Session) -> None:
    """A command behind `record` is to have a way back: without one, it is not run."""
    missed = [problem.detail for problem in session.problems if problem.what == "not captured"]
    if not missed:
        return
    with suppress(StoreFailed):
        # It would be the latest session, with nothing in it. On a full disk it stays.
        call.store.delete(session.id)
    raise StoreFailed(f"the command was not run, because its way back is missing: {missed[0]}")


COMMANDS = {
    "record": Command(
        _options,
        _run,
        """backtrail record -- make all
        backtrail record --title "try the codemod" -- npx codemod src
        backtrail record -- bash""",
        "The command has the terminal and its signals, and its exit code is ours. There is a\n"
        "checkpoint before it, after it, and whenever its files have been quiet for a second.\n"
        "With --json what it prints goes to stderr.",
        rest="COMMAND",
    )
}
