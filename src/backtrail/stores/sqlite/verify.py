"""Checking a SQLite store, from end to end, and sealing what an earlier version wrote.

Events and parts of forks of that version have no check sums. A seal says that an event is what
it is today; what it was before is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, InvalidId, NotFound
from ...events import MAIN_LOG, MAX_SEQ, Event, Problem, check_log
from ..disk.checks import COLUMNS, SEQ_BITS, are_within, check_row, row_sum, share_sum, whole_number
from ..disk.database import Database
from ..disk.schema import Execute
from ..records import check_order
from .infos import COLUMNS as RECORD
from .infos import info_of
from .logs import log_at
from .pages import problem, read_log


def verify(database: Database, scope: str) -> list[Problem]:
    """All that is wrong; one damaged session does not keep the others from being checked."""
    problems = _check_file(database)
    try:
        problems.extend(_strays(database))
        with database.reading() as connection:
            query = "SELECT n FROM sessions WHERE scope = ?"
            numbers = [n for (n,) in connection.execute(query, (scope,)).fetchall()]
    except Damaged as error:
        problems.append(Problem("", "", "database", str(error)))
        numbers = _numbers(database)
    for n in numbers:
        try:
            problems.extend(_check_session(database, scope, n))
        except Damaged as error:
            problems.append(Problem("", "", "record", f"session number {n}: {error}"))
    return problems


def _check_file(database: Database) -> list[Problem]:
    try:
        with database.reading() as connection:
            found = connection.execute("PRAGMA integrity_check").fetchall()
    except Damaged as error:
        found = [(str(error),)]
    return [Problem("", "", "database", str(text)) for (text,) in found if text != "ok"]


def _numbers(database: Database) -> list[int]:
    """The numbers of sessions, as far as a damaged table has them."""
    found: list[int] = []
    last = 0
    while True:
        try:
            with database.reading() as connection:
                query = "SELECT n FROM sessions WHERE n > ? ORDER BY n LIMIT 1"
                n = connection.execute(query, (last,)).get
        except Damaged:
            return found
        if type(n) is not int or n <= last:
            return found
        found.append(n)
        last = n


_NEXT = "SELECT key FROM events WHERE key > ? ORDER BY key LIMIT 1"
_BEYOND = "SELECT count(*) FROM events WHERE key = ?1 OR (key > ?2 AND key <= ?3)"


_ORPHANS = (
    "SELECT n, session FROM logs WHERE session IS NOT NULL "
    "AND NOT EXISTS(SELECT 1 FROM sessions s WHERE s.n = session)"
)


def _strays(database: Database) -> Iterator[Problem]:
    """Rows that no session can ever read: of a log that is none, or with a number out of bounds."""
    with database.reading() as connection:
        orphans = connection.execute(_ORPHANS).fetchall()
    for log, session in orphans:
        yield Problem("", "", "stray", f"log {log} is of session number {session}, which is none")
    key = -(1 << 63)
    while True:
        with database.reading() as connection:
            found = connection.execute(_NEXT, (key,)).get
            if type(found) is not int or found <= key:
                return
            log, key = found >> 32, found | SEQ_BITS
            known = connection.execute("SELECT 1 FROM logs WHERE n = ?", (log,)).get
            first = log << 32
            beyond = connection.execute(_BEYOND, (first, first | MAX_SEQ, key)).get
        if known is None:
            yield Problem("", "", "stray", f"there are events of log {log}, which is none")
        elif beyond:
            detail = f"log {log} has events with numbers that no event has"
            yield Problem("", "", "stray", detail, count=int(beyond))


_LOGS = (
    "SELECT l.n, l.base, l.unsealed, l.indexed, l.name, d.log FROM logs l "
    "LEFT JOIN dirty d ON d.log = l.n WHERE l.session = ? ORDER BY l.name"
)


def _check_session(database: Database, scope: str, n: int) -> list[Problem]:
    record = f"SELECT {RECORD} FROM sessions s WHERE s.n = ?"
    names = "SELECT CAST(id AS BLOB), scope FROM sessions WHERE n = ?"
    problems: list[Problem] = []
    with database.reading() as connection:
        row = connection.execute(names, (n,)).get
    if row is None or row[1] != scope:
        return []
    session_id = cast(bytes, row[0] or b"?").decode(errors="backslashreplace")
    try:
        with database.reading() as connection:
            info_of(cast("tuple[Any, ...]", connection.execute(record, (n,)).get))
    except (Damaged, TypeError) as error:
        problems.append(Problem(session_id, "", "record", str(error)))
    try:
        with database.reading() as connection:
            logs = connection.execute(_LOGS, (n,)).fetchall()
    except Damaged as error:
        return [*problems, Problem(session_id, "", "record", str(error))]
    if not any(log[4] == MAIN_LOG for log in logs):
        problems.append(Problem(session_id, MAIN_LOG, "record", "it has no main log"))
    for log in logs:
        problems.extend(_check_log(database, session_id, _Row(n, *log)))
    return problems


class _Row(NamedTuple):
    """What the table `logs` says about a log."""

    session: int
    n: int
    base: int
    unsealed: int
    indexed: int
    name: str
    dirty: int | None


def _check_log(database: Database, session_id: str, row: _Row) -> list[Problem]:
    problems: list[Problem] = []
    lost: set[int] = set()
    last = 0

    def damage(seq: int, why: str) -> None:
        lost.add(seq)
        problems.append(problem(session_id, row.name, seq, why))

    def followed(events: Iterator[Event]) -> Iterator[Event]:
        nonlocal last
        for event in events:
            last = event.seq
            yield event

    try:
        check_log(row.name)
    except InvalidId as error:
        problems.append(Problem(session_id, str(row.name), "record", str(error)))
    try:
        counted = _counted(database, row)
        with database.reading() as connection:
            log = log_at(connection.execute, row.n, row.base, row.unsealed)
        events = followed(read_log(database, log, session_id, damage))
        for found in check_order(session_id, row.name, events):
            # A row that cannot be read is reported already, and leaves a gap.
            if found.what != "gap" or not lost.issuperset(found.seqs):
                problems.append(found)
        last = max([last, *lost])
        if last < counted:
            seqs = tuple(range(last + 1, min(counted, last + 1000) + 1))
            detail = f"the log ends at {last}, and once had events up to {counted}"
            count = counted - last
            problems.append(
                Problem(session_id, row.name, "shorter", detail, count=count, seqs=seqs)
            )
    except NotFound:
        # Deleted meanwhile: what was found wrong is gone too.
        return []
    except Damaged as error:
        problems.append(Problem(session_id, row.name, "unreadable", str(error)))
    return problems


def _counted(database: Database, row: _Row) -> int:
    """The number up to which something of this database knows the log."""
    counted = max(whole_number(row.base, "a bound"), whole_number(row.indexed, "a bound"))
    if row.name == MAIN_LOG:
        with database.reading() as connection:
            query = "SELECT folded FROM sessions WHERE n = ?"
            folded = connection.execute(query, (row.session,)).get
        counted = max(counted, whole_number(folded or 0, "the head"))
    return counted


# --- sealing -----------------------------------------------------------------------------


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
        with database.writing() as execute:
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
        with database.writing() as execute:
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
        raise Damaged(f"the events of log {log} are out of order: `verify` reports where")
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
