"""The outcome of a plan must be a tree: what depends on a path that stays is held back.

A directory does not go before all in it goes, nothing comes into what is no directory, and
of a move either both ends are taken back or none. Pure, and without recursion: directories
may lie deeper than Python calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..changes.effects import Conflict
from ..names import shown
from ..trees import UNREADABLE, Get, Present, alike
from .moves import NOWHERE, Local, with_moves
from .plan import Action, Plan, Step


def settled(
    get: Get, plan: Plan, moves: Mapping[bytes, set[bytes]] | None = None,
    local: Local = NOWHERE,
) -> Plan:  # fmt: skip
    """Hold back what depends on a path that stays.

    `moves` has each name of a file that was renamed, with the others next to it.
    """
    present = Present(get, plan.now)
    plan, ends = with_moves(get, present, plan, local)
    names = {**_families(moves or {}), **ends}
    ordered = sorted(plan.steps, key=lambda step: step.path)
    steps = {step.path: _said(step) for step in ordered}
    staying: dict[bytes, bytes] = {}
    while _hold_up(present, steps, names) | _hold_down(present, steps, staying):
        pass
    ready = list(steps.values())
    return replace(plan, steps=ready, opened=_locked(present, ready))


def _said(step: Step) -> Step:
    """The step, a conflict where nobody can look: what is there was captured, or would be."""
    if step.action != "skip" or step.before is None or alike(step.before, step.after):
        return step
    if step.before.kept or not step.before.value.startswith(UNREADABLE):
        return step
    why = step.before.value.decode("utf-8", "replace")
    reason = f"{why}; allow it (`chmod u+rwx`), and go back again"
    return replace(step, action="conflict", reason=reason, code="held")


def _hold_up(present: Present, steps: dict[bytes, Step], names: Mapping[bytes, set[bytes]]) -> bool:
    """Hold back what has no place to come to, parents before children; whether any was."""
    held = False
    for path, step in steps.items():
        if not step.acts:
            continue
        reason = _impossible(present, steps, step)
        if not reason:
            others = [steps[name] for name in names.get(path, ()) if name in steps]
            if any(other.action == "conflict" for other in others):
                reason = "the other end of its move stays"
        if reason:
            steps[path] = replace(step, action="conflict", reason=reason, code="held")
            held = True
    return held


def _families(moves: Mapping[bytes, set[bytes]]) -> dict[bytes, set[bytes]]:
    """All names that a file had, for each of them: it may have moved more than once."""
    found: dict[bytes, set[bytes]] = {}
    for first in moves:
        if first in found:
            continue
        family, open_ends = {first}, [first]
        while open_ends:
            new = moves.get(open_ends.pop(), set()) - family
            family |= new
            open_ends += new
        found |= dict.fromkeys(family, family)
    return found


def _hold_down(present: Present, steps: dict[bytes, Step], staying: dict[bytes, bytes]) -> bool:
    """Hold back directories that something stays in, children before parents.

    `staying` tells for a directory that was held what stays in it.
    """
    held = False
    for path in reversed(steps):
        step = steps[path]
        stays = _staying_in(present, steps, step, staying) if step.acts else None
        if stays is not None:
            action: Action = "skip" if step.after is None else "conflict"
            reason = f"holds {shown(stays)}, which stays"
            code: Conflict = "held" if action == "conflict" else ""
            steps[path] = replace(step, action=action, reason=reason, code=code)
            staying[path] = stays
            held = True
    return held


def _impossible(present: Present, steps: Mapping[bytes, Step], step: Step) -> str:
    """Why something cannot come where the plan wants it."""
    parent = step.path.rpartition(b"/")[0]
    if step.after is None or not parent:
        return ""
    above = steps.get(parent)
    if above is None:
        there = present.at(parent)
    else:
        there = above.after if above.acts else above.before
    if there is None or there.kind != "directory":
        return f"{shown(parent)} is not a directory"
    return ""


def _staying_in(
    present: Present, steps: Mapping[bytes, Step], step: Step, staying: Mapping[bytes, bytes]
) -> bytes | None:
    """What is in a directory to go, and would not go with it."""
    if step.before is None or step.before.kind != "directory":
        return None
    if step.after is not None and step.after.kind == "directory":
        return None
    for name in present.names(step.before):
        path = step.path + b"/" + name
        other = steps.get(path)
        if other is None or not other.acts or other.after is not None:
            return staying.get(path, path)
    return None


def _locked(present: Present, steps: Iterable[Step]) -> list[tuple[bytes, int]]:
    """The directories in which the plan changes names, but nobody may write."""
    seen: set[bytes] = set()
    found: dict[bytes, int] = {}
    for step in steps:
        above = step.path.rpartition(b"/")[0] if step.acts else b""
        while above and above not in seen:
            seen.add(above)
            there = present.at(above)
            if there and there.kind == "directory" and there.mode & 0o700 != 0o700:
                found[above] = there.mode
            above = above.rpartition(b"/")[0]
    return sorted(found.items())
