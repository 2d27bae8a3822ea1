"""Restores under a journal: what one is about to do, and the events that will record it.

The journal is on the disk before any name in the workspace changes. The next holder of the
workspace's lock finishes what it says: the files, then the log. Twice is the same as once, since
a step knows when it is done and an event is found by its id. One that can never be finished is
set aside.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ..._startup.frozen import NamedTuple, dataclass, field, replace
from ...errors import Conflict, Damaged, NotFound, SessionBusy, StoreFailed
from ...events import Json, NewEvent, new_id
from ...events.operations import KEPT, MADE_ROOT
from ...stores.base import Store
from ...stores.disk import checks
from ...stores.opening import open_store
from ..names import is_reserved, shown
from ..trees import Get
from .plan import Plan

if TYPE_CHECKING:
    from ..workspace.root import Rooted
    from ..workspace.snapshot import Log
    from ..workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Journal:
    """One restore. `before` is the tree of the state that it takes back.

    `store` is the URL where its store was, `store_id` the store's id, which it had not always;
    `workspace` is the root and the number of its state after it, once that is known. `makes_root`
    says that the root was gone.
    """

    id: str
    plan: Plan
    before: bytes
    store: str
    scope: str
    session_id: str
    events: list[NewEvent]
    workspace: dict[str, Json] = field(default_factory=dict)
    store_id: str = ""
    makes_root: bool = False

    @property
    def log(self) -> tuple[str, str]:
        """The log that relies on the trees: the store's name and the session's id."""
        scope = f"#{self.scope}" if self.scope else ""
        return f"{self.store_id or self.store}{scope}", self.session_id

    def is_of(self, store: Store) -> bool:
        """Whether it belongs to a store, wherever that is now."""
        known = self.store_id == store.id if self.store_id else self.store == store.url
        return known and self.scope == store.scope

    def encoded(self) -> bytes:
        """The journal as bytes."""
        return _encode(self)

    def outcome(self, after: bytes) -> list[NewEvent]:
        """The events, the first with the trees around the restore, and whose changes went."""
        first = self.events[0]
        data = {**first.data, "files": {"before": self.before.hex(), "after": after.hex()}}
        if self.workspace:
            data["workspace"] = self.workspace
        if self.makes_root:
            data[MADE_ROOT] = True
        if self.plan.took:
            data["took_back"] = [list(span) for span in self.plan.took]
        return [kept(NewEvent(first.kind, data, first.id, first.follows), self.plan),
                *self.events[1:]]  # fmt: skip


def kept(event: NewEvent, plan: Plan) -> NewEvent:
    """The event with the paths that a plan leaves as conflicts."""
    names: list[Json] = [shown(step.path) for step in plan.conflicts]
    if not names:
        return event
    return NewEvent(event.kind, {**event.data, KEPT: names}, event.id, event.follows, event.ts)


_encode = msgspec.msgpack.Encoder().encode


def decoded(content: bytes) -> Journal:
    """The journal that `encoded` gave; `Damaged` if it is none."""
    # No decoder is kept: most processes meet no journal, and it needs all that a plan is made of.
    decode: Callable[[bytes], Journal] = partial(msgspec.msgpack.decode, type=Journal)
    return checks.decoded(decode, content, "the journal of a restore")


def record(journal: Journal, after: bytes, store: Store | None) -> bool:
    """Append the events of a restore that is finished now, to the store it belongs to.

    They are on the disk when this returns, so that the journal may go. False if that store is
    not where it was, and no log can be written.
    """
    events = journal.outcome(after)
    if store is not None and journal.is_of(store):
        _append(store, journal, events)
        return True
    try:
        other = open_store(journal.store, scope=journal.scope, create=False)
    except NotFound:
        return False
    with other:
        if not journal.is_of(other):
            return False
        _append(other, journal, events)
    return True


def _append(store: Store, journal: Journal, events: list[NewEvent]) -> None:
    try:
        store.append(journal.session_id, events)
        store.flush()
    except NotFound:
        # The session was deleted meanwhile: there is no log to write.
        return


class Restored(NamedTuple):
    """A plan as it went, and the trees around it."""

    plan: Plan
    before: bytes
    after: bytes


class Restoration:
    """The way back of a workspace for one session, whose log is in `store`."""

    def __init__(self, workspace: Workspace, log: Log, store: Store) -> None:
        self._workspace = workspace
        self._log = log
        self._store = store

    def preview(self, plan_for: Callable[[bytes], Plan]) -> Plan:
        """The plan for the present state. No call ends by it, not even one that is over."""
        here = self._workspace
        here.expect(self._log, self._store)
        with here.locked(self._store) as root:
            plan = plan_for(here.scanned(root, self._log))
            busy = here.under_way(self._log, self._store)
            notes = [f"{call}: refused meanwhile, unless by force" for call in busy]
            return replace(plan, warnings=[*plan.warnings, *notes]) if notes else plan

    def act(
        self, plan_for: Callable[[bytes], Plan], events: list[NewEvent],
        append: Callable[[list[NewEvent]], None], *, force: bool = True, unmake: bool = False,
    ) -> Restored:  # fmt: skip
        """Apply the plan that `plan_for` gives for the present tree, and `append` its `events`.

        The present state is stored first; that is what undo goes back to. Where the plan
        changes nothing, nothing is appended. Unless by `force`, it is refused while a call of
        others is under way here, above or below.

        A root that is gone is made again only for what comes into it. With `unmake` it goes, if
        nothing is left in it.
        """
        from .restore import identified

        here = self._workspace
        here.expect(self._log, self._store)
        gone = self._would_do_nothing(plan_for)
        if isinstance(gone, Restored):
            return gone
        with here.locked(self._store, make=True, wide=True) as root:
            now = here.looked(root, self._log, self._store)
            if not force and (busy := here.under_way(self._log, self._store)):
                raise busy[0].refusal()
            plan = identified(root, plan_for(now))
            if not plan.acts:
                return Restored(plan, now, now)
            self._check(root, plan)
            after, done = self._done(root, self._journal(plan, now, events, gone), append)
            self._remove_root(unmake or gone)
            return Restored(done, now, after)

    def _would_do_nothing(self, plan_for: Callable[[bytes], Plan]) -> Restored | bool:
        """What a restore comes to that brings nothing into a root that is gone; else if it is."""
        here = self._workspace
        if os.path.isdir(here.root):
            return False
        with here.locked(self._store, wide=True) as root:
            if root >= 0:
                return False
            now = here.looked(root, self._log, self._store)
            plan = plan_for(now)
            return True if plan.acts else Restored(plan, now, now)

    def _check(self, root: int, plan: Plan) -> None:
        """Refuse before anything is touched what cannot be done."""
        here = self._workspace
        for error in lacking(plan, here.blobs.get).values():
            raise error
        if os.fstatvfs(root).f_flag & os.ST_RDONLY:
            raise StoreFailed(
                f"{here.path} is on a read-only file system: nothing was changed",
                errno=errno.EROFS,
            )
        if here.cut_short:
            raise Conflict(
                f"a restore was cut short, and {here.path} is another directory now: "
                "`relocate` gives that restore up"
            )

    def _journal(self, plan: Plan, now: bytes, events: list[NewEvent], gone: bool) -> Journal:
        store = self._store
        return Journal(
            new_id(), plan, now, store.url, store.scope, self._log[1], events,
            store_id=store.id, makes_root=gone,
        )  # fmt: skip

    def _done(
        self, root: int, journal: Journal, append: Callable[[list[NewEvent]], None]
    ) -> tuple[bytes, Plan]:
        """Write the journal, do what it says, record it, and drop it; the tree and the plan."""
        from .restore import HalfRestored, Restore

        here = self._workspace
        here.is_whole = False
        here.catalogue.write_journal(here.place, journal.encoded())
        try:
            done = Restore(root, journal.id, here.blobs.get).apply(journal.plan)
        except HalfRestored:
            raise
        except BaseException as error:
            if isinstance(error, StoreFailed):
                here.catalogue.drop_journal(here.place.n)
                self._remove_root(journal.makes_root)
            raise
        after = _verified(here, root, self._log, done)
        here.note_restore(self._log, [step.path for step in done.steps if step.acts])
        append(replace(journal, plan=done, workspace=here.stamp()).outcome(after))
        # Files and log agree after a power cut too.
        self._store.flush()
        here.catalogue.drop_journal(here.place.n)
        return after, done

    def _remove_root(self, wanted: bool) -> None:
        """Remove the root where that is `wanted` and nothing is in it."""
        if wanted:
            with suppress(OSError):
                os.rmdir(self._workspace.root)


def lacking(plan: Plan, get: Get) -> dict[bytes, NotFound | Damaged]:
    """The paths whose contents cannot be had, and why; nothing can be done with them."""
    found: dict[bytes, NotFound | Damaged] = {}
    for digest, path in plan.needed().items():
        try:
            get(digest)
        except (NotFound, Damaged) as error:
            found[path] = type(error)(
                f"the content of {shown(path)} cannot be had: {error}; nothing was changed. "
                "Name the other paths to go back without it (`paths=`, or behind `--`)"
            )
    return found


def _verified(here: Rooted, root: int, log: Log, plan: Plan) -> bytes:
    """The tree after a restore, looking only at what it touched.

    What it left alone may be changed by others at any time, and is not its own.
    """
    acts = [step for step in plan.steps if step.acts]
    kept = [step.path for step in acts if step.after is not None and step.after.kept]
    return here.restored(root, log, [step.path for step in acts], kept)


# --- after a crash -----------------------------------------------------------------------


class Recovery:
    """The end of a restore that was cut short in a workspace. The caller holds its lock."""

    def __init__(self, here: Rooted) -> None:
        self._here = here

    def finish(self, root: int, store: Store | None) -> None:
        """Finish it, and record it; one that never can be is set aside."""
        here = self._here
        found = here.catalogue.journal(here.place.n)
        if found is None:
            return
        place, content = found
        moved = place.path != here.place.path and not place.identity.born
        if moved or not place.identity.is_same(here.place.identity):
            here.complain(
                f"a restore of {shown(place.path)} was cut short, and another directory is there"
            )
            return
        try:
            journal, done, is_recorded = self._finished(root, content, store)
        except (OSError, Conflict, SessionBusy):
            raise
        except Exception as error:
            # How far it came is no call's doing, whichever are open.
            here.restored(root, None)
            here.catalogue.set_aside(here.place.n, f"{type(error).__name__}: {error}")
            here.say_set_aside()
            return
        if not is_recorded:
            here.complain(
                f"a restore was finished, and the log of its session `{journal.session_id}` does "
                f"not tell: its store is not at {journal.store} any more"
            )
        here.catalogue.drop_journal(here.place.n)
        for step in done.conflicts:
            if step not in journal.plan.steps:
                here.complain(f"a restore was finished without {shown(step.path)}: {step.reason}")

    def _finished(
        self, root: int, content: bytes, store: Store | None
    ) -> tuple[Journal, Plan, bool]:
        """Do what a journal says, and record it; the plan as it went, and if its log was found."""
        from .restore import Restore

        journal, here = decoded(content), self._here
        done = Restore(root, journal.id, here.blobs.get).finish(journal.plan)
        after = _verified(here, root, journal.log, done)
        whole = replace(journal, plan=done, workspace=here.stamp())
        return journal, done, record(whole, after, store)

    def finish_or_give_up(self, root: int, store: Store | None) -> str:
        """Try once more what was set aside, or give it up; says in words which.

        Given up, what it had taken out of its place is back, and it is no call's change.
        """
        here, what = self._here, "finished"
        found = here.catalogue.set_aside_of(here.place.n)
        if found is None:
            return what
        try:
            self._finished(root, found[1], store)
        except (OSError, Conflict, SessionBusy):
            raise
        except Exception:
            # Whatever a damaged journal raises: the person asked to be rid of it.
            what = f"given up; {self._give_up(root, found[1])}"
        here.catalogue.drop_set_aside(here.place.n)
        here.problems.clear()
        return what

    def _give_up(self, root: int, content: bytes) -> str:
        """Put back what was taken out, if that is known; says in words what became of it."""
        from .restore import Restore

        try:
            journal = decoded(content)
        except Exception:
            # Nothing says what was meant, so nothing can be put back.
            left = [name for name in os.listdir(root) if is_reserved(os.fsencode(name))]
            names = ", ".join(f"{self._here.path}/{name}" for name in sorted(left))
            return f"what it had taken out cannot be put back{names and ': see '}{names}"
        Restore(root, journal.id, self._here.blobs.get).give_up(journal.plan)
        self._here.restored(root, None)
        return "what it had taken out is back"
