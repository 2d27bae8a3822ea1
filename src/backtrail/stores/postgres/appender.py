"""Appending in PostgreSQL: nearly always one statement, which is one round trip.

The statement moves the head row and stores the events behind it, so numbers have no gaps, and it
carries what the caller relies on: the `epoch` of the log, the head expected, the holder of the
lease. If one of these is not so, nothing happens, and the long way finds out why: a transaction
that locks the head row, looks for the ids, and settles the batch as every store does.

When the connection breaks, the outcome is not known, and looking is not enough: a statement that
was held back in the network could come after the look. So the epoch is raised first, on another
connection. That waits for a statement at work, and stops one that comes later.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import psycopg
from psycopg.types.numeric import Int8

from ..._startup.frozen import NamedTuple
from ...errors import NotFound, SessionBusy, StoreFailed
from ...events import (
    MAIN_LOG,
    MAX_SEQ,
    Event,
    NewEvent,
    check_log,
    check_session_id,
    make_event,
    numbered,
)
from ..base import KnownIds
from ..batches import Draft, drafts, settle
from ..disk import forks
from .kept import MINUTE, shifted
from .link import PATIENCE, Execute, Link, Lost
from .rowgate import STEM, event_of, row_sum, sent_sum
from .spans import Log, events_by_id, find_log, own_number
from .statements import AGAIN, LOCK, LOOK, MAKE, MOVED, RAISE, RESORT, STORE, statement

_REMEMBERED = 4096
_TURNS = 50


class Known(NamedTuple):
    """What is remembered of a log: where it is, and the last event of it that was acknowledged."""

    log: Log
    sorted_until: str
    line: str
    seq: int = 0
    id: str = ""


class Holding(NamedTuple):
    """The lease of a log that this store has: its random name, and until when by our clock."""

    holder: str
    until: float


class Appender:
    """Appends to the logs of one scope."""

    def __init__(self, link: Link, scope: str, wrote: Callable[[int], None]) -> None:
        self._link = link
        self._scope = scope
        self._wrote = wrote
        self.leases: dict[int, Holding] = {}
        """The leases that this store has taken, by the number of the main log."""
        self._lost: dict[tuple[str, str], str] = {}
        self.after_fork()
        forks.register(self)
        link.reconnected = self._compare

    def after_fork(self) -> None:
        """The parent's leases are not ours, and neither is what was acknowledged to it."""
        self._known: dict[tuple[str, str], Known] = {}
        self.leases.clear()
        self._guard = threading.Lock()

    def append(
        self, session_id: str, events: Sequence[NewEvent], log: str, expected: int | None,
        ids: KnownIds = "follow",
    ) -> list[Event]:  # fmt: skip
        """Append a batch as `Store.append` describes it."""
        batch = drafts(events)
        self._link.check_open()
        check_session_id(session_id)
        check_log(log)
        name = (session_id, log)
        known = self._known.get(name)
        deadline = time.monotonic() + PATIENCE
        tried: Known | None = None
        while True:
            try:
                self._check_lost(name)
                if tried is not None:
                    done = self._settle_unknown(name, tried, batch)
                    if done is not None:
                        return done
                    tried, known = None, None
                    # What is there by now may be of the statement that was lost.
                    ids = "follow" if ids == "error" else ids
                    self._check_lost(name)
                if known is None:
                    known = self._find(session_id, log, make=bool(batch))
                if not batch:
                    return []
                if known is None:
                    raise NotFound(f"no session `{session_id}`")
                return self._try(name, known, batch, expected, ids)
            except _Moved:
                known = None
            except StoreFailed as error:
                if tried is None:
                    raise
                raise StoreFailed(
                    f"{error}. Whether the events are stored is not known: append them again with "
                    "the same ids, or look"
                ) from error
            except Lost as error:
                if time.monotonic() > deadline:
                    raise self._link.unreachable(error) from error
                # Before anything was sent there is nothing to settle.
                tried = tried or known

    def _check_lost(self, name: tuple[str, str]) -> None:
        """Raise if acknowledged events of a log are gone."""
        if name in self._lost:
            raise StoreFailed(self._lost[name])

    # --- where logs are --------------------------------------------------------------------

    def _find(self, session_id: str, name: str, *, make: bool) -> Known | None:
        """Where a log is now; one that is not there is made if there is something to write."""

        def find(execute: Execute) -> Log | None:
            session, log = find_log(execute, self._scope, session_id, name)
            if log is None and make:
                execute(MAKE, (self._scope, name, session))
                _, log = find_log(execute, self._scope, session_id, name)
            return log

        log, line = self._link.read(lambda execute: (find(execute), self._link.line))
        if log is None:
            return None
        known = Known(log, shifted(log.sorted_at, MINUTE) if name == MAIN_LOG else "~", line)
        with self._guard:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[session_id, name] = known
        return known

    def forget(self, session_id: str) -> None:
        """Forget where the logs of a session are."""
        for name in [name for name in list(self._known) if name[0] == session_id]:
            self._known.pop(name, None)

    def _note(self, name: tuple[str, str], known: Known, last: Event) -> None:
        """Remember the last event that was acknowledged."""
        self._wrote(known.log.n)
        with self._guard:
            before = self._known.get(name)
            if before is None or before.log.n != known.log.n or before.seq <= last.seq:
                self._known[name] = known._replace(seq=last.seq, id=last.id)

    # --- the short way ---------------------------------------------------------------------

    def _try(
        self, name: tuple[str, str], known: Known, batch: list[Draft], expected: int | None,
        ids: KnownIds,
    ) -> list[Event]:  # fmt: skip
        log = known.log
        held = self._held(log, name)
        numbers = [own_number(draft.id) if draft.given else None for draft in batch]
        given = sum(draft.given for draft in batch)
        is_simple = all(draft.follows is None for draft in batch) and (
            not given
            or (log.base == 0 and (len(batch) == 1 or (numbers.count(None) == len(batch))))
        )
        if expected is not None and not (type(expected) is int and 0 <= expected <= MAX_SEQ):
            is_simple = False
        if is_simple and given > 1:
            is_simple = len({draft.id for draft in batch}) == len(batch)
        if not is_simple:
            return self._long_way(name, known, batch, expected, held, ids)
        text, values, newest = self._values(known, batch, expected, held, numbers[0])
        try:
            rows = self._link.attempt(lambda execute: self._on(known, execute).all(text, values))
        except psycopg.errors.UniqueViolation:
            return self._long_way(name, known, batch, expected, held, ids)
        if len(rows) != len(batch):
            return self._long_way(name, known, batch, expected, held, ids)
        seq = rows[-1][0] - len(batch)
        events: list[Event] = []
        for draft in batch:
            seq += 1
            id = draft.id if draft.given else numbered(draft.id, seq)
            events.append(make_event(seq, id, draft.ts, draft.kind, draft.data, None))
        if newest > known.sorted_until:
            known = known._replace(sorted_until=shifted(newest, MINUTE))
        self._note(name, known, events[-1])
        return events

    def _values(
        self, known: Known, batch: list[Draft], expected: int | None, held: str,
        number: int | None,
    ) -> tuple[str, list[object], str]:  # fmt: skip
        """The statement of the short way, its values, and the newest time among the events."""
        count, scope = len(batch), self._scope
        newest = max((d.ts for d in batch if d.kind != "session_end"), default="")
        moves = newest >= known.sorted_until
        log = Int8(known.log.n)
        values: list[object] = [count, newest, log, Int8(known.log.epoch), count]
        values += [] if expected is None else [expected]
        values += [held] if held else []
        values += [] if number is None else [number, number, batch[0].id]
        values += [newest, shifted(newest, -MINUTE)] if moves else []
        options = (expected is not None, bool(held), number is not None, moves)
        stems = [draft.id if draft.given else draft.id[:STEM] for draft in batch]
        sums = [
            sent_sum(stem, draft.ts, draft.kind, None, draft.body)
            for stem, draft in zip(stems, batch, strict=True)
        ]
        if count == 1:
            draft = batch[0]
            values += [scope, log, stems[0], draft.ts, draft.kind, draft.body.decode()]
            values += [Int8(sums[0]), log]
            return statement(True, not draft.given, *options), values, newest
        values += [scope, log, count, count, log, count, stems]
        values += [[not draft.given for draft in batch], [draft.ts for draft in batch]]
        values += [[draft.kind for draft in batch], [draft.body.decode() for draft in batch], sums]
        return statement(False, True, *options), values, newest

    def _on(self, known: Known, execute: Execute) -> Execute:
        """See that it still is the server on which the log has this number."""
        if known.line != self._link.line:
            raise _Moved
        return execute

    def _held(self, log: Log, name: tuple[str, str]) -> str:
        """The name of the lease that this store has of a log; `SessionBusy` if it ran out."""
        if name[1] != MAIN_LOG:
            return ""
        holding = self.leases.get(log.n)
        if holding is None:
            return ""
        if time.monotonic() > holding.until:
            raise lapsed(name[0])
        return holding.holder

    # --- the long way ----------------------------------------------------------------------

    def _long_way(
        self, name: tuple[str, str], known: Known, batch: list[Draft], expected: int | None,
        held: str, ids: KnownIds,
    ) -> list[Event]:  # fmt: skip
        """Settle a batch with the head row locked."""

        def work(execute: Execute) -> tuple[list[Event], Known]:
            return self._settled(execute, name, known, batch, expected, held, ids)

        try:
            result, known = self._link.attempt_whole(work)
        except psycopg.errors.UniqueViolation as error:
            # The head row is locked: only damage has an id that was not found.
            raise self._link.failure(error) from error
        if result:
            self._note(name, known, max(result, key=lambda event: event.seq))
        return result

    def _settled(
        self, execute: Execute, name: tuple[str, str], known: Known, batch: list[Draft],
        expected: int | None, held: str, ids: KnownIds,
    ) -> tuple[list[Event], Known]:  # fmt: skip
        """Settle a batch in a transaction; the events, and what is known of the log then."""
        log = known.log
        row = self._on(known, execute).one(LOCK, (log.n,))
        if row is None or row[0] is None:
            self.forget(name[0])
            raise _Moved
        session, head, epoch, is_held = row[0], row[1], row[2], row[3] == held and row[4]
        if held and not is_held:
            raise lapsed(name[0])
        given = {draft.id for draft in batch if draft.given}
        there = events_by_id(execute, log, given) if given else {}
        result, fresh = settle(batch, head, there.get, expected, known=ids)
        is_own = False
        rows: list[tuple[object, ...]] = []
        for event, body in fresh:
            is_own = is_own or own_number(event.id) == event.seq
            crc = row_sum(log.n, event.seq, event.id, event.ts, event.kind, event.follows, body)
            place = (self._scope, log.n, event.seq, event.id)
            rows.append((*place, event.ts, event.kind, event.follows, body.decode(), crc))
        if rows:
            self._insert(execute, rows)
            newest = max((e.ts for e, _ in fresh if e.kind != "session_end"), default="")
            execute(MOVED, (len(rows), newest, is_own, log.n))
            if name[1] == MAIN_LOG and newest:
                execute(RESORT, (newest, session, shifted(newest, -MINUTE)))
        return result, known._replace(log=log._replace(epoch=epoch + is_own))

    def append_many(self, batches: Mapping[str, Sequence[NewEvent]]) -> dict[str, list[Event]]:
        """Append to several main logs in one transaction; their rows are locked in one order."""
        ready = {check_session_id(id): drafts(events) for id, events in batches.items()}
        self._link.check_open()
        for attempt in range(2):
            places: dict[str, Known] = {}
            for id in sorted(ready):
                self._check_lost((id, MAIN_LOG))
                found = self._known.get((id, MAIN_LOG)) or self._find(id, MAIN_LOG, make=False)
                if found is None:
                    raise NotFound(f"no session `{id}`")
                places[id] = found
            try:
                done = self._link.attempt_whole(functools.partial(self._many, places, ready))
                break
            except _Moved:
                if attempt:
                    raise NotFound("a session was deleted meanwhile") from None
            except Lost as error:
                raise StoreFailed(
                    f"{error}. Whether the events are stored is not known: append them again with "
                    "the same ids, or look"
                ) from error
        for id, (events, known) in done.items():
            if events:
                self._note((id, MAIN_LOG), known, max(events, key=lambda event: event.seq))
        return {id: done[id][0] for id in batches}

    def _many(
        self, places: Mapping[str, Known], ready: Mapping[str, list[Draft]], execute: Execute
    ) -> dict[str, tuple[list[Event], Known]]:
        found: dict[str, tuple[list[Event], Known]] = {}
        for id, known in places.items():
            name = (id, MAIN_LOG)
            held = self._held(known.log, name)
            batch = ready[id]
            found[id] = self._settled(execute, name, known, batch, None, held, "follow")
        return found

    def _insert(self, execute: Execute, rows: list[tuple[object, ...]]) -> None:
        columns = [list(column) for column in zip(*rows, strict=True)]
        execute(STORE, columns)

    # --- unknown outcomes --------------------------------------------------------------------

    def _settle_unknown(
        self, name: tuple[str, str], tried: Known, batch: list[Draft]
    ) -> list[Event] | None:
        """What a lost statement stored; None if it stored nothing, and never will."""
        log = tried.log

        def work(execute: Execute) -> list[Event] | None:
            execute(RAISE, (log.n,))
            stems = [draft.id[:STEM] for draft in batch if not draft.given]
            if not stems:
                # By the ids, as any retry is settled.
                return None
            rows = execute.all(LOOK, (log.n, max(tried.seq, log.head), stems))
            if not rows:
                return None
            there = {row[1][:STEM]: event_of(log.n, row) for row in rows}
            there |= events_by_id(execute, log, [draft.id for draft in batch if draft.given])
            return [there[draft.id if draft.given else draft.id[:STEM]] for draft in batch]

        events = self._link.attempt(work)
        if events is not None:
            self._note(name, tried, max(events, key=lambda event: event.seq))
        self._known.pop(name, None)
        return events

    # --- another server ----------------------------------------------------------------------

    def _compare(self, execute: Execute, moved: bool) -> None:
        """After a loss: see that the server has what was acknowledged, for every log in use."""
        with self._guard:
            known = [(name, one) for name, one in self._known.items() if one.seq]
            # Numbers of logs may have been given again.
            self._known.clear()
        if not known:
            return
        logs, seqs = [one.log.n for _, one in known], [one.seq for _, one in known]
        there = {
            (log, seq): (id, alive) for log, seq, id, alive in execute.all(AGAIN, (logs, seqs))
        }
        for name, one in known:
            id, alive = there.get((one.log.n, one.seq), (None, False))
            if id == one.id or not (alive or moved):
                continue
            self._lost[name] = (
                f"session `{name[0]}`, log `{name[1]}`: the server that answers at "
                f"{self._link.address.place} does not have event {one.seq} (`{one.id}`), which was "
                "acknowledged. Another server took over without the newest events, or a backup was "
                "restored. Nothing more is acknowledged here: compare with what you have, open the "
                "store anew, and append what is missing"
            )

    @property
    def lost(self) -> dict[tuple[str, str], str]:
        """The logs of which acknowledged events are gone, and what is said of them."""
        return dict(self._lost)


class _Moved(Exception):
    """What was remembered of a log is not so any more."""


def lapsed(session_id: str) -> SessionBusy:
    """The error for a holder whose lease ran out."""
    return SessionBusy(
        f"the lease of session `{session_id}` ran out before it was renewed: another process may "
        "drive it by now. Take it again, and read what came in between"
    )
