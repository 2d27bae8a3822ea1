"""Checking a SQLite store: the file, the records, and every log from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, InvalidId, NotFound
from ...events import MAIN_LOG, MAX_SEQ, Event, Problem, check_log
from ..base import check_order
from ..disk.checks import SEQ_BITS, whole_number
from ..disk.database import Database
from .logs import log_at
from .pages import problem, read_log
from .records import COLUMNS as RECORD
from .records import info_of


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
    """The numbers of sessions, as far as a damaged table tells them."""
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
            # A row that cannot be read is told already, and leaves a gap.
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
