"""What is not captured and in another place than it shall be: planned as moves. Pure.

A thing that a call only moved goes back by one rename, onto a free name. What is in the way
of a file that comes back, and is not captured itself, is put aside under a name that the
plan says. Nothing here ever deletes what the store does not have.
"""

from __future__ import annotations

from dataclasses import replace

from .control import control_in
from .ignore import MOUNTED, OUR_STORE
from .marks import plain, thing_at
from .names import beside, shown
from .plan import Plan, Step, step_to
from .trees import Entry, Get, Present, alike, flatten

ASIDE = b".aside"


def with_moves(get: Get, present: Present, plan: Plan) -> tuple[Plan, dict[bytes, bytes]]:
    """The plan with its moves, and both ends of each, either to the other."""
    moves = _Moves(get, present, plan)
    for step in plan.steps:
        if step.action == "skip" and _is_left_out(step.before):
            moves.back(step)
    for step in plan.steps:
        if moves.steps[step.path] is step and step.action == "skip" and _is_in_the_way(step):
            moves.aside(step)
    if not moves.ends:
        return plan, {}
    return replace(plan, steps=list(moves.steps.values())), moves.ends


class _Moves:
    """The steps of one plan, with moves among them."""

    def __init__(self, get: Get, present: Present, plan: Plan) -> None:
        self._get = get
        self._present = present
        self.steps = {step.path: step for step in plan.steps}
        self.ends: dict[bytes, bytes] = {}
        self._homes = {
            thing_at(step.path, step.after): step
            for step in plan.steps
            if step.action == "skip" and _is_left_out(step.after) and step.after is not None
            and not _is_left_out(step.before)
        }  # fmt: skip

    def back(self, step: Step) -> None:
        """Move a thing to where it was, if it was somewhere else."""
        assert step.before is not None
        thing = thing_at(step.path, step.before)
        home = self._homes.get(thing)
        if home is None or home.after is None or home.after.kind != step.before.kind:
            return
        if _is_left_out(step.after) or home.path.startswith(step.path + b"/"):
            return
        if control_in(home.path) and not control_in(thing):
            # What a tree from elsewhere says must not make a repository of anything.
            return
        reason = f"from {shown(step.path)}"
        self._add(replace(home, action="move", reason=reason, source=step.path), step)
        if home.before is not None and home.before.kind == "directory":
            for path, entry in flatten(self._get, home.before.value, home.path + b"/"):
                self.steps.setdefault(path, step_to(path, entry, None))

    def aside(self, step: Step) -> None:
        """Put what is in the way beside its place."""
        assert step.before is not None

        def is_free(path: bytes) -> bool:
            return path not in self.steps and self._present.at(path) is None

        name = beside(step.path, ASIDE, is_free)
        reason = f"put aside, in the way of {shown(step.path)}: {_text(step.before)}"
        self._add(Step(name, "move", None, step.before, reason, source=step.path), step)

    def _add(self, move: Step, step: Step) -> None:
        """A move, and what becomes of the path that it leaves."""
        self.steps[move.path] = move
        if step.after is None:
            left = replace(step, action="move", reason=f"to {shown(move.path)}")
        else:
            left = replace(step_to(step.path, None, step.after), uncertain=step.uncertain)
        self.steps[step.path] = left
        self.ends[move.path], self.ends[step.path] = step.path, move.path
        if step.after is not None and step.after.kind == "directory":
            for path, entry in flatten(self._get, step.after.value, step.path + b"/"):
                self.steps.setdefault(path, step_to(path, None, entry))


def _is_left_out(entry: Entry | None) -> bool:
    return entry is not None and not entry.kept


def _is_in_the_way(step: Step) -> bool:
    """Whether what is not captured is where something captured shall be.

    What is in an opaque directory may be what was captured before: it stays where a
    directory is wanted, unless it is known to come from another place.
    """
    if step.before is None or step.before.kept or step.after is None or not step.after.kept:
        return False
    if plain(step.before.value) in (MOUNTED, OUR_STORE) or alike(step.before, step.after):
        return False
    is_other = step.before.kind == "skipped" or thing_at(step.path, step.before) != step.path
    return step.after.kind != "directory" or is_other


def _text(entry: Entry) -> str:
    return plain(entry.value).decode("utf-8", "replace")
