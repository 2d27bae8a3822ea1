"""Logs in SQLite: finding one, its head, its last events, single events by number and by id.

A log is read as spans, one for each row range it consists of: a fork first reads the logs
it shares, each up to a number, then its own. The list is flat however deep the forks are.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import apsw

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, InvalidId, NotFound
from ...events import MAX_SEQ, Event, check_log, number_in
from ..batches import check_head
from ..disk.checks import COLUMNS, SEQ_BITS, are_within, event_of, events_of, is_share, whole_number
from ..disk.schema import Execute


class Span(NamedTuple):
    """Rows of one log number: `low < seq <= high`. Up to `unsealed` they may lack a check sum."""

    log: int
    low: int
    high: int
    unsealed: int = 0


class Log(NamedTuple):
    """A log that exists: its number, the highest shared `seq`, and where its rows are."""

    n: int
    base: int
    spans: tuple[Span, ...]

    def span_of(self, seq: int) -> Span | None:
        """Where the event with this number is, if it can be."""
        for span in self.spans:
            if span.low < seq <= span.high:
                return span
        return None


# --- finding logs ------------------------------------------------------------------------

# Names are looked up in an index, and compared there. A damaged one leads to another session or
# log, so the rows themselves are asked whether they have these names.
_IS_SESSION = "(SELECT a.scope = ?1 AND a.id = ?2 FROM sessions a NOT INDEXED WHERE a.n = s.n)"
_IS_LOG = "(SELECT b.session = s.n AND b.name = ?3 FROM logs b NOT INDEXED WHERE b.n = l.n)"
_FIND = (
    f"SELECT s.n, l.n, l.base, l.unsealed, {_IS_SESSION}, {_IS_LOG} FROM sessions s "
    "LEFT JOIN logs l ON l.session = s.n AND l.name = ?3 WHERE s.scope = ?1 AND s.id = ?2 "
    # A damaged index may have a name twice.
    "LIMIT 1"
)

NAMED = f"s.scope = ?1 AND s.id = ?2 AND {_IS_SESSION}"
"""Finds a session `s` by its scope and id."""


def find_log(execute: Execute, scope: str, session_id: str, name: str) -> tuple[int, Log | None]:
    """The session's number and its log; None where nothing was written to the log."""
    row = execute(_FIND, (scope, session_id, name)).get
    if row is None:
        raise NotFound(f"no session `{session_id}`")
    session, n, base, unsealed, is_session, is_log = row
    if not is_session or not (n is None or is_log):
        raise Damaged(f"the index leads from `{session_id}` to another session, or log")
    return session, None if n is None else log_at(execute, n, base, unsealed)


def log_names(execute: Execute, scope: str, session_id: str) -> list[str]:
    """The names of a session's logs, sorted; those that no log can have are left to `verify`."""
    query = (
        "SELECT l.name FROM sessions s JOIN logs l ON l.session = s.n "
        f"WHERE {NAMED} ORDER BY l.name"
    )
    rows = execute(query, (scope, session_id)).fetchall()
    if not rows:
        raise NotFound(f"no session `{session_id}`")
    names: list[str] = []
    for (name,) in rows:
        with suppress(InvalidId):
            names.append(check_log(name))
    return sorted(names)


_SHARES = (
    "SELECT position, source, until, seal, (SELECT unsealed FROM logs WHERE n = source) "
    "FROM shares WHERE log = ? ORDER BY position"
)


def log_at(execute: Execute, n: int, base: int, unsealed: int) -> Log:
    """The log with this number and its spans; `Damaged` if they cannot be those of a log."""
    spans: list[Span] = []
    low = 0
    whole_number(n, "the number of a log", MAX_SEQ)
    if whole_number(base, f"what log {n} shares", MAX_SEQ):
        for position, source, until, seal, open_until in execute(_SHARES, (n,)).fetchall():
            whole_number(source, f"a log that log {n} shares", MAX_SEQ)
            if whole_number(until, f"a bound of log {n}", base) < low:
                raise Damaged(f"the parts of log {n} are out of order")
            if not is_share(n, position, source, until, seal):
                raise Damaged(f"a part of log {n} is not what was written: its check sum is wrong")
            spans.append(Span(source, low, until, open_until or 0))
            low = until
        if low != base:
            raise Damaged(f"log {n} shares events up to {base}, and has only those up to {low}")
    spans.append(Span(n, base, MAX_SEQ, whole_number(unsealed, f"a bound of log {n}", SEQ_BITS)))
    return Log(n, base, tuple(spans))


def has_parts(execute: Execute, n: int) -> bool:
    """Whether the parts of a fork are what was written: else what it reads is not known."""
    rows = execute("SELECT position, source, until, seal FROM shares WHERE log = ?", (n,))
    return all(is_share(n, *row) for row in rows.fetchall())


_UNSEALED = "SELECT unsealed FROM logs WHERE n = ?"


def unsealed_in(execute: Execute, log: int) -> int:
    """The number up to which rows of a log may lack a check sum."""
    return execute(_UNSEALED, (log,)).get or 0


_HEAD = (
    "SELECT base, (SELECT max(key) FROM events WHERE key BETWEEN ?2 AND ?3), "
    "(SELECT folded FROM sessions WHERE sessions.n = session AND name = 'messages') "
    "FROM logs WHERE n = ?1 AND session IS NOT NULL"
)
_PLAUSIBLE = 10_000


def check_head_of(
    execute: Execute, scope: str, session_id: str, name: str, expected: int | None
) -> None:
    """Raise `Conflict` if a log has not the head that is expected; in a transaction."""
    if expected is not None:
        _, log = find_log(execute, scope, session_id, name)
        check_head(expected, (head_of(execute, log.n) or 0) if log is not None else 0)


def head_of(execute: Execute, n: int) -> int | None:
    """The last `seq` of a log; None if the log was deleted.

    Events that were counted and are gone from the end had numbers that are not used again,
    unless the count is beyond belief.
    """
    first = n << 32
    row = execute(_HEAD, (n, first, first | MAX_SEQ)).get
    if row is None:
        return None
    base, top, folded = row
    head = whole_number(base, f"what log {n} shares", MAX_SEQ)
    if top is not None:
        if top >> 32 != n:
            raise Damaged(f"the end of log {n} cannot be found: `verify` reports where")
        head = max(head, top & SEQ_BITS)
    if type(folded) is int and head < folded <= head + _PLAUSIBLE:
        head = folded
    return head


# --- single events -----------------------------------------------------------------------

_BY_NUMBER = f"SELECT {COLUMNS} FROM events WHERE key = ? AND id = ?"
_BY_ID = (
    f"SELECT {COLUMNS} FROM events INDEXED BY events_id "
    "WHERE key >> 32 = ? AND id = ? AND key <= ? "
    "AND substr(id, 29) IS NOT format('%08x', key & 4294967295) LIMIT 1"
)


def event_by_id(execute: Execute, log: Log, id: str) -> Event | None:
    """The event with this id: at the number the id ends in, or else in the index."""
    seq = number_in(id)
    at = None if seq is None else log.span_of(seq)
    if at is not None and seq is not None:
        row = execute(_BY_NUMBER, (at.log << 32 | seq, id)).get
        if row is not None:
            return event_of(row, at.unsealed)
    for span in log.spans:
        row = execute(_BY_ID, (span.log, id, span.log << 32 | span.high)).get
        if row is not None:
            # The log and the id are those of the index. The check sum covers the id.
            if row[0] >> 32 != span.log:
                raise Damaged(f"the index has the id `{id}` in another log: `verify` reports it")
            return event_of(row, span.unsealed)
    return None


# --- the end of a log --------------------------------------------------------------------

# Each subquery finds one row by an index; planning them takes a tenth of what a join takes.
_LAST = (
    "SELECT e.key, e.id, e.ts, e.kind, e.follows, CAST(e.data AS BLOB), e.crc, l.n "
    "FROM logs l NOT INDEXED CROSS JOIN events e WHERE l.n = (SELECT n FROM logs WHERE name = ?3 "
    "AND session = (SELECT n FROM sessions WHERE scope = ?1 AND id = ?2)) AND l.name = ?3 "
    "AND (SELECT a.scope = ?1 AND a.id = ?2 FROM sessions a NOT INDEXED WHERE a.n = l.session) "
    f"AND e.key > l.n << 32 AND e.key <= (l.n << 32) + {MAX_SEQ} ORDER BY e.key DESC LIMIT ?4"
)


def last_events(
    connection: apsw.Connection, scope: str, session_id: str, name: str, n: int
) -> list[Event] | None:
    """The last `n` events, oldest first, by one statement.

    None if it takes more than that: where there are not as many that are the log's own, or
    where something is damaged.
    """
    try:
        rows: list[Any] = connection.execute(_LAST, (scope, session_id, name, n)).fetchall()
    except (apsw.CorruptError, UnicodeDecodeError):
        return None
    rows.reverse()
    first = rows[0][7] << 32 if rows else 0
    if len(rows) != n or not are_within(rows, first, first | MAX_SEQ):
        return None
    damaged: list[int] = []
    events = events_of([row[:7] for row in rows], 0, lambda seq, why: damaged.append(seq))
    return None if damaged else events
