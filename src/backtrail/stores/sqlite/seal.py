"""Check sums for events and parts of forks of an earlier version, which had none.

A seal says that an event is what it is today; whether it was that before, nothing can tell.
"""

from __future__ import annotations

from ...errors import Damaged
from ..disk.checks import COLUMNS, SEQ_BITS, are_within, check_row, row_sum, share_sum
from ..disk.database import Database
from ..disk.transactions import Execute

_ROWS = 1000

_OPEN = (
    "SELECT n, unsealed FROM logs WHERE typeof(unsealed) = 'integer' "
    "AND unsealed BETWEEN 1 AND 4294967295 ORDER BY n LIMIT 1"
)
_COUNT = (
    "SELECT count(*) FROM logs l JOIN events e "
    "ON e.key > l.n << 32 AND e.key <= (l.n << 32 | l.unsealed) AND e.crc IS NULL "
    "WHERE l.unsealed > 0"
)


def count_unsealed(database: Database) -> int:
    """The number of events without a check sum, in all scopes."""
    with database.reading() as connection:
        count: int = connection.execute(_COUNT).get
    return count


def seal(database: Database) -> int:
    """Give each event that has none a check sum, in slices that let others write in between.

    Returns the number of them. What cannot be read gets none, and is damaged from then on. The
    parts of forks get theirs as well, uncounted.
    """
    sealed = 0
    while True:
        with database.reading() as connection:
            is_done = connection.execute(_OPEN).get is None
        if is_done:
            _seal_shares(database)
            return sealed
        with database.writing as execute:
            sealed += _seal_slice(execute)
        database.acknowledge()


_SHARES = (
    "SELECT log, position, source, until FROM shares WHERE seal IS NULL "
    "AND typeof(position) = 'integer' AND typeof(source) = 'integer' AND typeof(until) = 'integer'"
)
_SEAL_SHARE = (
    "UPDATE shares SET seal = ? "
    "WHERE log = ? AND position = ? AND source = ? AND until = ? AND seal IS NULL"
)


def _seal_shares(database: Database) -> None:
    with database.reading() as connection:
        rows = connection.execute(_SHARES).fetchall()
    for start in range(0, len(rows), _ROWS):
        with database.writing as execute:
            for row in rows[start : start + _ROWS]:
                execute(_SEAL_SHARE, (share_sum(*row), *row))
        database.acknowledge()


def _seal_slice(execute: Execute) -> int:
    """Seal some rows of one log, from its end, and note how far that went."""
    found = execute(_OPEN).get
    if found is None:
        return 0
    log, unsealed = found
    first = log << 32
    query = f"SELECT {COLUMNS} FROM events WHERE key > ? AND key <= ? ORDER BY key DESC LIMIT ?"
    sealed = 0
    last = 0
    keys = "SELECT key FROM events WHERE key > ? AND key <= ? ORDER BY key DESC LIMIT ?"
    rows = execute(keys, (first, first | unsealed, _ROWS)).fetchall()
    if not are_within(rows, first, first | unsealed, reverse=True):
        raise Damaged(f"the events of log {log} are out of order: `verify` tells where")
    for (key,) in rows:
        last = (key & SEQ_BITS) - 1
        try:
            row = execute(query, (key - 1, key, 1)).get
            if row is None or row[6] is not None:
                continue
            check_row(row, unsealed)
        except (Damaged, UnicodeDecodeError):
            continue
        execute("UPDATE events SET crc = ? WHERE key = ?", (row_sum(*row[:6]), key))
        sealed += 1
    execute("UPDATE logs SET unsealed = ? WHERE n = ?", (last, log))
    return sealed
