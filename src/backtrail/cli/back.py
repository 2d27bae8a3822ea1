"""Carrying out a way back: show it, ask, do it, report it, and notify the agent it concerns.

`rewind`, `undo`, `redo` and `restore` are the verbs, and `chat` has some of them.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from .._startup.frozen import dataclass
from ..errors import NotFound, Unsupported
from .advice import advise, decisions, hint
from .allow import allow_option, with_allowance
from .decide import asked_for, decide
from .numbers import Numbers
from .picker import choose, quoted
from .plan import SHOWN, lines_of, never_touched, row_line, show, why_unwatched
from .verbs import CONFLICT, NOT_DONE, NOT_FOUND, session_option, yes_option
from .wording import ago, brief, plural

if TYPE_CHECKING:
    from ..events import Event, Json
    from ..files.restore.conflicts import Decisions
    from ..session.fileplans import Scope
    from ..session.session import Session
    from ..session.views import Rewind
    from .call import Call


def may_act(call: Call) -> None:
    """An error at once where there is no person to ask and nothing says yes."""
    given = call.arguments
    if not (given.yes or given.dry_run or call.out.can_ask):
        call.confirm("")


def refuse_half(session: Session, scope: Scope | None) -> None:
    """An error where files should go back and cannot, and no preview shows it in time."""
    from ..session.filepoints import last_tree

    why = why_unwatched(session) if scope in ("both", None) else ""
    if why and last_tree(session.store, session.id) is not None:
        raise Unsupported(
            f"nothing was changed, because the files cannot go back: {why}\n"
            "`backtrail rewind POINT --scope conversation` goes back without them"
        )


@dataclass(frozen=True, slots=True)
class Deed:
    """A way back: what it is called, and what goes it; `scope` None: the person is asked.

    `go` takes the scope, whether it is only a preview, and what is decided on conflicts (None:
    what the arguments say).
    """

    verb: str
    would: str
    done: str
    what: Callable[[], str]
    go: Callable[[Scope, bool, Decisions | None], Rewind]
    scope: Scope | None = "both"
    back: Literal["undo", "redo"] = "undo"
    turn: int | None = None
    """The prompt of the one turn that is taken out."""
    asks: bool = True
    """Whether the person may decide on each conflict."""


def carry_out(call: Call, session: Session, deed: Deed) -> int:
    """Preview, ask which of both and about conflicts, act, and report.

    Where nothing is asked, nothing is previewed: a preview looks at all files.
    """
    out, scope, decided = call.out, deed.scope, None
    what = deed.what()
    if getattr(call.arguments, "dry_run", False):
        plan = deed.go(scope or "both", True, None)
        words = f"would {deed.would} {what}"
        return report(call, session, plan, words, scope or "both", messages(session), {}, deed.turn)
    if getattr(call.arguments, "yes", False):
        refuse_half(session, scope)
    else:
        plan = deed.go(scope or "both", True, None)
        why = why_unwatched(session) if scope != "conversation" else ""
        out.note(f"{deed.verb} {what}:")
        preview(call, session, plan, why)
        scope = _which(call, deed.verb, scope, bool(why))
        if scope is None:
            out.note("nothing was changed")
            return NOT_DONE
        decides = deed.asks and scope != "conversation" and asked_for(call) is None
        if plan.conflicts and decides:
            chosen_scope = scope
            decided = decide(
                call, session, plan, lambda choices: deed.go(chosen_scope, True, choices)
            )
    chosen = scope or "both"
    return act(call, session, chosen, f"{deed.done} {what}", deed.back,
               lambda: deed.go(chosen, False, decided), deed.turn)  # fmt: skip


def _which(call: Call, verb: str, scope: Scope | None, no_files: bool) -> Scope | None:
    """Which of conversation and files go back; None: neither."""
    if scope is not None or no_files:
        scope = scope or "conversation"
        what = "conversation and files" if scope == "both" else scope
        question = f"Rewind {what}?" if verb == "rewind" else f"{verb[0].upper()}{verb[1:]}?"
        return scope if call.confirm(question) else None
    question = "Rewind [b]oth, [c]onversation, [f]iles, or [n]othing?"
    words: tuple[Scope, ...] = ("both", "conversation", "files")
    answer = choose(call.out, question, words)
    return next((word for word in words if word == answer), None)


def preview(call: Call, session: Session, plan: Rewind, why_no_files: str) -> None:
    """Show what would be done, before the person is asked."""
    if plan.error is not None:
        raise NotFound(plan.error)
    lines = lines_of(plan, messages(session), why_no_files=why_no_files)
    show(call.out, lines, aside=True)
    if not why_no_files:
        show(call.out, never_touched(session, plan), aside=True)


def act(
    call: Call, session: Session, scope: Scope, words: str, back: Literal["undo", "redo"],
    go: Callable[[], Rewind], turn: int | None = None,
) -> int:  # fmt: skip
    """Do it, report it, and notify the agent it belongs to."""
    said, last = _said(session), _last_operation(session)
    result = with_allowance(call, go)
    if _last_operation(session) == last:
        words = "nothing was changed" if result.conflicts else "nothing to do: all is so already"
        return report(call, session, result, words, scope, len(said), {}, turn)
    more: dict[str, Json] = {back: hint(call, back, session=session.id)}
    failed = _hand_on(session, result, more, moved=_said(session) != said)
    code = report(call, session, result, words, scope, len(said), more, turn)
    if failed is not None:
        call.out.note(f"backtrail: this is done, but the agent's own session is not: {failed}")
    return code or (1 if failed is not None else 0)


def _hand_on(
    session: Session, result: Rewind, more: dict[str, Json], *, moved: bool
) -> Exception | None:
    """Let the agent that a session belongs to know; an error is for later: the rewind is done."""
    if not moved:
        return None
    from ..exchange.resume import hand_on

    native, failed = hand_on(session, result)
    if native is not None:
        more["native"] = {"id": native.id, "path": str(native.path)}
        more["resume"] = native.command
    if failed is not None:
        more["native_error"] = str(failed)
    return failed


def report(
    call: Call, session: Session, result: Rewind, words: str, scope: Scope, before: int,
    more: dict[str, Json] | None = None, turn: int | None = None,
) -> int:  # fmt: skip
    """Say what was done, or would be; the exit code shows whether something did not go back.

    `before` is how many messages there were.
    """
    more = more or {}
    kept = len(result.conflicts) if result.applied else 0
    ways = decisions(call, session, result, turn) if kept else []
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
            call.out.note(f"  {row_line(one)}")
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


def place_of(session: Session, target: Event, *, before: bool) -> str:
    """A point in words: by the number of its prompt, or its label; an event has its number else."""
    numbers = Numbers(session.store, session.id)
    place, name = f"event {target.seq}", target.data.get("name")
    if target.kind == "user_message":
        number = numbers.had(target.seq)
        place = f"{place if number is None else f'prompt {number}'}, {quoted(target)}"
    elif target.kind == "checkpoint":
        label = target.data.get("label")
        place = f'the checkpoint "{brief(label, 60)}"' if isinstance(label, str) else place
    elif target.kind in ("tool_result", "action") and isinstance(name, str):
        number = numbers.had(target.seq)
        of = "" if number is None else f" of prompt {number}"
        place = f"{brief(name, 60)}{of} ({ago(target.ts)})"
    return f"{'before ' if before else ''}{place}"


# --- options -


def common_options(parser: ArgumentParser) -> None:
    """The arguments that every way back has."""
    session_option(parser)
    parser.add_argument(
        "--on-conflict",
        choices=("keep", "merge", "aside", "overwrite"),
        help="what to do with files that others changed too (default: you are asked; without "
        "asking, they are kept)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what it would do")
    parser.add_argument(
        "--force",
        action="store_true",
        help="go back though a call is under way in that folder (default: refused, exit code 5)",
    )
    yes_option(parser)
    allow_option(parser)


def mode_option(parser: ArgumentParser) -> None:
    """Whether to take changes back, or to make the files equal to a point."""
    parser.add_argument(
        "--mode",
        choices=("mine", "exact"),
        default="mine",
        help="mine: take back what this session changed (default); exact: make the files "
        "equal to that point, whoever changed them",
    )
