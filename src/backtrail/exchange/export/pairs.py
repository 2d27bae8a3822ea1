"""Calls and what came of them: answers, hooks' actions and subagents at the call. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ..._startup.frozen import replace
from ...formats.parts import Answer
from .step import Call, Step, Subagent


def paired(
    steps: list[Step], start: Callable[[str], Subagent | None], known: Collection[str] = (),
    *, main: bool,
) -> list[Step]:  # fmt: skip
    """The steps of a turn, with answers and subagents at the calls of its messages.

    A hook records what a call did as an action of its own; it is folded into the call. `known` are
    the calls of all messages of the session.
    """
    calls: dict[str, tuple[int, int]] = {}
    answered: dict[tuple[int, int], tuple[Answer, int]] = {}
    found = list(steps)
    waiting: dict[str, tuple[int, int]] = {}
    for at, step in enumerate(steps):
        if step.kind == "action":
            continue
        for n, part in enumerate(step.parts):
            if isinstance(part, Call):
                calls[part.id] = waiting[part.id] = at, n
        placed = [(waiting.pop(one.call_id, None), one) for one in step.answers]
        loose = tuple(one for place, one in placed if place is None)
        own = bool(step.parts or loose or step.sentence)
        anchor = 0 if own or not main else step.seq
        for place, one in placed:
            if place is not None:
                answered[place] = one, anchor
                own, anchor = own or bool(anchor), 0
        found[at] = replace(step, loose=loose, at=step.seq if own else 0)
    for at, step in enumerate(steps):
        if step.kind == "action" and step.calls:
            found[at] = _acted(step, calls, answered, found, known, main=main)
    for at, step in enumerate(found):
        if step.calls and not step.folded:
            parts = [
                _completed(part, answered.get((at, n)), start) if isinstance(part, Call) else part
                for n, part in enumerate(step.parts)
            ]
            found[at] = replace(step, parts=tuple(parts))
    return found


def _acted(
    step: Step, calls: Mapping[str, tuple[int, int]],
    answered: dict[tuple[int, int], tuple[Answer, int]], found: Sequence[Step],
    known: Collection[str], *, main: bool,
) -> Step:  # fmt: skip
    """An action, folded into the call that it carried out if a message of the turn has that."""
    (call,) = step.calls
    place = calls.get(call.id) if call.id else None
    if place is None:
        # What a turn did without any call has its files only, and so has a part of a call.
        is_shown = step.part or call.id in known or (call.name == "turn" and call.answer is None)
        return replace(step, at=0) if is_shown else step
    if call.answer is None or place in answered:
        return replace(step, folded=True, at=found[place[0]].seq)
    answered[place] = call.answer, step.seq if main else 0
    return replace(step, folded=True)


def _completed(
    call: Call, given: tuple[Answer, int] | None, start: Callable[[str], Subagent | None]
) -> Call:
    """A call with its answer and the subagent that it started."""
    found, anchor = given or (call.answer, 0)
    agent = start(call.id) if call.id else None
    return replace(call, answer=found, anchor=anchor, subagent=agent)
