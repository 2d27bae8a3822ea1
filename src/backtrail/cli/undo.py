"""`undo` and `redo`: the last turn or rewind is taken back, and done again."""

from __future__ import annotations

from argparse import ArgumentParser
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ..errors import NotFound
from ..events.operations import KEPT
from .advice import hint
from .back import Deed, carry_out, common_options, may_act, place_of
from .decide import asked_for
from .picker import quoted
from .verbs import CONFLICT, SESSION, Command, Usage
from .wording import ago

if TYPE_CHECKING:
    from ..events import SessionInfo
    from ..events.operations import Operation, Operations
    from ..files.restore.conflicts import Decisions
    from ..session.fileplans import Scope
    from ..session.session import Session
    from ..session.views import Rewind
    from .call import Call


def undo(call: Call) -> int:
    """Take back the last turn or rewind."""
    from ..session.points import read_operations

    info = _chosen(call)
    known = read_operations(call.store, info.id)
    if not (known.done or _finishes(call, known)):
        raise NotFound(
            f"session `{info.id}` has nothing to undo: `backtrail ls` lists the others of "
            "this folder, and `backtrail undo SESSION` names one"
        )
    may_act(call)
    session = call.session(call.arguments.session)
    if _is_finished(call, "undone"):
        known = read_operations(session.store, session.id)
        if not _finishes(call, known):
            return _report(call, session, "took back", known.undone[-1], "redo")
    return take_back(call, session, "undo")


def redo(call: Call) -> int:
    """Do again what was undone."""
    from ..session.points import read_operations

    info = _chosen(call)
    if not read_operations(call.store, info.id).undone:
        raise NotFound(
            f"session `{info.id}` has nothing to redo: only what `backtrail undo` took back can be "
            "done again, until something new is said or done"
        )
    may_act(call)
    session = call.session(call.arguments.session)
    if _is_finished(call, "redone"):
        known = read_operations(session.store, session.id)
        return _report(call, session, "did again", known.done[-1], "undo")
    return take_back(call, session, "redo")


def _is_finished(call: Call, kind: str) -> bool:
    """Whether a crash had cut this very operation short, and it is done now.

    The same command, given again, means that one, and not another one as well.
    """
    return call.finished is not None and call.finished.kind == kind


def _report(
    call: Call, session: Session, done: str, what: Operation, back: Literal["undo", "redo"]
) -> int:
    """Report an operation that was finished when the session was opened."""
    assert call.finished is not None
    names = call.finished.data.get(KEPT)
    kept = names if isinstance(names, list) else []
    way = hint(call, back, session=session.id)
    if call.out.as_json:
        row = {"event": call.finished.seq, "kind": call.finished.kind, "kept": kept}
        call.out.data({"session": session.id, "finished": row, back: way})
    else:
        call.out.line(f"{done} {_operation(session, what)}", "bold")
        for name in kept:
            call.out.line(f"  kept {name}")
        call.out.line(f"take it back with: {way}")
    return CONFLICT if kept else 0


def take_back(call: Call, session: Session, verb: Literal["undo", "redo"]) -> int:
    """Carry out an undo or redo."""
    from ..session.points import read_operations

    choice = asked_for(call) or "keep"
    force: bool = getattr(call.arguments, "force", False)
    take = session.undo if verb == "undo" else session.redo

    def go(_: Scope, dry_run: bool, decided: Decisions | None) -> Rewind:
        return take(on_conflict=decided or choice, dry_run=dry_run, force=force)

    def what() -> str:
        return _described(call, session, verb)

    # Behind an undo that kept something, a decision is about that one and no other.
    asks = read_operations(session.store, session.id).unfinished is None
    deed = (
        Deed(verb, "take back", "took back", what, go, back="redo", asks=asks)
        if verb == "undo"
        else Deed(verb, "do again", "did again", what, go, asks=asks)
    )
    return carry_out(call, session, deed)


def _finishes(call: Call, known: Operations) -> bool:
    """Whether an undo goes on with the last one, which kept something."""
    return known.unfinished is not None and asked_for(call) not in (None, "keep")


def _described(call: Call, session: Session, verb: Literal["undo", "redo"]) -> str:
    """What the next undo or redo is about, in words."""
    from ..session.points import read_operations

    known = read_operations(session.store, session.id)
    finishes = verb == "undo" and _finishes(call, known)
    last: Operation = (known.undone if verb == "redo" or finishes else known.done)[-1]
    what = _operation(session, last)
    return f"what was kept of {what}" if finishes else what


def _operation(session: Session, last: Operation) -> str:
    """A turn or rewind, in words."""
    from ..events.operations import TURN
    from ..session.points import find_event

    event = find_event(session.store, session.id, last.seq)
    when = ago(event.ts)
    if last.kind == "user_message":
        return f"the turn {quoted(event)} ({when})"
    scope = event.data.get("scope")
    of = f" of {scope}" if scope in ("files", "conversation") else ""
    place = f"to event {event.data.get('to')}"
    # What came from elsewhere may name anything.
    with suppress(NotFound):
        if isinstance(event.data.get(TURN), int):
            target = find_event(session.store, session.id, event.data[TURN])
            return f"the taking out of {place_of(session, target, before=False)} ({when})"
        if isinstance(event.data.get("target"), int):
            target = find_event(session.store, session.id, event.data["target"])
            place = f"to {place_of(session, target, before=event.data.get('before') is True)}"
    return f"the rewind{of} {place} ({when})"


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("which", nargs="?", metavar="SESSION", help=SESSION)
    common_options(parser)


def _chosen(call: Call) -> SessionInfo:
    """The session, named as an argument or by `--session`."""
    given = call.arguments
    if given.which is not None and given.session is not None:
        raise Usage("name the session once: as SESSION, or by `--session`")
    given.session = given.session or given.which
    return call.find(given.session)


COMMANDS: dict[str, Command] = {
    "undo": Command(
        _options,
        undo,
        """
        backtrail undo                take back the last turn, or the last rewind
        backtrail undo --dry-run      what would that do?
        backtrail undo --yes
        backtrail undo 01a1e25a-8983  of a session, as `backtrail ls` lists it
        """,
        "Again and again it walks further back; `backtrail redo` walks forward. Directly after an\n"
        "undo that kept files, `--on-conflict` with another choice decides on these alone.",
    ),
    "redo": Command(
        _options,
        redo,
        """
        backtrail redo
        backtrail redo --dry-run
        """,
        "Only directly after `undo`: once something new is said or done, there is no redo.\n"
        "Files that a rewind kept, and that are in conflict still, are said again (exit code 4);\n"
        "`--on-conflict` decides on them.",
    ),
}
