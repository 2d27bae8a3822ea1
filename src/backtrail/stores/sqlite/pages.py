"""The events of a log in SQLite, page by page, and which events there are, without their bodies.

Between two pages nothing is held.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Unpack, cast

import apsw

from ...errors import Damaged, NotFound
from ...events import MAX_SEQ, Event, Problem
from ...events.history import Mark
from ..disk.checks import COLUMNS, SEQ_BITS, are_within, check_row, events_of
from ..disk.database import Database
from ..records import Range
from .logs import Log

_PAGE_BYTES = 1 << 18
_FIRST_PAGE = 64
_LAST_PAGE = 4096

# More rows than one page of the file, or one page of pages, can hold.
_LOST = 4096

Damage = Callable[[int, str], None]
"""Called with the `seq` of a row that cannot be read, and why."""


def read_log(
    database: Database,
    log: Log,
    session_id: str,
    damage: Damage,
    **events: Unpack[Range],
) -> Iterator[Event]:
    """The events of a log, in pages; between them nothing is held. `NotFound` once it is gone."""
    return chain.from_iterable(_pages(database, log, session_id, damage, events))


def _pages(
    database: Database, log: Log, session_id: str, damage: Damage, wanted: Range
) -> Iterator[list[Event]]:
    after, until, limit = wanted.get("after", 0), wanted.get("until"), wanted.get("limit")
    reverse = wanted.get("reverse", False)
    top = MAX_SEQ if until is None else until
    left = MAX_SEQ if limit is None else limit
    rows = _FIRST_PAGE
    for source, low, high, unsealed in reversed(log.spans) if reverse else log.spans:
        low, high = max(low, after), min(high, top)
        more = True
        while more and low < high and left > 0:
            part = _Part(log.n, source, low, high, min(rows, left), wanted)
            read = part.read(database)
            with not_collecting():
                found = events_of(read, unsealed, part.note)
            if part.gone:
                raise NotFound(f"session `{session_id}`, or its log, was deleted during the read")
            for seq, why in part.damaged:
                damage(seq, why)
            yield found
            left -= len(found)
            rows = min(rows * 4, _LAST_PAGE)
            more = part.more
            if reverse:
                high = part.last - 1
            else:
                low = part.last


@contextmanager
def not_collecting() -> Iterator[None]:
    """Pause the search for garbage: what is decoded holds no cycles, and there is much of it.

    Where it is paused already, by another thread too, it is left to that one.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_EXISTS = "EXISTS(SELECT 1 FROM logs WHERE n = ? AND session IS NOT NULL)"


class _Part:
    """Some rows of one span of log `reader`, read at once; none once that log was deleted.

    Deleted rows go a slice at a time, so without this a reader would pass over some.
    """

    def __init__(
        self, reader: int, source: int, low: int, high: int, rows: int, wanted: Range
    ) -> None:
        self._reader = reader
        self._bounds = (source << 32 | low, source << 32 | high)
        self._rows = rows
        kinds = wanted.get("kinds")
        self._kinds = None if kinds is None else tuple(kinds)
        self._reverse = wanted.get("reverse", False)
        self.damaged: list[tuple[int, str]] = []
        self.last = 0
        self.more = self.gone = False

    def read(self, database: Database) -> list[Any]:
        """The rows; `more` and `last` say where to go on, `damaged` what was passed over."""
        with database.reading() as connection:
            try:
                rows = self._at_once(connection)
            except (apsw.CorruptError, UnicodeDecodeError, TypeError):
                self.more = False
                rows = self._one_by_one(connection)
            # Otherwise it was there as these were read.
            if not rows or self.damaged:
                self.gone = not connection.execute(f"SELECT {_EXISTS}", (self._reader,)).get
            return rows

    def note(self, seq: int, why: str) -> None:
        """Note a row that was read and is not what was written."""
        self.damaged.append((seq, why))

    def _query(self) -> str:
        kinds, index = "", ""
        if self._kinds == ("checkpoint",):
            # The constant is what lets SQLite use the index, which holds nothing else.
            kinds, index = " AND kind = ? AND kind = 'checkpoint'", " INDEXED BY checkpoints"
        elif self._kinds is not None:
            kinds = f" AND kind IN ({', '.join('?' * len(self._kinds))})"
        order = " DESC" if self._reverse else ""
        return (
            f"SELECT {COLUMNS} FROM events{index} WHERE key > ? AND key <= ?{kinds} "
            f"AND {_EXISTS} ORDER BY key{order} LIMIT ?"
        )

    def _at_once(self, connection: apsw.Connection) -> list[Any]:
        rows: list[Any] = []
        add = rows.append
        size = 0
        cursor = connection.cursor()
        try:
            values = (*self._bounds, *(self._kinds or ()), self._reader, self._rows)
            cursor.execute(self._query(), values)
            for row in cast("Iterator[Any]", cursor):
                add(row)
                size += len(row[5])
                if size > _PAGE_BYTES:
                    # Large messages must not pile up; the rest comes with the next page.
                    self.more = True
                    break
        finally:
            cursor.close()
        # In a damaged tree keys may not be in order. Going on from them would not end.
        if not are_within(rows, *self._bounds, self._reverse):
            raise apsw.CorruptError(f"the keys of {len(rows)} rows are out of order")
        # Forwards, only an empty page is the end: events may have come while this one was read.
        count = len(rows)
        self.more = self.more or count == self._rows or (count > 0 and not self._reverse)
        self.last = rows[-1][0] & SEQ_BITS if rows else 0
        return rows

    def _one_by_one(self, connection: apsw.Connection) -> list[Any]:
        """The same, one row at a time, because a page of the file cannot be read."""
        low, high = self._bounds
        high = min(high, self._top(connection))
        query = f"SELECT {COLUMNS} FROM events WHERE key = ?"
        rows: list[Any] = []
        key, lost = (high, 0) if self._reverse else (low + 1, 0)
        while low < key <= high:
            self.last = key & SEQ_BITS
            try:
                row: Any = connection.execute(query, (key,)).get
                if row is not None and row[0] != key:
                    raise apsw.CorruptError(f"the row of the key {key} has another")
                step = 1 if row is not None else self._to_next(connection, key)
            except (apsw.CorruptError, UnicodeDecodeError) as error:
                self.note(self.last, str(error))
                lost += 1
                # No page holds as many: from here on it is a gap that cannot be looked into.
                step = 1 if lost < _LOST else lost
            else:
                lost = 0
                if row is not None and (self._kinds is None or row[3] in self._kinds):
                    rows.append(row)
                    if len(rows) == self._rows:
                        self.more = True
                        break
            key = key - step if self._reverse else key + step
        return rows

    def _to_next(self, connection: apsw.Connection, key: int) -> int:
        """How far it is from a key that is not there to the next one that is.

        `apsw.CorruptError` if that cannot be known: where a page is in another's place, the search
        for the next key ends at one that is not between the bounds.
        """
        low, high = self._bounds
        query = "SELECT min(key) FROM events WHERE key > ? AND key <= ?"
        bounds = (key, high)
        if self._reverse:
            query, bounds = query.replace("min", "max"), (low, key - 1)
        found: int | None = connection.execute(query, bounds).get
        if found is None:
            return high - low + 1
        if not bounds[0] < found <= bounds[1]:
            raise apsw.CorruptError(f"there is no key {key}, and {found} is in its place")
        return abs(found - key)

    def _top(self, connection: apsw.Connection) -> int:
        """The last key there is; if its page cannot be read, the first that was on it."""
        low, high = self._bounds
        try:
            query = "SELECT max(key) FROM events WHERE key > ? AND key <= ?"
            found: int = connection.execute(query, self._bounds).get or 0
            if not found or low < found <= high:
                return found
        except apsw.CorruptError:
            pass
        query = "SELECT key FROM events WHERE key = ?"
        key = top = low
        lost = 0
        while key < high and key - top <= _LOST:
            key += 1
            try:
                if connection.execute(query, (key,)).get is not None:
                    top = key
            except apsw.CorruptError:
                lost = lost if lost > top else key
        return max(top, lost)


def problem(session_id: str, log: str, seq: int, why: str) -> Problem:
    """The report for a row that cannot be read."""
    return Problem(session_id, log, "unreadable", f"event {seq}: {why}", seqs=(seq,))


# --- without bodies ----------------------------------------------------------------------

# The check sum of a row covers its body, so only the rows that say where the history goes on, of
# which there are few, are checked.


UNREADABLE = (Damaged, apsw.CorruptError, UnicodeDecodeError)
"""What a damaged database raises here. A reader that goes event by event gets on."""

_COLUMNS = (
    "key, iif(follows IS NULL, NULL, id), iif(follows IS NULL, NULL, ts), kind, follows, "
    "iif(follows IS NULL, NULL, CAST(data AS BLOB)), crc"
)


def marks_of(
    database: Database, log: Log, kinds: Collection[str], after: int, until: int | None
) -> list[Mark]:
    """The events of some kinds, and all that jump, in order."""
    some = ", ".join("?" * len(kinds))
    query = f"SELECT {_COLUMNS} FROM events WHERE (follows IS NOT NULL OR kind IN ({some})) AND "
    found: list[Mark] = []
    for unsealed, bounds, rows in _rows(database, log, query, tuple(kinds), after, until):
        _check_within(rows, bounds)
        for row in rows:
            key, _, _, kind, follows, _, _ = row
            if follows is not None:
                check_row(row, unsealed)
            found.append(Mark(key & SEQ_BITS, kind, follows))
    return found


def tally_of(database: Database, log: Log, after: int, until: int | None) -> dict[str, int]:
    """How many events of each kind there are."""
    found: Counter[str] = Counter()
    query = "SELECT min(key), max(key), kind, count(*) FROM events WHERE "
    for _, bounds, rows in _rows(database, log, query, (), after, until, " GROUP BY kind"):
        keys = sorted({(key,) for row in rows for key in row[:2]})
        _check_within(keys, bounds)
        found.update({kind: count for _, _, kind, count in rows})
        if keys and sum(row[3] for row in rows) > keys[-1][0] - keys[0][0] + 1:
            raise Damaged("there are more events in a log than numbers")
    return dict(found)


def _check_within(rows: list[Any], bounds: tuple[int, int]) -> None:
    if not are_within(rows, *bounds):
        raise Damaged("the events of a log are out of order")


def _rows(
    database: Database, log: Log, query: str, values: tuple[str, ...], after: int,
    until: int | None, end: str = " ORDER BY key",
) -> list[tuple[int, tuple[int, int], list[Any]]]:  # fmt: skip
    """The rows of each span, with how far it is unsealed, and the bounds of its keys.

    `NotFound` once the log is deleted.
    """
    found: list[tuple[int, tuple[int, int], list[Any]]] = []
    with database.reading() as connection:
        for source, low, high, unsealed in log.spans:
            low, high = max(low, after), min(high, MAX_SEQ if until is None else until)
            if low < high:
                bounds = (source << 32 | low, source << 32 | high)
                bounded = f"{query}key > ? AND key <= ?{end}"
                rows = connection.execute(bounded, (*values, *bounds)).fetchall()
                found.append((unsealed, bounds, rows))
        if not connection.execute(f"SELECT {_EXISTS}", (log.n,)).get:
            raise NotFound("the session, or its log, was deleted during the read")
    return found
