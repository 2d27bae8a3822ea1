"""Carrying out a way back: show it, do it, say what was done, and tell the agent it concerns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ..errors import BacktrailError, NotFound, Unsupported
from .advice import advise, decisions
from .allow import with_allowance
from .hints import hint
from .plan import lines_of, never_touched, show, why_unwatched
from .uncaptured import SHOWN, told
from .wording import plural

if TYPE_CHECKING:
    from ..events import Json
    from ..session.filepoints import Scope
    from ..session.session import Session
    from ..session.views import Rewind
    from .call import Call

NOT_DONE = 1
"""The exit code where a person said no."""

NOT_FOUND = 3
"""The exit code where a content is not there any more."""

CONFLICT = 4
"""The exit code where something was kept from going back."""


def may_act(call: Call) -> None:
    """An error at once where nobody can be asked and nothing says yes."""
    given = call.arguments
    if not (given.yes or given.dry_run or call.out.can_ask):
        call.confirm("")


def refuse_half(session: Session, scope: Scope | None) -> None:
    """An error where files should go back and cannot, and nobody would see it in time."""
    from ..session.filepoints import last_tree

    why = why_unwatched(session) if scope in ("both", None) else ""
    if why and last_tree(session.store, session.id) is not None:
        raise Unsupported(
            f"nothing was changed, because the files cannot go back: {why}\n"
            "`backtrail rewind POINT --scope conversation` goes back without them"
        )


def preview(call: Call, session: Session, plan: Rewind, why_no_files: str) -> None:
    """Show what would be done, before somebody is asked."""
    if plan.error is not None:
        raise NotFound(plan.error)
    lines = lines_of(plan, messages(session), why_no_files=why_no_files)
    show(call.out, lines, aside=True)
    if not why_no_files:
        show(call.out, never_touched(session, plan), aside=True)


def act(
    call: Call, session: Session, scope: Scope, words: str, back: Literal["undo", "redo"],
    go: Callable[[], Rewind],
) -> int:  # fmt: skip
    """Do it, tell it, and tell the agent it belongs to."""
    said, last = _said(session), _last_operation(session)
    result = with_allowance(call, go)
    if _last_operation(session) == last:
        words = "nothing was changed" if result.conflicts else "nothing to do: all is so already"
        return tell(call, session, result, words, scope, len(said))
    more: dict[str, Json] = {back: hint(call, back, session=session.id)}
    failed = _hand_on(session, result, more, moved=_said(session) != said)
    code = tell(call, session, result, words, scope, len(said), more)
    if failed is not None:
        call.out.note(f"backtrail: this is done, but the agent's own session is not: {failed}")
    return code or (1 if failed is not None else 0)


def _hand_on(
    session: Session, result: Rewind, more: dict[str, Json], *, moved: bool
) -> Exception | None:
    """Let the agent that a session belongs to know; an error is for later: the rewind is done."""
    from .resume import is_foreign, told, written

    if not (moved and is_foreign(session.info())):
        return None
    try:
        native = written(session)
        more["native"] = {"id": native.id, "path": str(native.path)}
        more["resume"] = native.command
        return None
    except (BacktrailError, OSError) as error:
        more["native_error"] = str(error)
        failed: Exception = error
    try:
        if result.files_changed:
            # The agent's old session goes on as this one, with words that are not in its history.
            told(session, result.files_changed)
    except (BacktrailError, OSError) as error:
        failed, more["native_error"] = error, str(error)
    return failed


def tell(
    call: Call, session: Session, result: Rewind, words: str, scope: Scope, before: int,
    more: dict[str, Json] | None = None,
) -> int:  # fmt: skip
    """Say what was done, or would be; the exit code tells of what did not go back.

    `before` is how many messages there were.
    """
    more = more or {}
    kept = len(result.conflicts) if result.applied else 0
    ways = decisions(call, session, result) if kept else []
    lost = result.not_captured
    code = CONFLICT if kept or (lost and result.applied) else 0
    code = NOT_FOUND if result.error is not None else code
    if call.out.as_json:
        row = {"session": session.id, "scope": scope, "undo": None, **result.to_dict(), **more}
        row["decide"] = [way.command for way in ways if way.command]
        call.out.data(row)
        return code
    call.out.line(words, "bold")
    why = why_unwatched(session) if scope != "conversation" else ""
    show(call.out, lines_of(result, before, why_no_files=why))
    if result.error is not None:
        call.out.note(f"backtrail: this would be refused: {result.error}")
    if kept:
        advise(call, result.conflicts, ways)
    if not result.applied and scope != "conversation" and not why:
        show(call.out, never_touched(session, result), aside=True)
    if lost:
        stays = "not taken back" if result.applied else "would not be taken back"
        call.out.note(f"{stays}, since it was not captured: {plural(len(lost), 'path')}")
        for one in lost[:SHOWN]:
            call.out.note(f"  {told(one)}")
        if len(lost) > SHOWN:
            call.out.note(f"  … and {len(lost) - SHOWN} more; --json lists all")
    if "resume" in more:
        call.out.line(f"go on in the agent with: {more['resume']}")
    for back in ("undo", "redo"):
        if back in more:
            call.out.line(f"take it back with: {more[back]}")
    return code


def _said(session: Session) -> list[int]:
    """The messages of the history, by number."""
    from ..events import MESSAGE_KINDS

    return [event.seq for event in session.history() if event.kind in MESSAGE_KINDS]


def messages(session: Session) -> int:
    """How many messages a session has."""
    return session.info().message_count


def _last_operation(session: Session) -> int:
    kinds = ("rewound", "undone", "redone")
    return next((event.seq for event in session.events(reverse=True, kinds=kinds)), 0)
