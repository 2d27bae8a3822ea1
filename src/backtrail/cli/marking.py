"""`checkpoint`: a point of conversation and files to go back to."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from .call import Call
from .hints import hint, point_name
from .options import session_option
from .places import around, here
from .verbs import Command
from .wording import short

if TYPE_CHECKING:
    from ..session import Session


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("label", nargs="?", metavar="LABEL", help="a name to find it by")
    session_option(parser)
    parser.add_argument("--at", metavar="POINT", help="mark an earlier point instead of now")


def _run(call: Call) -> None:
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
    call.out.line(f"checkpoint {point.label or short(point.id)} at event {point.seq}, {what}")
    call.out.note(f"go back with: {back}")


def _session(call: Call) -> tuple[Session, bool]:
    """The session that is meant; where there is none in this folder, a new one."""
    from ..files.roots import refuse_broad
    from ..session import Session

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
        """,
        about="Works in any folder: where there is no session yet, one is begun.",
    )
}
