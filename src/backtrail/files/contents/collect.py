"""Cleaning up after sessions: what no session relies on goes, and the rest keeps to a budget.

Several stores may share one place for contents. Each judges only its own sessions; what
others rely on stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime

import msgspec

from ... import telemetry
from ..._startup.frozen import dataclass
from ...errors import Damaged, InvalidData, NotFound, SessionBusy
from ...events import MAIN_LOG, Event, Json, NewEvent, Problem
from ...events.history import DELETED
from ...stores import due
from ...stores.base import Store
from ...stores.due import GRACE
from ...stores.memory import MemoryStore
from ...stores.opening import store_at
from ...stores.records import is_deleted
from ...stores.wrapper import store_names, unwrapped
from ..changes.brackets import Bracket, is_dead
from ..depot import Depot, opened
from ..restore.journal import decoded
from . import garbage
from .blobs import Reference
from .garbage import RECENT, Garbage, Point, mark_and_sweep, reach

_SHARES = (1.0, 0.8)
"""How much of the budget to aim at. Weights are guesses, so the first may not do."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did, or would do in a dry run.

    `sessions` were deleted before, and what only they relied on went. `calls` counts those
    that crashes left, and whose session was not opened for a week: what they did is not recorded
    any more, and what was kept for that goes. `points` counts the old automatic points
    that were given up for the budget. `blobs` and `bytes` (as they
    were before compression) are gone. `held`: a damaged tree kept anything from going.
    `used` of `budget` bytes are taken now; `over_budget`: that is more than allowed, and
    nothing more could be given up, so no files are captured.
    """

    sessions: tuple[str, ...]
    calls: int
    points: int
    blobs: int
    bytes: int
    problems: tuple[Problem, ...]
    held: bool
    used: int
    budget: int
    over_budget: bool
    dry_run: bool

    def to_dict(self) -> dict[str, Json]:
        """The outcome as JSON."""
        row: dict[str, Json] = msgspec.to_builtins(self)
        return row


def collect(
    store: Store | str,
    *,
    grace: float = GRACE,
    dry_run: bool = False,
    budget: int | None = None,
) -> Collected:
    """Remove the contents of files that no session and no workspace relies on.

    What was written in the last `grace` seconds is spared, because a writer may be about
    to rely on it. If the rest takes more than `budget` bytes (by default 10 GB, or 5 % of
    the disk if that is less), the oldest automatic points are given up; never labelled
    checkpoints, never the last seven days. Sessions may go on meanwhile.
    """
    if not isinstance(store, Store):
        with store_at(store, create=False) as place:
            return collect(place, grace=grace, dry_run=dry_run, budget=budget)
    if grace < 0 or (budget is not None and budget < 0):
        raise InvalidData("`grace` and `budget` are not negative")
    with (
        telemetry.span("files.collect", store=type(store).__name__, dry_run=dry_run) as span,
        opened(store) as depot,
    ):
        limit = garbage.default_budget(depot.folder) if budget is None else budget
        began = time.time()
        done = _Collection(store, depot, grace, dry_run).run(limit)
        if not dry_run and grace <= GRACE:
            full = garbage.is_nearly_full(done.used, limit)
            due.settled(unwrapped(store), began, full=full)
        span.measurements.update(
            blobs=done.blobs, bytes=done.bytes, calls=done.calls, points=done.points,
            used=done.used,
        )  # fmt: skip
        span.metadata.update(
            sessions=list(done.sessions), held=done.held, over_budget=done.over_budget
        )
        return done


def planned(depot: Depot) -> set[bytes]:
    """The contents that restores need which were cut short, and will be finished."""
    found: set[bytes] = set()
    for place in depot.catalogue.places():
        journal = depot.catalogue.journal(place.n)
        aside = depot.catalogue.set_aside_of(place.n)
        for content in (journal and journal[1], aside and aside[1]):
            if content:
                found.update(_needed(content))
    return found


def _needed(journal: bytes) -> Iterable[bytes]:
    """The contents that a journal needs; none where it cannot be read."""
    try:
        return decoded(journal).plan.needed()
    except Damaged:
        return ()


class Sessions:
    """Which sessions of a store exist, as far as that is known."""

    def __init__(self, store: Store) -> None:
        self.names = store_names(store)
        self._store = store
        self._parents = {info.parent_id for info in store.sessions()}
        inner = unwrapped(store)
        shared = isinstance(inner, MemoryStore) and inner.contents is not None
        # The same name may stand for another process's sessions.
        self._known = bool(store.url) and not shared

    def is_gone(self, session_id: str) -> bool:
        """Whether no session can ask for its files any more, not even a fork."""
        if not self._known or session_id in self._parents:
            return False
        try:
            self._store.logs(session_id)
        except NotFound:
            return True
        return False


class _Collection:
    """One collection in one store."""

    def __init__(self, store: Store, depot: Depot, grace: float, dry_run: bool) -> None:
        self._store = store
        self._depot = depot
        self._blobs = depot.blobs
        self._sessions = Sessions(store)
        self._grace = grace
        self._dry_run = dry_run
        self._dropped: set[Reference] = set()
        self._lost = {call.id for call in depot.catalogue.lines.calls() if _is_lost(call)}

    def run(self, limit: int) -> Collected:
        if not self._dry_run:
            self._depot.catalogue.lines.give_up(self._lost)
        sessions = self._drop_gone()
        done = self._sweep()
        blobs, size, points = done.blobs, done.bytes, 0
        used = self._used(done, limit)
        for share in _SHARES:
            if used <= limit or done.held:
                break
            old = self._for_budget(limit * share, used)
            if not old:
                continue
            points += len(old)
            self._dropped.update(old)
            if self._dry_run:
                blobs = size = 0
            else:
                garbage.drop(self._blobs, old)
            done = self._sweep()
            used = self._used(done, limit)
            blobs, size = blobs + done.blobs, size + done.bytes
        return Collected(
            tuple(sessions), len(self._lost), points, blobs, size, self._problems(done),
            done.held, used, limit, used > limit, self._dry_run,
        )  # fmt: skip

    def _drop_gone(self) -> list[str]:
        """Drop what sessions relied on that are not there any more."""
        names, blobs = self._sessions.names, self._blobs
        logs: dict[str, list[Reference]] = {}
        for reference in blobs.references():
            if reference.store in names:
                logs.setdefault(reference.log, []).append(reference)
        gone: list[str] = []
        for log, references in logs.items():
            if not self._sessions.is_gone(log):
                continue
            if not self._dry_run:
                garbage.drop(blobs, references)
                if not self._sessions.is_gone(log):
                    # Made meanwhile, and what it relies on may just have been written.
                    blobs.write([], references)
                    continue
            gone.append(log)
            self._dropped.update(references)
        return gone

    def _sweep(self) -> Garbage:
        return mark_and_sweep(
            self._blobs, self._present(), planned(self._depot),
            without=self._dropped, grace=self._grace, dry_run=self._dry_run,
        )  # fmt: skip

    def _present(self) -> set[bytes]:
        """The trees that workspaces rely on."""
        return self._depot.catalogue.lines.trees(*self._lost)

    def _used(self, done: Garbage, limit: int) -> int:
        """The bytes on the disk; in a dry run, what would be left of them."""
        used = self._blobs.used()
        if self._dry_run:
            return max(0, used - round(done.bytes * self._density(used)))
        if used > limit or done.blobs:
            try:
                # The -wal file counts too, and may be long.
                self._blobs.remove(())
            except SessionBusy:
                # A reader has it open. It gets shorter by itself later.
                return used
        return self._blobs.used()

    def _density(self, used: int) -> float:
        """Bytes on the disk for each byte of a content."""
        blobs = self._blobs
        total = 0
        for digest in blobs.digests():
            total += self._weigh(digest)
        return used / total if total else 1.0

    def _weigh(self, digest: bytes) -> int:
        try:
            return self._blobs.size(digest)
        except NotFound:
            return 0

    def _problems(self, done: Garbage) -> tuple[Problem, ...]:
        purged = garbage.erased_in(self._depot.folder)
        owners: dict[bytes, str] = {}
        for reference in self._blobs.references():
            owners.setdefault(reference.root, reference.log)
        return tuple(
            Problem(
                owners.get(digest, ""), "files",
                "missing tree" if isinstance(error, NotFound) else "damaged tree", str(error),
            )
            for digest, error in done.problems.items()
            if digest not in purged
        )  # fmt: skip

    # --- the budget ----------------------------------------------------------------------

    def _for_budget(self, limit: float, used: int) -> list[Reference]:
        """The references of old automatic points to give up, so that the rest fits."""
        get = self._blobs.get

        def holds(root: bytes, walked: set[bytes]) -> Iterator[bytes]:
            return reach(get, [root], lambda digest, error: None, walked)

        room = limit / self._density(used)
        return garbage.budget(self._points(), room, holds, self._weigh, now=time.time())

    def _points(self) -> list[Point]:
        """Every reference as a point in time, oldest first; what may not go has a label."""
        now = time.time()
        present = self._present()
        logs: dict[str, list[Reference]] = {}
        found: list[Point] = []
        for reference in self._blobs.references():
            if reference in self._dropped:
                continue
            if reference.store not in self._sessions.names or reference.root in present:
                found.append(Point(reference.root, now, "in use", reference))
            else:
                logs.setdefault(reference.log, []).append(reference)
        for log, references in logs.items():
            found.extend(self._points_of(log, references))
        return sorted(found, key=lambda point: point.at)

    def _points_of(self, log: str, references: list[Reference]) -> Iterator[Point]:
        """The points of one session, in the order it began to rely on them."""
        named = self._named(log)
        later = time.time()
        for reference in reversed(references):
            if reference.root in named:
                first, last, label = named[reference.root]
                later = min(later, first)
                yield Point(reference.root, last, label, reference)
            else:
                # No event names it: it is no younger than what came after it.
                yield Point(reference.root, later, None, reference)

    def _named(self, session_id: str) -> dict[bytes, tuple[float, float, str | None]]:
        """The trees that a session's events name: first and last time, and a label."""
        named: dict[bytes, tuple[float, float, str | None]] = {}
        deleted = self._deleted(session_id)
        # Gone, or going: only a fork of it is left, and reads the same events.
        with suppress(NotFound):
            for event in self._store.read(session_id, log=MAIN_LOG):
                at = _time_of(event)
                mark = event.kind == "checkpoint" and event.id not in deleted
                label = event.data.get("label") if mark else None
                for root in trees_of(event):
                    first, last, known = named.get(root, (at, at, None))
                    kept = known or (label if isinstance(label, str) else None)
                    named[root] = (min(first, at), max(last, at), kept)
        return named

    def _deleted(self, session_id: str) -> set[Json]:
        """The ids of the checkpoints that a session has deleted."""
        with suppress(NotFound):
            return {
                str(event.data.get("checkpoint"))
                for event in self._store.read(session_id, kinds=(DELETED,))
            }
        return set()


def drop_unnamed(store: Store, session_id: str, depot: Depot, roots: Iterable[bytes]) -> None:
    """Drop a session's references to trees that it names only in deleted checkpoints."""
    left = _unnamed(store, session_id, roots)
    references = [Reference(name, session_id, root) for name in store_names(store) for root in left]
    known = [one for one in depot.blobs.references() if one in references] if left else []
    garbage.drop(depot.blobs, known)
    again = left - _unnamed(store, session_id, left)
    # Named meanwhile: the writer may have found the reference still there.
    depot.blobs.write([], [one for one in known if one.root in again])


def _unnamed(store: Store, session_id: str, roots: Iterable[bytes]) -> set[bytes]:
    """Those of some trees that no event of a session names; most are named by a late one."""
    left = set(roots)
    for event in store.read(session_id, reverse=True) if left else ():
        if event.kind != "checkpoint" or not is_deleted(store, session_id, event.id):
            left.difference_update(trees_of(event))
        if not left:
            break
    return left


def _is_lost(call: Bracket) -> bool:
    """Whether a call was left by a crash, and its session too, for long."""
    return call.since < time.time() - RECENT and is_dead(call)


def _time_of(event: Event) -> float:
    """When an event happened; now, where its label is no time: what is in doubt is kept."""
    try:
        return datetime.fromisoformat(event.ts).timestamp()
    except (ValueError, OverflowError):
        return time.time()


def trees_of(event: Event | NewEvent) -> list[bytes]:
    """Every tree that an event names, once; nothing is believed: any program may record events."""
    files = event.data.get("files")
    texts: list[Json] = [event.data.get("tree")]
    if isinstance(files, dict):
        parts = files.get("parts")
        for part in [files, *(parts if isinstance(parts, list) else ())]:
            if isinstance(part, dict):
                texts += [part.get("before"), part.get("after")]
    found: dict[bytes, None] = {}
    for text in texts:
        try:
            digest = bytes.fromhex(text)
        except (TypeError, ValueError):
            continue
        if len(digest) == 32:
            found[digest] = None
    return list(found)
