"""Conflicts: what may be done with a path that somebody else changed as well.

*keep* leaves it. *merge* takes the session's change out of it, where that leaves no
question open. *aside* writes the earlier content beside it. *overwrite* lets the past win;
what was there is stored, so `undo` gives it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from .names import beside, shown
from .plan import Plan, Step, step_to
from .trees import Entry, Get, digest_of, look_up

OnConflict = Literal["keep", "merge", "aside", "overwrite"]
"""What to do with a path that somebody else changed as well."""

Put = Callable[[bytes], bytes]
"""Stores a content and returns its digest."""

_BINARY = b"\0"


def resolve(get: Get, put: Put, plan: Plan, choice: OnConflict, suffix: str) -> Plan:
    """The plan with its conflicts decided; those that cannot be stay conflicts."""
    steps: list[Step] = []
    taken = {step.path for step in plan.steps}
    for step in plan.steps:
        if step.action != "conflict" or choice == "keep":
            steps.append(step)
        elif choice == "overwrite":
            decided = step_to(step.path, step.before, step.after)
            steps.append(replace(decided, reason=step.reason, uncertain=step.uncertain))
        elif choice == "merge":
            steps.append(_merged(get, put, step))
        else:
            steps.extend(_aside(get, plan, taken, step, suffix))
    return replace(plan, steps=steps)


def _merged(get: Get, put: Put, step: Step) -> Step:
    ours, theirs, base = step.before, step.after, step.base
    if not (_is_file(ours) and _is_file(theirs) and _is_file(base)):
        return replace(step, reason=f"{step.reason}; not a file on all sides, so no merge")
    assert ours is not None and theirs is not None and base is not None
    content = merge(get(base.value), get(ours.value), get(theirs.value))
    if content is None:
        return replace(step, reason=f"{step.reason}; the changes overlap, so no merge")
    mode = theirs.mode if ours.mode == base.mode else ours.mode
    after = Entry("file", mode, len(content), digest_of(content))
    if after == ours:
        return replace(step, action="skip", after=ours, reason="merged: nothing to take out")
    put(content)
    return replace(step, action="merge", after=after)


def merge(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """A three-way merge by lines; None if it leaves a question open, or is no text."""
    if _BINARY in base or _BINARY in ours or _BINARY in theirs:
        return None
    from merge3 import Merge3

    def lines_of(text: bytes) -> list[str]:
        return text.decode("latin-1").splitlines(keepends=True)

    merged = Merge3(lines_of(base), lines_of(ours), lines_of(theirs))
    lines: list[str] = []
    for group in merged.merge_groups():
        if group[0] == "conflict":
            return None
        lines.extend(group[1])
    return "".join(lines).encode("latin-1")


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


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "file"
