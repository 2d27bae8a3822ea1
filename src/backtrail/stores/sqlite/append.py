"""Appending in SQLite: usual events by one statement, all else in a transaction.

The head of a log that was appended to before is remembered. One event, and one for each of
several logs, then is one INSERT, which is a transaction by itself, and which finds out by itself
whether what is remembered still holds: the key is taken if others appended, and the log's mark in
`dirty` is gone if it was deleted or counted meanwhile. If so, and for everything else, the long
way is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import apsw

from ...errors import BacktrailError, Damaged, SessionBusy
from ...events import (
    MAIN_LOG,
    MAX_SEQ,
    Event,
    NewEvent,
    check_log,
    check_session_id,
    encode_data,
    make_event,
    mint,
    numbered,
)
from ..batches import Call, Outcome, Stored, drafts, is_usual, settle
from ..disk.checks import row_sum, usual_sum
from ..disk.database import Database
from ..disk.fs import failed
from ..disk.schema import failure
from ..disk.transactions import Execute
from .logs import Log, event_by_id, find_log, head_of
from .records import add_log

if TYPE_CHECKING:
    from ..batches import UsualEvent

_ONE = (
    "INSERT INTO events SELECT ?1, ?2, ?3, ?4, NULL, CAST(?5 AS TEXT), ?6 "
    "WHERE EXISTS(SELECT 1 FROM dirty WHERE log = ?7)"
)
_MOST_ROWS = 128


@functools.cache
def _many(rows: int) -> str:
    """`_ONE` for rows of one log or several, in order: all of them, or a `ConstraintError`.

    An event of a log without a mark has no id here, which is refused. Rows without a key are
    there to make up the number, so that few statements do for all numbers.
    """
    return (
        "INSERT INTO events SELECT column1, "
        "CASE WHEN EXISTS(SELECT 1 FROM dirty WHERE log = column1 >> 32) THEN column2 END, "
        "column3, column4, NULL, CAST(column5 AS TEXT), column6 "
        f"FROM (VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * rows)}) WHERE column1 IS NOT NULL"
    )


_INSERT = "INSERT INTO events VALUES(?, ?, ?, ?, ?, CAST(? AS TEXT), ?)"
_THERE = "SELECT 1 FROM events WHERE key = ?"
_DIRTY = "INSERT OR IGNORE INTO dirty VALUES(?)"
_REMEMBERED = 4096


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


def _numbered(
    calls: Sequence[Call], logs: list[int], heads: dict[int, int]
) -> tuple[list[list[Event]], list[object]]:
    """The events of usual calls, and the values of `_many` for them; moves the heads on."""
    events: list[list[Event]] = []
    values: list[object] = []
    for call, log in zip(calls, logs, strict=True):
        id, _, ts, kind, _, data, body = call.batch[0]
        seq = heads[log] = heads[log] + 1
        id, key = numbered(id, seq), log << 32 | seq
        values += (key, id, ts, kind, body, usual_sum(key, id, ts, kind, body))
        events.append([make_event(seq, id, ts, kind, data, None)])
    rows = 1 << (len(calls) - 1).bit_length()
    values += [None] * (6 * (rows - len(calls)))
    return events, values


class Appender:
    """Appends to the logs of one scope of a database."""

    def __init__(self, database: Database, scope: str) -> None:
        self._database = database
        self._scope = scope
        # Where a session's log is; every use checks that it still exists.
        self._places: dict[tuple[str, str], Log] = {}
        self._of: apsw.Connection | None = None

    def append(
        self, session_id: str, events: Sequence[NewEvent], log: str, expected: int | None
    ) -> list[Event]:
        """Append a batch as `Store.append` describes it."""
        # Nearly every append: a seventh faster than as a call of one event.
        if expected is None and log == MAIN_LOG and len(events) == 1 and is_usual(events[0]):
            event = self._append_usual(session_id, events[0])
            if event is not None:
                return [event]
        return self._append_all([Call(session_id, drafts(events), log, expected)])[0]

    def _append_usual(self, session_id: str, new: UsualEvent) -> Event | None:
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

    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        """Append what several callers want, in as few transactions as will do."""
        outcomes: list[Outcome] = []
        for at in range(0, len(calls), _MOST_ROWS):
            outcomes += self._append_group(calls[at : at + _MOST_ROWS])
        return outcomes

    def _append_group(self, calls: Sequence[Call]) -> Sequence[Outcome]:
        try:
            return self._append_known(calls) or self._append_all(calls)
        except BacktrailError as error:
            # For a lock each of them would wait as long again.
            if len(calls) == 1 or isinstance(error, SessionBusy):
                return [error] * len(calls)
        # One of them cannot be stored: each by itself, so that it is the only one.
        return [outcome for call in calls for outcome in self._append_group([call])]

    def _append_known(self, calls: Sequence[Call]) -> list[list[Event]] | None:
        """One event to each main log by one statement; None if something is not as remembered.

        Each statement hands the interpreter to another thread, and waits to get it back.
        """
        logs: list[int] = []
        for call in calls:
            is_usual = call.log == MAIN_LOG and call.usual
            place = self._places.get((call.session_id, MAIN_LOG)) if is_usual else None
            if place is None:
                return None
            logs.append(place.n)
        database = self._database
        lock = database.lock
        try:
            locked = lock.try_acquire()
        except OSError as error:
            raise failed(error, f"lock the database {database.path}") from error
        if not locked:
            database.enter()
        try:
            writer, sync = database.connection, database.sync
            if writer is None or sync is None or sync.failure is not None:
                return None
            if writer is not self._of:
                self._of, self._execute = writer, writer.cursor().execute
            # A head that is not known is taken for that of a full log.
            heads = {log: database.heads.get(log, MAX_SEQ) for log in logs}
            events, values = _numbered(calls, logs, heads)
            if max(heads.values()) > MAX_SEQ:
                return None
            try:
                self._execute(_many(len(values) // 6), values)
            except apsw.ConstraintError:
                for log in heads:
                    database.heads.pop(log, None)
                return None
            database.heads.update(heads)
            database.writing.ticket = sync.note()
        except apsw.Error as error:
            raise failure(error, database.path) from error
        finally:
            lock.release()
        return events

    def _append_all(self, calls: Sequence[Call]) -> list[list[Event]]:
        """All in one transaction; an error of one of them takes all back."""
        with self._database.writing() as execute:
            return [self._append_one(execute, call) for call in calls]

    def _append_one(self, execute: Execute, call: Call) -> list[Event]:
        session_id, batch, log, expected, _, _ = call
        database = self._database
        named = type(session_id) is str and type(log) is str
        place = self._places.get((session_id, log)) if named else None
        head = None if place is None else database.writing.head(place.n)
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
        if fresh and not known and execute(_THERE, (first | fresh[-1][0].seq,)).get is None:
            # A page is in another's place, so what is written behind it cannot be read.
            raise Damaged(f"log {place.n} takes no events: the database is damaged, see `verify`")
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
