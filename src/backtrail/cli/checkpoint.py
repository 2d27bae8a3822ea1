"""`checkpoint`: a point of conversation and files to go back to."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from ..errors import NotFound
from .advice import hint, point_name
from .allow import refuse_agents
from .call import Call
from .nearby import around, here
from .numbers import Numbers
from .output import clean
from .verbs import NOT_DONE, Command, Usage, session_option, yes_option
from .wording import short

if TYPE_CHECKING:
    from ..session.session import Session


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("label", nargs="?", metavar="LABEL", help="a name to find it by")
    session_option(parser)
    parser.add_argument("--at", metavar="POINT", help="mark an earlier point instead of now")
    parser.add_argument("--delete", metavar="POINT", help="delete a checkpoint: its label or id")
    yes_option(parser)


def _run(call: Call) -> int:
    given = call.arguments
    if given.delete is not None:
        if given.label is not None or given.at is not None:
            raise Usage("--delete names the checkpoint itself: give no LABEL and no --at")
        return _delete(call)
    _mark(call)
    return 0


def _delete(call: Call) -> int:
    """Delete a checkpoint; what is in it stays in the log."""
    refuse_agents(call, "checkpoint --delete")
    session = call.session(call.arguments.session)
    event = call.point(session, call.arguments.delete)
    if event.kind != "checkpoint":
        raise NotFound(f"event {event.seq} of session `{session.id}` is no checkpoint")
    name = event.data.get("label") or short(event.id)
    if not call.confirm(f"Delete the checkpoint {clean(str(name))}?"):
        call.out.note("nothing was deleted")
        return NOT_DONE
    point = session.delete_checkpoint(event)
    if call.out.as_json:
        call.out.data({"session": session.id, "deleted": point.to_dict()})
    else:
        call.out.line(f"deleted checkpoint {clean(str(name))} of event {point.seq}")
        call.out.note("what only it kept of the files goes with the next collection")
    return 0


def _mark(call: Call) -> None:
    session, is_new = _session(call)
    at = None if call.arguments.at is None else call.point(session, call.arguments.at)
    point = session.checkpoint(call.arguments.label, at=at)
    problems = [problem.detail for problem in session.problems]
    exact = ("--mode", "exact") if is_new else ()
    back = hint(call, "rewind", point_name(call, session, point), *exact, session=session.id)
    if call.out.as_json:
        row = {**point.to_dict(), "created_session": is_new, "problems": problems, "rewind": back}
        call.out.data(row)
        return
    if is_new:
        call.out.note(f"no session here yet, so one was begun: {short(session.id)}")
    for problem in problems:
        call.out.note(f"files: {problem}")
    what = "conversation and files" if point.tree else "conversation only"
    place = Numbers(call.store, session.id).place(point.seq)
    call.out.line(f"checkpoint {point.label or short(point.id)} at {place}, {what}")
    call.out.note(f"go back with: {back}")


def _session(call: Call) -> tuple[Session, bool]:
    """The session that is meant; where there is none in this folder, a new one."""
    from ..files.workspace.roots import refuse_broad
    from ..session.session import Session

    if call.arguments.session is not None or call.arguments.at is not None:
        return call.session(call.arguments.session), False
    if around(call.store)[1] is not None:
        return call.session(), False
    folder = here()
    refuse_broad(str(folder))
    made = Session.create(call.store, cwd=folder, title=folder.name, progress=call.reading())
    return call.keep(made), True


COMMANDS = {
    "checkpoint": Command(
        _options,
        _run,
        """
        backtrail checkpoint
        backtrail checkpoint "before the rewrite"
        backtrail checkpoint good --at @-1
        backtrail checkpoint --delete good
        """,
        about="Works in any folder: where there is no session yet, one is begun.",
    )
}
