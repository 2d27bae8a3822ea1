"""Deleting in PostgreSQL: first the session is gone, then its rows, as far as no fork reads them.

`detach` cuts logs off from their session in one transaction. `sweep` removes, in slices, the rows
of such logs that are not read any more. What a crash leaves behind goes with the next deletion.
"""

from __future__ import annotations

from collections.abc import Collection

from ...errors import Damaged, InvalidId, NotFound
from ...events import MAIN_LOG, MAX_SEQ, encode_data
from ..batches import PURGED
from .kept import unfold
from .link import Execute, Link
from .rowgate import COLUMNS, event_of, row_sum
from .spans import find_log

_ROWS = 1000
_TOMBSTONE = encode_data(PURGED)


def detach(execute: Execute, scope: str, session_id: str, name: str | None) -> int:
    """Cut off one log, or all and the record with them; returns the session's number."""
    if name == MAIN_LOG:
        find_log(execute, scope, session_id, MAIN_LOG)
        raise InvalidId("the main log goes only with its session")
    session, log = find_log(execute, scope, session_id, name or MAIN_LOG)
    if name is not None and (log is None or not log.head):
        raise NotFound(f"no log `{name}` in session `{session_id}`")
    # First the logs, then the record, as an append does.
    only = "" if log is None or name is None else " AND n = %s"
    values = [session, log.n] if only and log is not None else [session]
    query = f"SELECT n FROM backtrail.logs WHERE session = %s{only} ORDER BY n FOR UPDATE"
    execute.all(query, values)
    there = "SELECT 1 FROM backtrail.sessions WHERE n = %s FOR UPDATE"
    if execute.one(there, (session,)) is None:
        raise NotFound(f"no session `{session_id}`")
    gone = execute.all(
        "UPDATE backtrail.logs SET session = NULL, holder = NULL, owner = NULL, until = NULL "
        f"WHERE session = %s{only} RETURNING n",
        values,
    )
    if name is None:
        execute("DELETE FROM backtrail.sessions WHERE n = %s", (session,))
    logs = [n for (n,) in gone]
    execute("DELETE FROM backtrail.shares WHERE log = ANY(%s)", (logs,))
    return session


_GONE = (
    "SELECT l.n, (SELECT max(until) FROM backtrail.shares WHERE source = l.n), "
    "(SELECT max(seq) FROM backtrail.events WHERE log = l.n) "
    "FROM backtrail.logs l WHERE l.session IS NULL ORDER BY l.n LIMIT 1000"
)


def sweep(link: Link) -> None:
    """Remove the rows that neither a session nor a fork reads."""
    while True:
        rows = link.read(lambda execute: execute.all(_GONE))
        left = False
        for log, keep, top in rows:
            if top is not None and top > (keep or 0):
                low = max(keep or 0, top - _ROWS)
                link.write(lambda execute, at=(log, low): _drop(execute, *at))  # type: ignore[misc]
                left = True
            elif keep is None:
                link.write(lambda execute, n=log: _forget(execute, n))  # type: ignore[misc]
        if not left:
            return


def _drop(execute: Execute, log: int, low: int) -> None:
    """Remove the rows above a number, if they are still not read."""
    row = execute.one("SELECT session FROM backtrail.logs WHERE n = %s FOR UPDATE", (log,))
    if row is None or row[0] is not None:
        return
    kept = execute.one("SELECT max(until) FROM backtrail.shares WHERE source = %s", (log,))
    low = max(low, (kept[0] if kept else None) or 0)
    execute("DELETE FROM backtrail.words WHERE log = %s AND seq > %s", (log, low))
    execute("DELETE FROM backtrail.events WHERE log = %s AND seq > %s", (log, low))


def _forget(execute: Execute, log: int) -> None:
    execute(
        "DELETE FROM backtrail.logs l WHERE n = %s AND session IS NULL AND NOT EXISTS("
        "SELECT 1 FROM backtrail.events e WHERE e.log = l.n) AND NOT EXISTS("
        "SELECT 1 FROM backtrail.shares h WHERE h.source = l.n)",
        (log,),
    )


# --- purging -----------------------------------------------------------------------------


def purge(execute: Execute, scope: str, session_id: str, seqs: Collection[int], name: str) -> None:
    """`Store.purge`: the bodies go, and their words.

    The rows of before stay in the table until the server's vacuum, and in its log and backups for
    as long as these are kept.
    """
    _, log = find_log(execute, scope, session_id, name)
    if log is None:
        return
    places = [
        (span.log, seq)
        for seq in sorted(set(seqs))
        if 0 < seq <= MAX_SEQ and (span := log.span_of(seq)) is not None
    ]
    for number in sorted({number for number, _ in places}):
        # What brings the search up to date locks the same row.
        execute("SELECT 1 FROM backtrail.logs WHERE n = %s FOR UPDATE", (number,))
    for number, seq in places:
        query = f"SELECT {COLUMNS} FROM backtrail.events e WHERE log = %s AND seq = %s"
        row = execute.one(query, (number, seq))
        if row is None:
            continue
        _, id, ts, kind, follows, _, crc = row
        try:
            event_of(number, row)
            crc = row_sum(number, seq, id, ts, kind, follows, _TOMBSTONE)
        except Damaged:
            # The sum of a damaged row is not made right by erasing it.
            pass
        execute(
            "UPDATE backtrail.events SET data = %s, crc = %s WHERE log = %s AND seq = %s",
            (_TOMBSTONE.decode(), crc, number, seq),
        )
        execute("DELETE FROM backtrail.words WHERE log = %s AND seq = %s", (number, seq))
        if name == MAIN_LOG:
            unfold(execute, number, seq)
