"""Where a rewind, undo or redo takes a session, and the plan of what it does to the files.

Preview and act share the plan. Files of a session that came from elsewhere go only where a
person lets them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Literal

from .._startup.frozen import dataclass, field, replace
from .._startup.hashing import sha256
from ..errors import InvalidData, NotFound, Unsafe
from ..events import Event, Json, SessionInfo
from ..events.operations import FINISHES, KEPT, MADE_ROOT, TURN, Operation
from ..files.changes.effects import WHY, Range, Ranges, among, closed, ranges_of
from ..files.differences import is_folder, modes_of, step_counts
from ..files.names import hidden, several, shown
from ..files.restore.conflicts import Decisions, OnConflict, Put, resolve
from ..files.restore.journal import lacking
from ..files.restore.moves import Local, cannot_go, settled
from ..files.restore.plan import ALREADY, Plan, Step, Subtraction, moved, plan_exact, plan_mine
from ..files.trees import Difference, Get, Present, is_bare
from ..settings.allowance import ORIGIN, is_allowed
from ..stores.base import Store
from .filepoints import BACK_KINDS, Point, changes_by, own_changes
from .points import Move, find_event, read_operations, read_turns
from .uncaptured import KINDS, missing_in
from .views import FileChange

if TYPE_CHECKING:
    from ..files.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Known:
    """A session's log up to `stored`, and the events that the next append takes along."""

    store: Store
    info: SessionInfo
    stored: int
    owed: list[Event] = field(default_factory=list)

    @property
    def head(self) -> int:
        """The last event, stored or owed."""
        return self.owed[-1].seq if self.owed else self.stored

    def events(self, first: int, kinds: Collection[str]) -> Iterator[Event]:
        """The events of some kinds from one on."""
        owed = (event for event in self.owed if event.kind in kinds)
        return chain(self.store.read(self.info.id, after=first - 1, kinds=kinds), owed)


def plan_files(
    log: Known, workspace: Workspace, way: Way, wish: Wish, now: bytes, put: Put
) -> Plan:
    """What happens to each path, and the warnings that belong to it."""
    paths = None
    if wish.paths is not None:
        paths = workspace.meant(several(wish.paths), now, way.point.tree)
        paths = None if b"" in paths else paths
    get, local = workspace.get, Local(workspace.was_control, workspace.is_stranger())
    if wish.mode == "exact":
        if way.point.tree is None:
            raise NotFound(f"the files at event {way.anchor} were not captured")
        plan = plan_exact(get, now, way.point.tree, paths)
        plan = settled(get, plan, local=local)
    else:
        found = _with_kept(log, workspace, way, now, _subtraction(log, workspace, way, now, paths))
        plan, suffix = found.plan, f"rewind-{way.anchor}"
        if plan.conflicts and wish.on_conflict != "keep":
            plan = resolve(get, put, plan, wish.on_conflict, suffix, found.taken, wish.otherwise)
        plan = settled(get, plan, found.moves, local)
    took = closed(_taken_back(way, plan), log.head)
    return replace(plan, took=took, warnings=_warnings(log, workspace, way, plan))


def _with_kept(
    log: Known, workspace: Workspace, way: Way, now: bytes, found: Subtraction
) -> Subtraction:
    """With what the rewind that is done again kept, where it is a conflict still."""
    if not way.kept:
        return found
    rewind = _subtraction(log, workspace, replace(way, spans=way.again), now, way.kept)
    left = way.kept - {step.path for step in found.plan.steps}
    kept = [step for step in rewind.plan.conflicts if step.path in left]
    if not kept:
        return found
    plan = replace(found.plan, steps=[*found.plan.steps, *kept], again=way.again)
    taken, moves = {**rewind.taken, **found.taken}, {**rewind.moves, **found.moves}
    return Subtraction(plan, taken, moves)


def _taken_back(way: Way, plan: Plan) -> Ranges:
    """The events whose changes go back: the rewind's own, too, where what it kept is decided."""
    decided = plan.again and any(step.acts and step.path in way.kept for step in plan.steps)
    return (*way.again, *way.chosen) if decided else way.chosen


def possible(plan: Plan | None, get: Get) -> tuple[Plan | None, str | None]:
    """A plan with what cannot be done, and why acting would be refused, if it would."""
    gone = lacking(plan, get) if plan is not None else {}
    if plan is None or not gone:
        return plan, None
    steps = [
        replace(step, action="conflict", reason="its content is not in the store any more",
                code="lost")
        if step.acts and step.path in gone else step
        for step in plan.steps
    ]  # fmt: skip
    return replace(plan, steps=steps), str(next(iter(gone.values())))


def plan_name(kind: str, wish: Wish, move: Move, plan: Plan | None) -> str:
    """What stands for a plan: the same for the same log, files and wish.

    A plan of files alone is the same whatever is said meanwhile.
    """
    row: list[object] = [kind, wish.scope]
    if wish.scope != "files":
        row += [move.anchor, move.events_dropped, move.message_count]
    if plan is not None:
        row += [plan.now, [(step.path, step.action, step.before, step.after, step.source)
                           for step in plan.steps]]  # fmt: skip
    return sha256(repr(row).encode()).hexdigest()


def _subtraction(
    log: Known, workspace: Workspace, way: Way, now: bytes, paths: Collection[bytes] | None
) -> Subtraction:
    chosen, whole = way.chosen, way.spans is None
    try:
        changes = own_changes(log.store, log.info.id, chosen[0].first, log.stored)
        changes += [change for event in log.owed for change in changes_by(event)]
        return plan_mine(workspace.get, now, changes, chosen, paths, whole=whole)
    except NotFound as error:
        raise NotFound(
            f"what this session changed after event {way.point.cut} cannot be told any more: "
            f"{error}, given up for the budget or never copied here; nothing was changed. "
            'A labelled checkpoint is kept: go there with mode="exact"'
        ) from error


def _warnings(log: Known, workspace: Workspace, way: Way, plan: Plan) -> list[str]:
    refused = refusal(log.info, workspace.path) if plan.acts else None
    found = [] if refused is None else [refused]
    then = way.point.head if plan.acts else None
    if then and (head := workspace.head()) and head != then:
        found.append(f"git had {then} checked out then, and has {head} now")
    for event in log.events(way.chosen[0].first, KINDS):
        if among(event.seq, way.chosen):
            found += [one.warning for one in missing_in(event)]
    for path, reason, _ in cannot_go(plan):
        found.append(f"cannot be undone: {path} stays ({reason})")
    return [*found, *workspace.problems]


def changes_in(plan: Plan, get: Get) -> list[FileChange]:
    """A plan for people: what has nothing to do is left out.

    A file that gets another name has the lines that come and go in it, as in a diff.
    """
    found = []
    acting = {step.path: step for step in plan.steps if step.acts}
    moves = moved(get, [Difference(s.path, s.before, s.after) for s in acting.values()])
    for step in plan.steps:
        if step.action == "skip" and step.reason == ALREADY:
            continue
        if step.action == "move" and step.after is None:
            # It is listed where it moves to.
            continue
        other = moves.get(step.path) if step.acts else None
        plus, minus = (0, 0) if other is not None and step.before else step_counts(get, step)
        if other is not None and step.before is None:
            plus, minus = step_counts(get, replace(step, before=acting[other].before))
        reason = step.reason
        if step.uncertain and WHY["doubtful"] not in reason:
            reason = "; ".join(filter(None, (reason, "saved by a person in that time, perhaps")))
        change = FileChange(
            shown(step.path),
            step.action,
            reason,
            plus,
            minus,
            folder=is_folder(step.before, step.after),
            old_path=shown(other) if other is not None and step.before is None else None,
            code=step.code,
            no_merge=step.no_merge,
            modes=modes_of(step.before, step.after) if step.acts else None,
        )
        found.append(change)
    return found


RUNS = ".envrc, .mcp.json, .claude/settings.json and the like run by themselves"


class NotAllowed(Unsafe):
    """A stranger's files would go into a folder that the person has not allowed."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"{reason}. Nothing was changed: allow the folder once (`--allow`, "
            "`backtrail config allow`), or take them into a new one (`fork --into DIR`)"
        )
        self.folder = folder
        self.reason = reason


def refusal(info: SessionInfo, root: str) -> str | None:
    """Why the files of a session may not go into a folder yet; None if they may."""
    origin = info.metadata.get(ORIGIN)
    if origin is None or is_allowed(root):
        return None
    return (
        f"session `{info.id}` came from a {origin}, and {root} is not allowed to take its files "
        f"yet: {RUNS}"
    )


def check_allowed(info: SessionInfo, root: str, plan: Plan, get: Get) -> None:
    """`Unsafe` where a plan would put a stranger's files where the person has not allowed them."""
    if plan.acts and info.metadata.get(ORIGIN) is not None:
        check_folder(info, root)
        _refuse_bare(get, plan)


def check_folder(info: SessionInfo, root: str) -> None:
    """`NotAllowed` where the files of a session may not go into a folder."""
    reason = refusal(info, root)
    if reason is not None:
        raise NotAllowed(root, reason)


def _refuse_bare(get: Get, plan: Plan) -> None:
    """`Unsafe` where a plan makes a directory that version control takes for its own."""
    folders: dict[bytes, list[Step]] = {}
    for step in plan.steps:
        folders.setdefault(step.path.rpartition(b"/")[0], []).append(step)
    there = Present(get, plan.now)
    for path, steps in folders.items():
        folder = there.at(path)
        before = {*there.names(folder)} if folder and folder.kind == "directory" else set()
        after = before - {_name(s) for s in steps if s.acts and s.after is None}
        after |= {_name(step) for step in steps if step.acts and step.after is not None}
        if is_bare(after) and not is_bare(before):
            raise Unsafe(
                f"{shown(path) or 'the root'} would become a repository, whose settings are "
                "obeyed: nothing was changed"
            )


def _name(step: Step) -> bytes:
    return step.path.rpartition(b"/")[2]


Scope = Literal["both", "conversation", "files"]
"""What a rewind moves."""

Mode = Literal["mine", "exact"]
"""Which files a rewind takes back: this session's changes, or all to equal a tree."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where an operation goes: the event to continue from, the files' point, its data.

    `spans` are the events whose changes are taken back; None: all after the point. Where it does
    a rewind again that kept paths, `again` are the events of which that one did not take back
    the changes to `kept`.
    """

    anchor: int
    point: Point
    data: dict[str, Json]
    spans: Ranges | None = None
    again: Ranges = ()
    kept: frozenset[bytes] = frozenset()

    @property
    def chosen(self) -> Ranges:
        """The events whose changes are taken back."""
        return (Range(self.point.cut + 1, None),) if self.spans is None else self.spans


@dataclass(frozen=True, slots=True)
class Wish:
    """How files are to be taken back; by `force`, also while a call is open there.

    `expected` is the plan that a preview showed, by its name: another one is not carried out.
    Of conflicts that are decided path by path, those that are not named are decided `otherwise`.
    """

    scope: Scope = "both"
    mode: Mode = "mine"
    paths: Collection[str] | None = None
    on_conflict: Decisions = "keep"
    force: bool = False
    expected: str | None = None
    otherwise: OnConflict = "keep"

    def __post_init__(self) -> None:
        if self.scope not in ("both", "conversation", "files"):
            raise InvalidData(f"scope is 'both', 'conversation' or 'files', not {self.scope!r}")
        if self.mode not in ("mine", "exact"):
            raise InvalidData(f"mode is 'mine' or 'exact', not {self.mode!r}")
        given = self.on_conflict
        for choice in {*given.values()} if isinstance(given, Mapping) else {given}:
            if choice not in ("keep", "merge", "aside", "overwrite"):
                raise InvalidData(f"on_conflict={choice!r} is unknown")


def turn_way(store: Store, session_id: str, turn: int) -> Way:
    """The way that takes one turn out of the files, and nothing else."""
    spans = read_turns(store, session_id).ranges(turn)
    point = Point(turn - 1, None, _git_at(store, session_id, turn))
    return Way(turn, point, {TURN: turn, "mode": "mine"}, spans)


def undo_way(store: Store, session_id: str) -> Way:
    """The way back over the last operation that is not undone yet."""
    done = read_operations(store, session_id).done
    if not done:
        raise NotFound(f"session `{session_id}` has nothing to undo")
    return _way(done[-1], _git_at(store, session_id, done[-1].seq))


def finish_way(store: Store, session_id: str) -> Way:
    """The way on with the last undo, which kept something."""
    known = read_operations(store, session_id)
    if known.unfinished is None:
        raise NotFound(f"the last undo of session `{session_id}` kept nothing any more")
    way = _way(known.unfinished, _git_at(store, session_id, known.unfinished.seq))
    return replace(way, data={**way.data, FINISHES: known.undone[-1].spans[-1][0]})


def redo_way(store: Store, session_id: str) -> Way:
    """The way back over the last undo."""
    undone = read_operations(store, session_id).undone
    if not undone:
        raise NotFound(f"session `{session_id}` has nothing to redo")
    way, last = _way(undone[-1], None), undone[-1]
    if last.kind != "rewound":
        return way
    data = find_event(store, session_id, last.seq).data
    names, to, turn = data.get(KEPT), data.get("to"), data.get(TURN)
    if not isinstance(names, list):
        return way
    # One that kept all changed no files, and does not say what it was about.
    again = ranges_of(data.get("took_back"))
    if again is None and isinstance(turn, int):
        again = closed(turn_way(store, session_id, turn).chosen, last.seq - 1)
    elif again is None and isinstance(to, int):
        again = (Range(to + 1, last.seq - 1),)
    if again is None:
        return way
    return replace(way, again=again, kept=frozenset(hidden(name) for name in names))


def _way(last: Operation, head: str | None) -> Way:
    spans = tuple(Range(first, until) for first, until in last.spans)
    point = Point(last.before, None, head)
    return Way(last.before, point, {"of": last.seq, "kind": last.kind}, spans)


def _git_at(store: Store, session_id: str, seq: int) -> str | None:
    """What git had checked out when an operation began."""
    begun = next(store.read(session_id, after=seq - 1, limit=1), None)
    head = begun.data.get("git") if begun is not None else None
    return head if isinstance(head, str) else None


def made_root(store: Store, session_id: str, way: Way) -> bool:
    """Whether what an undo or redo takes back made the workspace's folder again."""
    found = (
        event
        for first, until in way.spans or ()
        for event in store.read(session_id, after=first - 1, until=until, kinds=BACK_KINDS)
    )
    return any(event.data.get(MADE_ROOT) is True for event in found)
