"""Appending in SQLite: nearly always one event, by one statement.

The head of a log that was appended to before is remembered. One event then is one INSERT,
which is a transaction by itself, and which finds out by itself whether what is remembered
still holds: the key is taken if others appended, and the log's mark in `dirty` is gone if
it was deleted or counted meanwhile. If so, and for everything else, the long way is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import apsw

from ..errors import BacktrailError
from ..events import (
    MAIN_LOG,
    MAX_SEQ,
    Event,
    check_log,
    check_session_id,
    encode_data,
    make_event,
    mint,
    numbered,
)
from .batches import Draft, Stored, full, settle
from .combining import Combiner, Job
from .files import failed
from .sqlite_checks import row_sum, usual_sum
from .sqlite_connections import Database
from .sqlite_logs import Log, event_by_id, find_log, head_of
from .sqlite_records import add_log
from .sqlite_schema import failure
from .sqlite_transactions import Execute

if TYPE_CHECKING:
    from .batches import UsualEvent

_ONE = (
    "INSERT INTO events SELECT ?1, ?2, ?3, ?4, NULL, CAST(?5 AS TEXT), ?6 "
    "WHERE EXISTS(SELECT 1 FROM dirty WHERE log = ?7)"
)
_MOST_ROWS = 128


@functools.cache
def _many(rows: int) -> str:
    """`_ONE` for several rows, in order."""
    return (
        "INSERT INTO events SELECT column1, column2, column3, column4, NULL, "
        "CAST(column5 AS TEXT), column6 "
        f"FROM (VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * rows)}) "
        "WHERE EXISTS(SELECT 1 FROM dirty WHERE log = ?)"
    )


_INSERT = "INSERT INTO events VALUES(?, ?, ?, ?, ?, CAST(? AS TEXT), ?)"
_DIRTY = "INSERT OR IGNORE INTO dirty VALUES(?)"
_REMEMBERED = 4096


_Waiting = tuple[str, str, str, str, bytes]
"""An event of a thread that waits: its session, its id before it has a number, time, kind, body."""

_Numbered = tuple[int, str]
"""What becomes of it: its `seq`, and the id that ends in it."""


def insert_all(execute: Execute, log: Log, stored: Iterable[Stored]) -> bool:
    """Write events that have their numbers to a new log; whether there were any."""
    first, filled = log.n << 32, False
    for event, body in stored:
        _insert(execute, first | event.seq, event, body)
        filled = True
    return filled


def _insert(execute: Execute, key: int, event: Event, body: bytes) -> None:
    row = (key, event.id, event.ts, event.kind, event.follows, body)
    execute(_INSERT, (*row, row_sum(*row)))


class Appender:
    """Appends to the logs of one scope of a database."""

    def __init__(self, database: Database, scope: str) -> None:
        self._database = database
        self._scope = scope
        # Where a session's log is; every use checks that it still exists.
        self._places: dict[tuple[str, str], Log] = {}
        self._of: apsw.Connection | None = None
        self._together = Combiner(self._append_all)

    def append(
        self, session_id: str, batch: list[Draft], log: str, expected: int | None
    ) -> list[Event]:
        """Append a batch as `Store.append` describes it."""
        named = type(session_id) is str and type(log) is str
        place = self._places.get((session_id, log)) if named else None
        return self._any(session_id, batch, log, expected, place)

    def append_usual(self, session_id: str, new: UsualEvent) -> Event | None:
        """One event to a main log by one statement; None if something is not as remembered."""
        try:
            log = self._places[session_id, MAIN_LOG].n
        except (KeyError, TypeError):
            return None
        data = new.data
        kind, body = new.kind, encode_data(data)
        id, ts = mint()
        database = self._database
        lock = database.lock
        try:
            locked = lock.try_acquire()
        except OSError as error:
            raise failed(error, f"lock the database {database.path}") from error
        if not locked:
            database.enter()
        try:
            head = database.heads.get(log)
            writer, sync = database.connection, database.sync
            if head is None or writer is None or sync is None or sync.failure is not None:
                return None
            if writer is not self._of:
                self._of, self._execute = writer, writer.cursor().execute
            seq = head + 1
            if seq > MAX_SEQ:
                return None
            id = numbered(id, seq)
            key = log << 32 | seq
            crc = usual_sum(key, id, ts, kind, body)
            try:
                self._execute(_ONE, (key, id, ts, kind, body, crc, log))
            except apsw.ConstraintError:
                database.heads.pop(log, None)
                return None
            if not writer.changes():
                database.heads.pop(log, None)
                return None
            database.heads[log] = seq
            database.writing.ticket = sync.note()
        except apsw.Error as error:
            raise failure(error, database.path) from error
        finally:
            lock.release()
        return make_event(seq, id, ts, kind, data, None)

    def append_together(self, session_id: str, new: UsualEvent) -> Event:
        """One event to a main log, synced, together with those of other threads."""
        if self._together.begin():
            try:
                alone = self.append_usual(session_id, new)
                if alone is not None:
                    self._database.acknowledge()
                    return alone
            finally:
                self._together.end()
        kind, data = new.kind, new.data
        body = encode_data(data)
        id, ts = mint()
        result = self._together.do((session_id, id, ts, kind, body))
        assert result is not None
        seq, id = result
        # Here and not by who leads: all others wait for that one.
        return make_event(seq, id, ts, kind, data, None)

    def _append_all(self, jobs: list[Job[_Waiting, _Numbered]]) -> None:
        """One transaction and one sync for everybody who waits."""
        if not self._append_same(jobs):
            self._append_each(jobs)

    def _append_same(self, jobs: list[Job[_Waiting, _Numbered]]) -> bool:
        """All by one statement, like `append_usual`; False if something is not as remembered.

        Each statement hands the interpreter to another thread, and waits to get it back.
        """
        session_id = jobs[0].value[0]
        place = self._places.get((session_id, MAIN_LOG))
        if place is None or len(jobs) > _MOST_ROWS:
            return False
        database, log = self._database, place.n
        database.enter()
        try:
            head = database.heads.get(log)
            writer, sync = database.connection, database.sync
            if head is None or writer is None or sync is None or sync.failure is not None:
                return False
            if head + len(jobs) > MAX_SEQ:
                return False
            if writer is not self._of:
                self._of, self._execute = writer, writer.cursor().execute
            values: list[object] = []
            first = log << 32
            for seq, job in enumerate(jobs, head + 1):
                of, id, ts, kind, body = job.value
                if of != session_id:
                    return False
                id = numbered(id, seq)
                key = first | seq
                values += (key, id, ts, kind, body, usual_sum(key, id, ts, kind, body))
                job.result = seq, id
            values.append(log)
            try:
                self._execute(_many(len(jobs)), values)
            except apsw.ConstraintError:
                database.heads.pop(log, None)
                return False
            if not writer.changes():
                database.heads.pop(log, None)
                return False
            database.heads[log] = head + len(jobs)
            ticket = database.writing.ticket = sync.note()
        except apsw.Error as error:
            raise failure(error, database.path) from error
        finally:
            database.lock.release()
        sync.wait(ticket)
        return True

    def _append_each(self, jobs: list[Job[_Waiting, _Numbered]]) -> None:
        database = self._database
        heads: dict[int, int] = {}
        with database.writing as execute:
            for job in jobs:
                session_id, id, ts, kind, body = job.value
                try:
                    place = self._places.get((session_id, MAIN_LOG))
                    if place is None or place.n not in heads:
                        place, head = self._find(execute, session_id, MAIN_LOG, place, True)
                        assert place is not None
                        heads[place.n] = head
                        execute(_DIRTY, (place.n,))
                except BacktrailError as error:
                    job.error = error
                    continue
                if heads[place.n] >= MAX_SEQ:
                    job.error = full()
                    continue
                seq = heads[place.n] = heads[place.n] + 1
                id = numbered(id, seq)
                row = (place.n << 32 | seq, id, ts, kind, None, body)
                execute(_INSERT, (*row, row_sum(*row)))
                job.result = seq, id
            if len(heads) == 1:
                database.writing.moves(*next(iter(heads.items())))
        database.acknowledge()

    def _any(
        self,
        session_id: str,
        batch: list[Draft],
        log: str,
        expected: int | None,
        place: Log | None,
    ) -> list[Event]:
        database = self._database
        with database.writing as execute:
            head = None if place is None else database.heads.get(place.n)
            known = head is not None
            if place is None or head is None:
                place, head = self._find(execute, session_id, log, place, bool(batch))
                if place is None:
                    return []

            def find(id: str) -> Event | None:
                return event_by_id(execute, place, id)

            result, fresh = settle(batch, head, find, expected)
            first = place.n << 32
            for event, body in fresh:
                _insert(execute, first | event.seq, event, body)
            if log == MAIN_LOG:
                if fresh and not known:
                    execute(_DIRTY, (place.n,))
                if fresh or known:
                    database.writing.moves(place.n, head + len(fresh))
        return result

    def _find(
        self, execute: Execute, session_id: str, name: str, place: Log | None, make: bool
    ) -> tuple[Log | None, int]:
        """Where a log is, and its head; an absent one is made if there is something to write."""
        head = None if place is None else head_of(execute, place.n)
        if head is not None:
            return place, head
        check_session_id(session_id)
        check_log(name)
        session, log = find_log(execute, self._scope, session_id, name)
        if log is None:
            # Not remembered: the transaction that makes it may fail.
            return (add_log(execute, session, name) if make else None), 0
        if len(self._places) >= _REMEMBERED:
            self._places.clear()
        self._places[session_id, name] = log
        return log, head_of(execute, log.n) or 0
