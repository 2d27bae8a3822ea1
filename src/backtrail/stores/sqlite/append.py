"""Appending in SQLite: usual events by one statement, all else in a transaction.

The head of a log that was appended to before is remembered. Usual events, of one caller or of
several, then are one INSERT, which is a transaction by itself, and which finds out by itself
whether what is remembered still holds: the key is taken if others appended, and the log's mark in
`dirty` is gone if it was deleted or counted meanwhile. If so, and for everything else, the long
way is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import apsw

from ...errors import BacktrailError, Damaged, SessionBusy
from ...events import (
    MAIN_LOG,
    MAX_SEQ,
    Event,
    Json,
    NewEvent,
    check_log,
    check_session_id,
    encode_data,
    make_event,
    mint,
    numbered,
)
from ..base import KnownIds
from ..batches import Call, Outcome, Stored, drafts, is_usual, settle
from ..disk.checks import row_sum
from ..disk.database import Database
from ..disk.fs import failed
from ..disk.schema import Execute, failure
from .infos import add_log
from .logs import Log, event_by_id, find_log, head_of

_MOST_ROWS = 128

# An event of a log without a mark has no id here, which is refused with `ConstraintError`.
_EVENT = (
    "INSERT INTO events SELECT {0}1, "
    "CASE WHEN EXISTS(SELECT 1 FROM dirty WHERE log = {0}1 >> 32) THEN {0}2 END, "
    "{0}3, {0}4, NULL, CAST({0}5 AS TEXT), {0}6"
)
_ONE = _EVENT.format("?")
_ROW = "(?, ?, ?, ?, ?, ?)"


def _several(values: list[object]) -> str:
    """`_ONE` for several rows, in order; adds values of rows that are none.

    These make up the number, so that few statements do for all numbers.
    """
    count = len(values) // 6
    rows = 1 << (count - 1).bit_length()
    values += [None] * (6 * (rows - count))
    front = _EVENT.format("column")
    return f"{front} FROM (VALUES {', '.join([_ROW] * rows)}) WHERE column1 IS NOT NULL"


_Usual = tuple[int, str, str, str, dict[str, Json], bytes]
"""The number of a log, and a new event for it without its `seq`: id, time, kind, data, and body."""

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


class Appender:
    """Appends to the logs of one scope of a database."""

    def __init__(self, database: Database, scope: str) -> None:
        self._database = database
        self._scope = scope
        # Where a session's log is; every use checks that it still exists.
        self._places: dict[tuple[str, str], Log] = {}
        self._of: apsw.Connection | None = None

    def append(
        self, session_id: str, events: Sequence[NewEvent], log: str, expected: int | None,
        known: KnownIds = "follow",
    ) -> list[Event]:  # fmt: skip
        """Append a batch as `Store.append` describes it."""
        if expected is None and log == MAIN_LOG and len(events) == 1 and is_usual(events[0]):
            # Nearly every append.
            place = self._places.get((session_id, MAIN_LOG)) if type(session_id) is str else None
            if place is not None:
                new = events[0]
                data = new.data
                body = encode_data(data)
                id, ts = mint()
                stored = self._append_known([(place.n, id, ts, new.kind, data, body)])
                if stored is not None:
                    return stored
        call = Call(session_id, drafts(events), log, expected, known=known)
        return self._append_all([call])[0]

    def append_many(self, batches: Mapping[str, Sequence[NewEvent]]) -> dict[str, list[Event]]:
        """Append to several main logs in one transaction."""
        calls = [Call(id, drafts(events)) for id, events in batches.items()]
        return dict(zip(batches, self._append_all(calls), strict=True))

    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        """Append what several callers want, in as few transactions as will do."""
        outcomes: list[Outcome] = []
        for at in range(0, len(calls), _MOST_ROWS):
            outcomes += self._append_group(calls[at : at + _MOST_ROWS])
        return outcomes

    def _append_group(self, calls: Sequence[Call]) -> Sequence[Outcome]:
        try:
            usual = self._known(calls)
            stored = self._append_known(usual) if usual else None
            return [[event] for event in stored] if stored else self._append_all(calls)
        except BacktrailError as error:
            # For a lock each of them would wait as long again.
            if len(calls) == 1 or isinstance(error, SessionBusy):
                return [error] * len(calls)
        # One of them cannot be stored: each by itself, so that it is the only one.
        return [outcome for call in calls for outcome in self._append_group([call])]

    def _known(self, calls: Sequence[Call]) -> list[_Usual]:
        """The usual events of calls to main logs that are remembered; none if any is another."""
        found: list[_Usual] = []
        for call in calls:
            is_usual = call.log == MAIN_LOG and call.usual and not call.fixed
            place = self._places.get((call.session_id, MAIN_LOG)) if is_usual else None
            if place is None:
                return []
            id, _, ts, kind, _, data, body = call.batch[0]
            found.append((place.n, id, ts, kind, data, body))
        return found

    def _append_known(self, new: Sequence[_Usual]) -> list[Event] | None:
        """Usual events by one statement; None if something is not as remembered.

        Each statement hands the interpreter to another thread, and waits to get it back.
        """
        database = self._database
        lock, known = database.lock, database.heads
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
            heads: dict[int, int] = {}
            stored: list[Event] = []
            values: list[object] = []
            for log, id, ts, kind, data, body in new:
                # A head that is not known is taken for that of a full log.
                seq = (heads.get(log) or known.get(log, MAX_SEQ)) + 1
                if seq > MAX_SEQ:
                    return None
                heads[log] = seq
                id, key = numbered(id, seq), log << 32 | seq
                # As `row_sum`: a call of its own for each event shows.
                crc = crc32(f"{id}\n{ts}\n{kind}\n{key}\n\n".encode() + body)
                values += (key, id, ts, kind, body, crc)
                stored.append(make_event(seq, id, ts, kind, data, None))
            try:
                self._execute(_ONE if len(new) == 1 else _several(values), values)
            except apsw.ConstraintError:
                for log in heads:
                    known.pop(log, None)
                return None
            known.update(heads)
            database.writing.ticket = sync.note()
        except apsw.Error as error:
            raise failure(error, database.path) from error
        finally:
            lock.release()
        return stored

    def _append_all(self, calls: Sequence[Call]) -> list[list[Event]]:
        """All in one transaction; an error of one of them takes all back."""
        with self._database.writing() as execute:
            return [self._append_one(execute, call) for call in calls]

    def _append_one(self, execute: Execute, call: Call) -> list[Event]:
        session_id, batch, log, expected = call[:4]
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

        result, fresh = settle(batch, head, find, expected, known=call.known)
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
