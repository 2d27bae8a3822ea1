"""What a rewind, undo or redo does to a session's files: the plan that preview and act share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass, field, replace
from ..errors import NotFound
from ..events import Event, SessionInfo
from ..files.changes.effects import among, closed
from ..files.names import several
from ..files.restore.conflicts import Put, resolve
from ..files.restore.moves import cannot_go
from ..files.restore.outcome import settled
from ..files.restore.plan import Plan, Subtraction, plan_exact, plan_mine
from ..files.trees import Get
from ..stores.base import Store
from .filepoints import Way, Wish, changes_by, own_changes
from .uncaptured import KINDS, missing_in

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
    get = workspace.get
    if wish.mode == "exact":
        if way.point.tree is None:
            raise NotFound(f"the files at event {way.anchor} were not captured")
        plan = plan_exact(get, now, way.point.tree, paths)
        plan = settled(get, plan, local=workspace.local())
    else:
        found = _subtraction(log, workspace, way, now, paths)
        suffix = f"rewind-{way.anchor}"
        plan = resolve(get, put, found.plan, wish.on_conflict, suffix, found.taken)
        plan = settled(get, plan, found.moves, workspace.local())
        plan = _with_kept(log, workspace, way, now, plan)
    took = closed(way.chosen, log.head)
    return replace(plan, took=took, warnings=_warnings(log, workspace, way, plan))


def _with_kept(log: Known, workspace: Workspace, way: Way, now: bytes, plan: Plan) -> Plan:
    """A plan with what the rewind that is done again kept, as far as it still has to be kept."""
    if not way.kept:
        return plan
    rewind = replace(way, spans=way.again)
    planned = {step.path for step in plan.steps}
    found = _subtraction(log, workspace, rewind, now, way.kept).plan.conflicts
    kept = [step for step in found if step.path in way.kept - planned]
    return replace(plan, steps=[*plan.steps, *kept], again=way.again) if kept else plan


def possible(
    workspace: Workspace | None, plan: Plan | None, get: Get
) -> tuple[Plan | None, str | None]:
    """A plan with what cannot be done, and why acting would be refused, if it would."""
    lacking = workspace.lacking(plan, get) if workspace is not None and plan else {}
    if plan is None or not lacking:
        return plan, None
    steps = [
        replace(step, action="conflict", reason="its content is not in the store any more",
                code="lost")
        if step.acts and step.path in lacking else step
        for step in plan.steps
    ]  # fmt: skip
    return replace(plan, steps=steps), str(next(iter(lacking.values())))


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
    from .strangers import refusal

    refused = refusal(log.info, workspace.path) if plan.acts else None
    found = [] if refused is None else [refused]
    head = workspace.head()
    if way.point.head and head and head != way.point.head and plan.acts:
        found.append(f"git had {way.point.head} checked out then, and has {head} now")
    for event in log.events(way.chosen[0].first, KINDS):
        if among(event.seq, way.chosen):
            found += [one.warning for one in missing_in(event)]
    for path, reason, _ in cannot_go(plan):
        found.append(f"cannot be undone: {path} stays ({reason})")
    return [*found, *workspace.problems]
