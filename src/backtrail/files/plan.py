"""Plans: what a restore would do, path by path. Pure data; preview and act share it.

Mode *mine* takes back what one session changed after a point and leaves everybody else's
work alone. Mode *exact* makes the workspace equal to a tree. Both compare the tree of the
present state, which is stored already, with what is wanted; neither looks at the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from ..errors import Damaged, Unsafe
from ..events import Json
from .control import control_in
from .names import hidden, shown
from .trees import REFUSED, Difference, Entry, Get, Present, alike, diff_trees

Action = Literal["create", "write", "delete", "chmod", "link", "merge", "skip", "conflict"]
"""What happens to a path; `skip` and `conflict` leave it alone."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one event of a session did to the files: the trees around it.

    `foreign` are paths that changed in between but by others alone, `shared` those that
    this session and another changed, `uncertain` those a person may have saved meanwhile.
    """

    seq: int
    before: bytes
    after: bytes
    foreign: frozenset[bytes] = frozenset()
    shared: frozenset[bytes] = frozenset()
    uncertain: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Step:
    """One path of a plan: what is there now, and what will be.

    `base` is what the session last left there, where that is something else: the common
    ancestor of a three-way merge.
    """

    path: bytes
    action: Action
    before: Entry | None
    after: Entry | None
    reason: str = ""
    uncertain: bool = False
    base: Entry | None = None

    @property
    def acts(self) -> bool:
        """Whether the path will change."""
        return self.action not in ("skip", "conflict")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a restore would do. `now` is the tree it was made for.

    `opened` are directories nobody may write in, with their modes: a restore opens them
    for the time it takes.
    """

    now: bytes
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    opened: list[tuple[bytes, int]] = field(default_factory=list)

    @property
    def conflicts(self) -> list[Step]:
        """The paths that stay because somebody else changed them."""
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
    if now is not None and not now.kept:
        return Step(path, "skip", now, wanted, f"not captured: {_text(now)}")
    if wanted is not None and not wanted.kept:
        return Step(path, "skip", now, wanted, f"was not captured: {_text(wanted)}")
    if alike(now, wanted):
        return Step(path, "skip", now, wanted, ALREADY)
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


@dataclass(slots=True)
class _Touched:
    """What a session did to one path after the cut."""

    first: Entry | None
    last: Entry | None
    broken: bool = False
    shared: bool = False
    uncertain: bool = False

    def conflict(self, there: Entry | None) -> str:
        """Why the path may not be taken back; empty if it may."""
        if not alike(there, self.last):
            return "changed since by somebody else"
        if self.broken:
            return "somebody else changed it in between"
        if self.shared:
            return "another session changed it at the same time"
        return ""


def plan_mine(
    get: Get, now: bytes, changes: Iterable[Change], paths: Collection[bytes] | None = None
) -> tuple[Plan, dict[bytes, bytes]]:
    """Take back `changes`, which come in order, wherever nobody else interfered.

    Also the moves among them: each end of a file that was renamed, to the other.
    """
    touched: dict[bytes, _Touched] = {}
    moves: dict[bytes, bytes] = {}
    for change in changes:
        found = [d for d in diff_trees(get, change.before, change.after)
                 if d.path not in change.foreign]  # fmt: skip
        moves.update(renames(found))
        for path, before, after in found:
            if within(path, paths) or _leads_to(path, paths):
                _note(touched, change, path, before, after)
    steps = []
    present = Present(get, now)
    for path, done in touched.items():
        there = present.at(path)
        step = replace(step_to(path, there, done.first), uncertain=done.uncertain)
        reason = done.conflict(there) if step.acts else ""
        if reason:
            step = replace(step, action="conflict", reason=reason, base=done.last)
        steps.append(step)
    return Plan(now, _with_parents(steps, paths)), moves


def _note(
    touched: dict[bytes, _Touched], change: Change, path: bytes,
    before: Entry | None, after: Entry | None,
) -> None:  # fmt: skip
    known = touched.get(path)
    if known is None:
        known = touched[path] = _Touched(before, after)
    else:
        known.broken = known.broken or not alike(known.last, before)
        known.last = after
    known.shared = known.shared or path in change.shared
    known.uncertain = known.uncertain or path in change.uncertain


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


def changes_of(seq: int, files: Json) -> list[Change]:
    """The changes an event's `files` tell of, for a plan; `Damaged` if it is not spelled so."""

    def paths(part: Json, name: str) -> frozenset[bytes]:
        return frozenset(hidden(path) for path in part.get(name, ()))

    def digest(part: Json, name: str) -> bytes:
        found = bytes.fromhex(part[name])
        if len(found) != 32:
            raise ValueError(name)
        return found

    try:
        uncertain = paths(files, "uncertain")
        return [
            Change(
                seq,
                digest(part, "before"),
                digest(part, "after"),
                paths(part, "foreign"),
                paths(part, "shared"),
                uncertain,
            )
            for part in files.get("parts", [files])
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"event {seq} does not tell what it did to the files: {error!r}") from error
