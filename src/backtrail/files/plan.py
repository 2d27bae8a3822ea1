"""Plans: what a restore would do, path by path. Pure data; preview and act share it.

Mode *mine* takes back what one session changed after a point and leaves everybody else's
work alone. Mode *exact* makes the workspace equal to a tree. Both compare the tree of the
present state, which is stored already, with what is wanted; neither looks at the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .trees import Difference, Entry, Get, diff_trees, flatten, look_up

Action = Literal["create", "write", "delete", "chmod", "link", "merge", "skip", "conflict"]
"""What happens to a path; `skip` and `conflict` leave it alone."""

OnConflict = Literal["keep", "merge", "aside", "overwrite"]
"""What to do with a path that somebody else changed as well."""


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
    """One path of a plan: what is there now, and what will be."""

    path: bytes
    action: Action
    before: Entry | None
    after: Entry | None
    reason: str = ""
    uncertain: bool = False

    @property
    def acts(self) -> bool:
        """Whether the path will change."""
        return self.action not in ("skip", "conflict")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a restore would do. `now` is the tree it was made for."""

    now: bytes
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def conflicts(self) -> list[Step]:
        """The paths that stay because somebody else changed them."""
        return [step for step in self.steps if step.action == "conflict"]

    def needed(self) -> set[bytes]:
        """The contents that must be in the store."""
        return {s.after.value for s in self.steps if s.acts and s.after and s.after.kind == "file"}


# --- exact -------------------------------------------------------------------------------


def plan_exact(get: Get, now: bytes, target: bytes, paths: Collection[bytes] | None = None) -> Plan:
    """Make the present state equal to `target`, as far as both are captured."""
    steps = [
        _step(difference.path, difference.before, difference.after)
        for difference in diff_trees(get, now, target)
        if within(difference.path, paths)
    ]
    return Plan(now, _held_back(get, now, steps))


def within(path: bytes, paths: Collection[bytes] | None) -> bool:
    """Whether `path` is one of `paths`, or below one."""
    if paths is None:
        return True
    return any(path == chosen or path.startswith(chosen + b"/") for chosen in paths)


def _step(path: bytes, now: Entry | None, wanted: Entry | None, *, uncertain: bool = False) -> Step:
    """The action that leads from what is there to what is wanted."""
    if now is not None and not now.kept:
        return Step(path, "skip", now, wanted, f"not captured: {_text(now)}")
    if wanted is not None and not wanted.kept:
        return Step(path, "skip", now, wanted, f"was not captured: {_text(wanted)}")
    action: Action
    if _alike(now, wanted):
        return Step(path, "skip", now, wanted, "already so")
    if wanted is None:
        action = "delete"
    elif now is None:
        action = "link" if wanted.kind == "link" else "create"
    elif now.kind == wanted.kind and _content(now) == _content(wanted):
        action = "chmod"
    else:
        action = "link" if wanted.kind == "link" else "write"
    return Step(path, action, now, wanted, uncertain=uncertain)


def _text(entry: Entry) -> str:
    return entry.value.decode("utf-8", "replace")


def _content(entry: Entry) -> bytes:
    """What an entry is apart from its mode; a directory's content is not its own."""
    return b"" if entry.kind == "directory" else entry.value


def _alike(a: Entry | None, b: Entry | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.kind, a.mode, _content(a)) == (b.kind, b.mode, _content(b))


# --- mine --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Path:
    """What a session did to one path after the cut."""

    first: Entry | None
    last: Entry | None
    broken: bool = False
    shared: bool = False
    uncertain: bool = False


def plan_mine(
    get: Get,
    now: bytes,
    changes: Iterable[Change],
    paths: Collection[bytes] | None = None,
) -> Plan:
    """Take back `changes`, which come in order, wherever nobody else interfered."""
    touched: dict[bytes, _Path] = {}
    partners: dict[bytes, bytes] = {}
    for change in changes:
        found = list(diff_trees(get, change.before, change.after))
        partners.update(_renames(found))
        for path, before, after in found:
            if path not in change.foreign and within(path, paths):
                _note(touched, change, path, before, after)
    steps: list[Step] = []
    for path, done in touched.items():
        there = look_up(get, now, path)
        step = _step(path, there, done.first, uncertain=done.uncertain)
        if step.acts:
            step = _checked(step, there, done)
        steps.append(step)
    steps = _pairs_held_back(steps, partners)
    return Plan(now, _held_back(get, now, steps))


def _note(
    touched: dict[bytes, _Path], change: Change, path: bytes,
    before: Entry | None, after: Entry | None,
) -> None:  # fmt: skip
    known = touched.get(path)
    if known is None:
        known = touched[path] = _Path(before, after)
    else:
        known.broken = known.broken or not _alike(known.last, before)
        known.last = after
    known.shared = known.shared or path in change.shared
    known.uncertain = known.uncertain or path in change.uncertain


def _checked(step: Step, there: Entry | None, done: _Path) -> Step:
    reason = ""
    if not _alike(there, done.last):
        reason = "changed since by somebody else"
    elif done.broken:
        reason = "somebody else changed it in between"
    elif done.shared:
        reason = "another session changed it at the same time"
    return replace(step, action="conflict", reason=reason) if reason else step


def _renames(found: list[Difference]) -> Mapping[bytes, bytes]:
    """Both ends of files that moved, each to the other."""
    gone: dict[bytes, bytes] = {}
    for path, before, after in found:
        if after is None and before is not None and _is_file(before):
            gone[before.value] = path
    pairs: dict[bytes, bytes] = {}
    for path, before, after in found:
        if before is None and after is not None and _is_file(after) and after.value in gone:
            origin = gone[after.value]
            pairs[origin], pairs[path] = path, origin
    return pairs


def _is_file(entry: Entry) -> bool:
    return entry.kind == "file" and entry.size > 0


def _pairs_held_back(steps: list[Step], partners: Mapping[bytes, bytes]) -> list[Step]:
    """If one end of a move cannot be taken back, the other must not be."""
    stuck = {step.path for step in steps if step.action == "conflict"}
    held: list[Step] = []
    for step in steps:
        if step.acts and partners.get(step.path) in stuck:
            step = replace(step, action="conflict", reason="the other end of its move stays")
        held.append(step)
    return held


# --- the outcome must be a tree ----------------------------------------------------------


def _held_back(get: Get, now: bytes, steps: list[Step]) -> list[Step]:
    """Hold back what would not leave a tree: parents of what stays, children of what lacks."""
    steps = sorted(steps, key=lambda step: step.path)
    by_path = {step.path: step for step in steps}
    changed = True
    while changed:
        changed = False
        for path, step in by_path.items():
            reason = _impossible(get, now, by_path, step) if step.acts else ""
            if reason:
                kind: Action = "skip" if step.action == "delete" else "conflict"
                by_path[path] = replace(step, action=kind, reason=reason)
                changed = True
    return list(by_path.values())


def _impossible(get: Get, now: bytes, steps: Mapping[bytes, Step], step: Step) -> str:
    was_directory = step.before is not None and step.before.kind == "directory"
    stays_directory = step.after is not None and step.after.kind == "directory"
    if was_directory and not stays_directory:
        stays = _staying_below(get, now, steps, step)
        if stays is not None:
            return f"holds {stays.decode('utf-8', 'replace')}, which stays"
    if step.after is not None and b"/" in step.path:
        parent = step.path.rpartition(b"/")[0]
        above = steps.get(parent)
        if above is None:
            there = look_up(get, now, parent)
        else:
            there = above.after if above.acts else above.before
        if there is None or there.kind != "directory":
            return f"{parent.decode('utf-8', 'replace')} is no directory"
    return ""


def _staying_below(get: Get, now: bytes, steps: Mapping[bytes, Step], step: Step) -> bytes | None:
    """A path below a directory that would not go with it."""
    assert step.before is not None
    for path, _ in flatten(get, step.before.value, step.path + b"/"):
        other = steps.get(path)
        if other is None or not other.acts or other.after is not None:
            return path
    return None


# --- conflicts ---------------------------------------------------------------------------

Merge = Callable[[bytes, bytes, bytes], bytes | None]
"""Three-way merge of base, ours and theirs; None unless it is clean."""


def overwritten(step: Step) -> Step:
    """A conflict that was decided for the past."""
    decided = _step(step.path, step.before, step.after, uncertain=step.uncertain)
    return replace(decided, reason=step.reason)
