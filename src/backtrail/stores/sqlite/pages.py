"""The events of a log in SQLite, page by page: between two pages nothing is held."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar, cast

import apsw
import msgspec

from ...errors import Damaged, NotFound
from ...events import MAX_SEQ, MESSAGE_KINDS, Event, Json, Problem
from ...events.messages import Page, Said, said_in
from ..disk.checks import (
    COLUMNS,
    SEQ_BITS,
    UNDECODABLE,
    are_sealed,
    are_within,
    check_row,
    decode_body,
    events_of,
)
from ..disk.database import Database
from .logs import Log

_PAGE_BYTES = 1 << 18
_FIRST_PAGE = 64
_LAST_PAGE = 4096

# More rows than one page of the file, or one page of pages, can hold.
_LOST = 4096

_MESSAGES = frozenset(MESSAGE_KINDS)

T = TypeVar("T")


class _Known(Said, frozen=True, gc=False, forbid_unknown_fields=True):
    """The usual data of a message, all of it: what is not decoded is not checked either."""

    usage: Json = None
    cost_usd: Json = None


_decode_known = msgspec.json.Decoder(_Known).decode

Damage = Callable[[int, str], None]
"""Told the `seq` of a row that cannot be read, and why."""


def read_log(
    database: Database,
    log: Log,
    session_id: str,
    damage: Damage,
    *,
    after: int = 0,
    until: int | None = None,
    limit: int | None = None,
    reverse: bool = False,
    kinds: Collection[str] | None = None,
) -> Iterator[Event]:
    """The events of a log, in pages; between them nothing is held. `NotFound` once it is gone."""
    bounds = (after, MAX_SEQ if until is None else until)
    wanted = None if kinds is None else tuple(kinds)
    pages = _pages(database, log, session_id, damage, events_of, bounds, limit, reverse, wanted)
    return chain.from_iterable(pages)


def read_pages(
    database: Database, log: Log, session_id: str, damage: Damage, until: int | None
) -> Iterator[Page]:
    """The events up to `until` as views see them: newest page first, each in order."""
    bounds = (0, MAX_SEQ if until is None else until)
    pages = _pages(database, log, session_id, damage, _in_columns, bounds, None, True, None)
    return chain.from_iterable(pages)


def _pages(
    database: Database,
    log: Log,
    session_id: str,
    damage: Damage,
    decode: Callable[[list[Any], int, Damage], list[T]],
    bounds: tuple[int, int],
    limit: int | None,
    reverse: bool,
    kinds: tuple[str, ...] | None,
) -> Iterator[list[T]]:
    left = MAX_SEQ if limit is None else limit
    rows = _FIRST_PAGE
    for source, low, high, unsealed in reversed(log.spans) if reverse else log.spans:
        low, high = max(low, bounds[0]), min(high, bounds[1])
        more = True
        while more and low < high and left > 0:
            part = _Part(log.n, source, low, high, min(rows, left), reverse, kinds)
            read = part.read(database)
            with not_collecting():
                found = decode(read, unsealed, part.note)
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


def _in_columns(newest_first: list[Any], unsealed: int, damage: Damage) -> list[Page]:
    """Rows as one page, if there is anything in them; what cannot be read is as in `events_of`."""
    rows = newest_first[::-1]
    if not rows:
        return []
    said: list[Said]
    try:
        if not are_sealed(rows):
            for row in rows:
                check_row(row, unsealed)
        said = list(map(_decode_known, [row[5] for row in rows]))
    except (Damaged, *UNDECODABLE):
        rows, said = _one_at_a_time(newest_first, unsealed, damage)
    seqs = [row[0] & SEQ_BITS for row in rows]
    return [Page(seqs, [row[3] for row in rows], [row[4] for row in rows], said)]


def _one_at_a_time(
    newest_first: list[Any], unsealed: int, damage: Damage
) -> tuple[list[Any], list[Said]]:
    """The rows that can be read, oldest first, and what is said in each."""
    good: list[Any] = []
    said: list[Said] = []
    for row in newest_first:
        try:
            check_row(row, unsealed)
            said.append(_said(row[3], row[5]))
            good.append(row)
        except (Damaged, *UNDECODABLE) as error:
            damage(row[0] & SEQ_BITS, str(error))
    return good[::-1], said[::-1]


def _said(kind: str, body: bytes) -> Said:
    if kind in _MESSAGES:
        try:
            return _decode_known(body)
        except msgspec.ValidationError:
            pass
    return said_in(decode_body(body))


_EXISTS = "EXISTS(SELECT 1 FROM logs WHERE n = ? AND session IS NOT NULL)"


class _Part:
    """Some rows of one span of log `reader`, read at once; none once that log was deleted.

    Deleted rows go a slice at a time, so without this a reader would pass over some.
    """

    __slots__ = (
        *("_bounds", "_kinds", "_reader", "_reverse", "_rows"),
        *("damaged", "gone", "last", "more"),
    )

    def __init__(
        self,
        reader: int,
        source: int,
        low: int,
        high: int,
        rows: int,
        reverse: bool,
        kinds: tuple[str, ...] | None,
    ) -> None:
        self._reader = reader
        self._bounds = (source << 32 | low, source << 32 | high)
        self._rows = rows
        self._reverse = reverse
        self._kinds = kinds
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
                # No page holds as many: from here on it is a gap that nobody can look into.
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

        `apsw.CorruptError` if that cannot be told: where a page is in another's place, the search
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
