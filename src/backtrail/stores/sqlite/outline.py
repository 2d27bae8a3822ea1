"""What SQLite tells of a log without its bodies: which events there are, and how many.

The check sum of a row covers its body, so only the rows that say where the history goes on, of
which there are few, are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import apsw

from ...errors import Damaged, NotFound
from ...events import MAX_SEQ
from ...events.history import Mark
from ..disk.checks import SEQ_BITS, are_within, check_row
from ..disk.database import Database
from .logs import Log

UNREADABLE = (Damaged, apsw.CorruptError, UnicodeDecodeError)
"""What a damaged database raises here. A reader that goes event by event gets on."""

_COLUMNS = (
    "key, iif(follows IS NULL, NULL, id), iif(follows IS NULL, NULL, ts), kind, follows, "
    "iif(follows IS NULL, NULL, CAST(data AS BLOB)), crc"
)
_THERE = "SELECT EXISTS(SELECT 1 FROM logs WHERE n = ? AND session IS NOT NULL)"


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
        if not connection.execute(_THERE, (log.n,)).get:
            raise NotFound("the session, or its log, was deleted during the read")
    return found
