"""Plans: what a restore would do, path by path. Pure data; preview and act share it.

Mode *mine* takes back what one session changed after a point and leaves the work of
others alone. Mode *exact* makes the workspace equal to a tree. Both compare the tree of the
present state, which is stored already, with what is wanted; neither looks at the disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from ..._startup.frozen import dataclass, field, replace
from ...errors import Damaged, NotFound, Unsafe
from ..changes.effects import (
    WHY,
    Change,
    Conflict,
    Own,
    Ranges,
    Trail,
    among,
    conflict_with,
    is_already,
)
from ..names import shown
from ..patches import lines_of
from ..trees import REFUSED, Difference, Entry, Get, Present, alike, control_in, diff_trees, flatten

Action = Literal["create", "write", "delete", "chmod", "link", "merge", "move", "skip", "conflict"]
"""What happens to a path; `skip` and `conflict` leave it alone.

`move` is for what is not captured: it gets another name, and nothing else happens to it.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One path of a plan: what is there now, and what will be.

    `code` says why it is a conflict, `reason` the same for people, and `no_merge` why the
    changes cannot be taken out of what is there.
    `source` is the path from which a thing is moved here, and `inode` its number, known when
    the plan is carried out.
    """

    path: bytes
    action: Action
    before: Entry | None
    after: Entry | None
    reason: str = ""
    uncertain: bool = False
    source: bytes = b""
    inode: int = 0
    code: Conflict = ""
    no_merge: str = ""

    @property
    def acts(self) -> bool:
        """Whether the path will change."""
        return self.action not in ("skip", "conflict")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a restore would do. `now` is the tree it was made for.

    `took` are the events whose changes it takes back, on each path that it changes. `opened`
    are directories that may not be written in, with their modes: a restore opens them for the time
    it takes. `again` are the events that a rewind which is done again was about, if it kept some.
    """

    now: bytes
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    opened: list[tuple[bytes, int]] = field(default_factory=list)
    took: Ranges = ()
    again: Ranges = ()

    @property
    def conflicts(self) -> list[Step]:
        """The paths that stay because others changed them."""
        return [step for step in self.steps if step.action == "conflict"]

    @property
    def acts(self) -> bool:
        """Whether anything will change."""
        return any(step.acts for step in self.steps)

    def needed(self) -> dict[bytes, bytes]:
        """The contents that must be in the store, each with a path that needs it."""
        return {
            step.after.value: step.path
            for step in self.steps
            if step.acts and step.after is not None and step.after.kind == "file"
        }


def within(path: bytes, paths: Collection[bytes] | None) -> bool:
    """Whether `path` is one of `paths`, or below one; the root is empty, and above all."""
    if paths is None:
        return True
    return any(path == chosen or path.startswith(chosen + b"/") or not chosen for chosen in paths)


def _leads_to(path: bytes, paths: Collection[bytes] | None) -> bool:
    """Whether one of `paths` is below `path`."""
    return paths is not None and any(chosen.startswith(path + b"/") for chosen in paths)


def _with_parents(steps: list[Step], paths: Collection[bytes] | None) -> list[Step]:
    """What was chosen, and the directories that must be made for it; nothing else above it."""
    kept = [step for step in steps if within(step.path, paths)]
    made = [step.path for step in kept if step.acts and step.after is not None]
    above = [step for step in steps if not within(step.path, paths)]
    return kept + [
        step
        for step in above
        if step.action == "create" and step.after is not None and step.after.kind == "directory"
        and any(path.startswith(step.path + b"/") for path in made)
    ]  # fmt: skip


def step_to(path: bytes, now: Entry | None, wanted: Entry | None) -> Step:
    """The step that leads from what is there to what is wanted.

    `Unsafe` where that is a name of version control: what is written there runs as code.
    """
    if wanted is not None and wanted.value == REFUSED and control_in(path) is not None:
        raise Unsafe(
            f"{shown(path)} is version control's, and the state to go back to holds it: nothing "
            "was changed. Name the other paths to go back without it (`paths=`, or behind `--`)"
        )
    if alike(now, wanted):
        return Step(path, "skip", now, wanted, ALREADY)
    if now is not None and not now.kept:
        return Step(path, "skip", now, wanted, f"not captured: {_text(now)}")
    if wanted is not None and not wanted.kept:
        return Step(path, "skip", now, wanted, f"was not captured: {_text(wanted)}")
    action: Action
    if wanted is None:
        action = "delete"
    elif now is not None and now.kind == wanted.kind and _content(now) == _content(wanted):
        action = "chmod"
    elif wanted.kind == "link":
        action = "link"
    else:
        action = "create" if now is None else "write"
    return Step(path, action, now, wanted)


ALREADY = "already so"
"""The reason of a step that has nothing to do."""


def _text(entry: Entry) -> str:
    return entry.value.decode("utf-8", "replace")


def _content(entry: Entry) -> bytes:
    return b"" if entry.kind == "directory" else entry.value


# --- exact -------------------------------------------------------------------------------


def plan_exact(get: Get, now: bytes, target: bytes, paths: Collection[bytes] | None = None) -> Plan:
    """Make the present state equal to `target`, as far as both are captured."""
    steps = [
        step_to(difference.path, difference.before, difference.after)
        for difference in diff_trees(get, now, target)
        if within(difference.path, paths) or _leads_to(difference.path, paths)
    ]
    return Plan(now, _with_parents(steps, paths))


# --- mine --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subtraction:
    """The way to take changes back: the plan, what of each path goes, and what moved.

    `taken` has the changes of each path that are in effect and chosen, oldest first; `moves`
    the other names of each file that was renamed.
    """

    plan: Plan
    taken: dict[bytes, list[Own]] = field(default_factory=dict)
    moves: dict[bytes, set[bytes]] = field(default_factory=dict)


def plan_mine(
    get: Get, now: bytes, changes: Iterable[Change], chosen: Ranges,
    paths: Collection[bytes] | None = None, *, whole: bool = False,
) -> Subtraction:  # fmt: skip
    """Take back those of `changes` that are `chosen` and in effect, where no other change lies in
    between.

    `changes` are all of the session's own since the first that is chosen, in order; with
    `whole`, all of them are chosen.
    """
    start = min((one.first for one in chosen), default=0)
    trails, each = _trails(get, changes, None, start, whole=whole)
    present = Present(get, now)
    taken, steps = _taken(present, trails, chosen, paths)
    # Only what is held back, or goes while its other names are left out, asks where else it was.
    asks = any(step.action == "conflict" or (paths and _removes(step)) for step in steps)
    moves = _moves(get, each) if asks else {}
    if paths is not None and moves:
        steps = _with_other_ends(present, trails, chosen, paths, steps, moves)
    return Subtraction(Plan(now, _with_parents(steps, paths)), taken, moves)


def _taken(
    present: Present, trails: Mapping[bytes, Trail], chosen: Ranges, paths: Collection[bytes] | None
) -> tuple[dict[bytes, list[Own]], list[Step]]:
    """What of each path is to be taken back, and the step that does it."""
    taken: dict[bytes, list[Own]] = {}
    steps: list[Step] = []
    for path, trail in trails.items():
        if not (within(path, paths) or _leads_to(path, paths)):
            continue
        standing = trail.standing
        goes = [own for own in standing if among(own.seq, chosen)]
        if goes:
            taken[path] = goes
            steps.append(_taking_back(path, present.at(path), goes, standing))
    return taken, steps


def _moves(get: Get, each: Iterable[Iterable[Difference]]) -> dict[bytes, set[bytes]]:
    """The other names of each file that some change moved."""
    moves: dict[bytes, set[bytes]] = {}
    for found in each:
        for one, other in moved(get, found).items():
            moves.setdefault(one, set()).add(other)
    return moves


def families(moves: Mapping[bytes, set[bytes]]) -> dict[bytes, set[bytes]]:
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


def _removes(step: Step) -> bool:
    """Whether a file goes from a path, and nothing comes in its place."""
    return step.acts and step.after is None and step.before is not None and (
        step.before.kind == "file"
    )  # fmt: skip


def _with_other_ends(
    present: Present, trails: Mapping[bytes, Trail], chosen: Ranges, paths: Collection[bytes],
    steps: list[Step], moves: Mapping[bytes, set[bytes]],
) -> list[Step]:  # fmt: skip
    """The steps; a moved file that would come back at a path left out is not just removed.

    By that, all that was ever written in it would be gone from the workspace.
    """
    known = families(moves)
    names = {name for step in steps if _removes(step) for name in known.get(step.path, ())}
    others = {path for path in names if not within(path, paths)}
    _, beyond = _taken(present, {path: trails[path] for path in others}, chosen, None)
    back = {step.path for step in beyond if step.after is not None and step.action != "skip"}

    def held(step: Step) -> Step:
        left_out = known.get(step.path, set()) & back if _removes(step) else None
        if not left_out:
            return step
        reason = f"moved from {shown(min(left_out))}, which is to be named, too"
        return replace(step, action="conflict", reason=reason, code="held")

    return [held(step) for step in steps]


def last_in_effect(get: Get, changes: Iterable[Change], paths: Collection[bytes] | None) -> int:
    """The last of a session's `changes` of some paths that is in effect; 0 if none is.

    `changes` are all of the session's own. One whose trees were given up is left out.
    """
    known = (change for change in changes if _is_known(get, change))
    trails, _ = _trails(get, known, paths, 0, whole=False)
    inside = (trail for path, trail in trails.items() if within(path, paths))
    return max((own.seq for trail in inside for own in trail.standing), default=0)


def standing(get: Get, changes: Iterable[Change]) -> dict[bytes, set[int]]:
    """Which of a session's own `changes` of each path are in effect, by their events."""
    known = (change for change in changes if _is_known(get, change))
    trails, _ = _trails(get, known, None, 0, whole=False)
    return {path: {own.seq for own in trail.standing} for path, trail in trails.items()}


def _is_known(get: Get, change: Change) -> bool:
    try:
        for _ in diff_trees(get, change.before, change.after):
            pass
    except NotFound:
        return False
    return True


def _trails(
    get: Get, changes: Iterable[Change], paths: Collection[bytes] | None, start: int,
    *, whole: bool,
) -> tuple[dict[bytes, Trail], list[list[Difference]]]:  # fmt: skip
    """The trail of each path, and what each change differs in."""
    trails: dict[bytes, Trail] = {}
    each: list[list[Difference]] = []
    for change in changes:
        found = [d for d in diff_trees(get, change.before, change.after)
                 if d.path not in change.foreign]  # fmt: skip
        each.append(found)
        for path, before, after in found:
            if within(path, paths) or _leads_to(path, paths):
                trail = trails.get(path)
                if trail is None:
                    trail = trails[path] = Trail(start, whole=whole)
                trail.note(change, path, before, after)
    return trails, each


def _taking_back(path: bytes, there: Entry | None, goes: list[Own], standing: list[Own]) -> Step:
    wanted = goes[0].before
    uncertain = any(own.uncertain for own in goes)
    step = replace(step_to(path, there, wanted), uncertain=uncertain)
    if is_already(there, goes):
        return step
    code = conflict_with(there, goes, standing)
    if there is not None and _gives_way(there, wanted):
        if there.kind == "directory" and there.value != (goes[-1].after or there).value:
            code = code or "since"
    elif not step.acts and step.reason != ALREADY:
        code = ""
    if code:
        return replace(step, action="conflict", reason=WHY[code], code=code)
    return step


def creation(get: Get, path: bytes, tree: Entry) -> Iterator[Step]:
    """The steps for all that is in a directory that comes to a path."""
    for inner, entry in flatten(get, tree.value, path + b"/"):
        yield step_to(inner, None, entry)


def removal(get: Get, path: bytes, tree: Entry) -> Iterator[Step]:
    """The steps for all that is in a directory that goes from a path."""
    for inner, entry in flatten(get, tree.value, path + b"/"):
        yield step_to(inner, entry, None)


def _gives_way(there: Entry, wanted: Entry | None) -> bool:
    """Whether a path gets something else although it, or that, is not captured: by a move."""
    if alike(there, wanted):
        return False
    return not there.kept or (wanted is not None and not wanted.kept)


def renames(found: Iterable[Difference]) -> dict[bytes, bytes]:
    """Both ends of files that moved, each to the other: same content, here gone, there new."""
    found = list(found)
    gone = {
        before.value: path
        for path, before, after in found
        if after is None and before is not None and before.kind == "file" and before.size
    }
    pairs: dict[bytes, bytes] = {}
    for path, before, after in found:
        if before is None and after is not None and after.kind == "file" and after.value in gone:
            origin = gone.pop(after.value)
            pairs[origin], pairs[path] = path, origin
    return pairs


_ALIKE = 0.5
_FEW = 40
_LONG = 1_000_000


def moved(get: Get, found: Iterable[Difference]) -> dict[bytes, bytes]:
    """`renames`, and files that were changed as they moved: half of their lines are the same."""
    found = list(found)
    pairs = renames(found)
    gone = [(d.path, d.before) for d in found if d.after is None and _may_move(d.before)]
    came = [(d.path, d.after) for d in found if d.before is None and _may_move(d.after)]
    gone = [(path, entry) for path, entry in gone if path not in pairs]
    came = [(path, entry) for path, entry in came if path not in pairs]
    if not (gone and came) or len(gone) * len(came) > _FEW * _FEW:
        return pairs
    for path, entry in came:
        ratios = {old: _likeness(get, was, entry) for old, was in gone if old not in pairs}
        best = max(ratios, key=lambda old: ratios[old], default=None)
        if best is not None and ratios[best] >= _ALIKE:
            pairs[best], pairs[path] = path, best
    return pairs


def _may_move(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "file" and 0 < entry.size < _LONG


def _likeness(get: Get, a: Entry | None, b: Entry | None) -> float:
    """Which part of the lines of two files is in both."""
    if a is None or b is None or 2 * min(a.size, b.size) < _ALIKE * (a.size + b.size):
        return 0.0
    try:
        old, new = Counter(lines_of(get(a.value))), Counter(lines_of(get(b.value)))
    except (NotFound, Damaged):
        return 0.0
    return 2 * (old & new).total() / max(1, old.total() + new.total())
