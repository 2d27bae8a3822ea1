"""Deleting in SQLite: first the session is gone, then its rows, as far as no fork reads them.

`detach` cuts a log off from its session in one transaction. `sweep` removes, in slices that
let others write in between, the rows of such logs that are not read any more. What a crash
leaves behind is swept with the next deletion.
"""

from __future__ import annotations

from collections.abc import Collection

from ...errors import InvalidId, NotFound
from ...events import MAIN_LOG, encode_data
from ..batches import PURGED
from ..disk.checks import SEQ_BITS, UNDECODABLE, row_sum
from ..disk.database import Database
from ..disk.schema import Execute
from .fulltext import erase, forget
from .infos import unfold
from .logs import find_log

_ROWS = 1000
_BYTES = 8 << 20


def detach(execute: Execute, scope: str, session_id: str, name: str | None) -> int:
    """Cut off one log, or all and the record with them; returns the session's number."""
    session, log = find_log(execute, scope, session_id, name or MAIN_LOG)
    if name is None:
        found = execute("SELECT n FROM logs WHERE session = ?", (session,)).fetchall()
        numbers = [n for (n,) in found]
        execute("DELETE FROM sessions WHERE n = ?", (session,))
    elif name == MAIN_LOG:
        raise InvalidId("the main log goes only with its session")
    elif log is None:
        raise NotFound(f"no log `{name}` in session `{session_id}`")
    else:
        numbers = [log.n]
    for n in numbers:
        execute("UPDATE logs SET session = NULL WHERE n = ?", (n,))
        execute("DELETE FROM shares WHERE log = ?", (n,))
        # What forks keep must still be found by a search.
        execute("INSERT OR IGNORE INTO unindexed SELECT log FROM dirty WHERE log = ?", (n,))
        execute("DELETE FROM dirty WHERE log = ?", (n,))
    return session


_TOMBSTONE = encode_data(PURGED)
_ROW = "SELECT id, ts, kind, follows, crc FROM events WHERE key = ?"


def entomb(execute: Execute, key: int) -> None:
    """Erase the body of an event for good, and make the check sum anew.

    The sum of a row that is damaged is not made right by that: it stays as it is.
    """
    try:
        row = execute(_ROW, (key,)).get
        body = execute("SELECT CAST(data AS BLOB) FROM events WHERE key = ?", (key,)).get
        if row is None:
            return
        id, ts, kind, follows, crc = row
        if crc is not None and crc == row_sum(key, id, ts, kind, follows, body):
            crc = row_sum(key, id, ts, kind, follows, _TOMBSTONE)
    except UNDECODABLE:
        crc = 0
    execute(
        "UPDATE events SET data = CAST(? AS TEXT), crc = ? WHERE key = ?", (_TOMBSTONE, crc, key)
    )


def purge(database: Database, scope: str, session_id: str, seqs: Collection[int], log: str) -> None:
    """`Store.purge`: the bodies go, and the words of the index, and what the -wal file holds."""
    with database.writing() as execute:
        _, found = find_log(execute, scope, session_id, log)
        indexed = False
        for seq in set(seqs):
            span = None if found is None else found.span_of(seq)
            if span is not None:
                key = span.log << 32 | seq
                entomb(execute, key)
                indexed = forget(execute, key, key) or indexed
                if log == MAIN_LOG:
                    unfold(execute, span.log, seq)
    if indexed:
        erase(database)
    database.erase_wal()


_GONE = (
    "SELECT n, keep, top FROM ("
    "SELECT l.n, (SELECT max(until) FROM shares WHERE source = l.n) AS keep,"
    " (SELECT max(key) FROM events WHERE key BETWEEN l.n << 32 AND l.n << 32 | 4294967295) AS top"
    " FROM logs l WHERE l.session IS NULL"
    ") WHERE keep IS NULL OR top & 4294967295 > keep LIMIT 100"
)


def sweep(database: Database) -> None:
    """Remove the rows that neither a session nor a fork reads."""
    before: list[object] = []
    while True:
        with database.reading() as connection:
            rows = connection.execute(_GONE).fetchall()
        if not rows or rows == before:
            # Nothing is left, or a damaged table does not let go of it.
            return
        before = rows
        with database.writing() as execute:
            _sweep_slice(execute)


def _sweep_slice(execute: Execute) -> None:
    rows, room = _ROWS, _BYTES
    for n, keep, top in execute(_GONE).fetchall():
        low = n << 32 | (keep or 0)
        first = low + 1
        if top is not None:
            # From the end, so that what is left is always the beginning of the log.
            query = (
                "SELECT key, octet_length(data) FROM events "
                "WHERE key > ? AND key <= ? ORDER BY key DESC LIMIT ?"
            )
            for key, size in execute(query, (low, n << 32 | SEQ_BITS, rows)).fetchall():
                first = key
                rows -= 1
                room -= size
                if rows <= 0 or room <= 0:
                    break
            forget(execute, first, top)
            execute("DELETE FROM events WHERE key BETWEEN ? AND ?", (first, top))
        if (
            keep is None
            and not execute(
                "SELECT 1 FROM events WHERE key > ? AND key <= ? LIMIT 1", (low, n << 32 | SEQ_BITS)
            ).fetchall()
        ):
            execute("DELETE FROM logs WHERE n = ?", (n,))
            execute("DELETE FROM unindexed WHERE log = ?", (n,))
        if rows <= 0 or room <= 0:
            return
