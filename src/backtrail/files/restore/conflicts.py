"""Conflicts: what may be done with a path that others changed as well.

*keep* leaves it. *merge* takes the session's changes out of it, newest first, where that
leaves no question open. *aside* writes the earlier content beside it. *overwrite* lets the
past win; what was there is stored, so `undo` gives it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ..._startup.frozen import replace
from ...errors import Damaged, NotFound
from ..changes.effects import Own
from ..names import beside, shown
from ..trees import Entry, Get, alike, digest_of, look_up
from .merge import is_binary, subtract
from .plan import ALREADY, Plan, Step, step_to

OnConflict = Literal["keep", "merge", "aside", "overwrite"]
"""What to do with a path that others changed as well."""

Decisions = OnConflict | Mapping[str, OnConflict]
"""The same for every path, or path by path, as a plan shows them; one that is not named is kept."""

GONE = "it is not there now"
"""Why nothing can be taken out of a path where nothing is."""

FOLDER = "it is a folder now"
"""Why nothing can be taken out of a path that was made a directory."""

_KINDS = {"link": "it is a link now", "directory": FOLDER}

Put = Callable[[bytes], bytes]
"""Stores a content and returns its digest."""


def resolve(
    get: Get, put: Put, plan: Plan, decisions: Decisions, suffix: str,
    taken: Mapping[bytes, Sequence[Own]], otherwise: OnConflict = "keep",
) -> Plan:  # fmt: skip
    """The plan with its conflicts decided; those that cannot be stay conflicts.

    `taken` are the changes of each path that are to go.
    """
    steps: list[Step] = []
    names = {step.path for step in plan.steps}
    for step in plan.steps:
        choice = decided(decisions, step.path, otherwise) if step.action == "conflict" else "keep"
        if choice == "keep":
            steps.append(step)
        elif choice == "overwrite":
            wanted = step_to(step.path, step.before, step.after)
            steps.append(replace(wanted, reason=step.reason, uncertain=step.uncertain))
        elif choice == "merge":
            steps.append(_merged(get, put, step, taken.get(step.path, ())))
        else:
            steps.extend(_aside(get, plan, names, step, suffix))
    return replace(plan, steps=steps)


def decided(decisions: Decisions, path: bytes, otherwise: OnConflict) -> OnConflict:
    """What is to be done with a path that is in conflict."""
    return decisions if isinstance(decisions, str) else decisions.get(shown(path), otherwise)


def _merged(get: Get, put: Put, step: Step, taken: Sequence[Own]) -> Step:
    """The step that takes the changes out of the file as it is, newest first."""
    found = _subtracted(get, step.before, taken)
    if isinstance(found, str):
        reason = f"{step.reason}; {found}, so no merge"
        return replace(step, reason=reason, no_merge=found)
    content, mode = found
    after = Entry("file", mode, len(content), digest_of(content))
    if alike(after, step.before):
        return replace(step, action="skip", after=step.before, reason=ALREADY, code="")
    put(content)
    return replace(step, action="merge", after=after, code="")


def _subtracted(get: Get, there: Entry | None, taken: Sequence[Own]) -> tuple[bytes, int] | str:
    """The content and mode without some changes; else why that cannot be said."""
    if there is None:
        return GONE
    if there.kind != "file":
        return _KINDS.get(there.kind, "it is not captured now")
    for own in taken:
        if own.shared:
            return "another session may have written part of it"
        if own.uncertain or own.doubtful:
            return "a person may have saved part of it"
        if own.before is None or own.after is None:
            return f"the session {'created' if own.before is None else 'deleted'} it"
        if not own.before.kind == own.after.kind == "file":
            return "it was no file all the time"
    try:
        content, mode = get(there.value), there.mode
        for own in reversed(taken):
            assert own.before is not None and own.after is not None
            left, found = get(own.after.value), get(own.before.value)
            if is_binary(content, left, found):
                return "it is not text"
            if own.before.mode != own.after.mode and mode != own.before.mode:
                if mode != own.after.mode:
                    return "both changed its mode"
                mode = own.before.mode
            less = subtract(left, found, content)
            if less is None:
                return "the changes overlap"
            content = less
    except (NotFound, Damaged):
        return "a content of it is not in the store any more"
    return content, mode


def _aside(get: Get, plan: Plan, taken: set[bytes], step: Step, suffix: str) -> list[Step]:
    """The conflict, and a step that writes what was wanted beside it, under a free name."""
    if step.after is None or step.after.kind == "directory":
        what = "a directory" if step.after else "nothing"
        return [replace(step, reason=f"{step.reason}; {what} was there then, so none is beside it")]
    name = beside(
        step.path, b"." + suffix.encode(),
        lambda path: path not in taken and look_up(get, plan.now, path) is None,
    )  # fmt: skip
    taken.add(name)
    reason = f"beside {shown(step.path)}"
    return [step, replace(step_to(name, None, step.after), reason=reason)]
