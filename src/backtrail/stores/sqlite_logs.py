"""Logs in SQLite: finding one, its head, its last events, single events by number and by id.

A log is read as spans, one for each row range it consists of: a fork first reads the logs
it shares, each up to a number, then its own. The list is flat however deep the forks are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import apsw
import msgspec

from ..errors import Damaged, NotFound
from ..events import Event, make_event, number_in
from .sqlite_transactions import Execute

MAX_SEQ = (1 << 32) - 1
"""The highest `seq` a key has room for."""

decode_body = msgspec.json.Decoder(dict[str, Any]).decode
"""The data of an event, from its column; without the checks of what comes from outside."""


class Span(NamedTuple):
    """Rows of one log number: `low < seq <= high`."""

    log: int
    low: int
    high: int


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

_FIND = (
    "SELECT s.n, l.n, l.base FROM sessions s LEFT JOIN logs l ON l.session = s.n AND l.name = ? "
    "WHERE s.scope = ? AND s.id = ?"
)


def find_log(execute: Execute, scope: str, session_id: str, name: str) -> tuple[int, Log | None]:
    """The session's number and its log; None where nothing was written to the log."""
    row = execute(_FIND, (name, scope, session_id)).get
    if row is None:
        raise NotFound(f"no session `{session_id}`")
    session, n, base = row
    return session, None if n is None else log_at(execute, n, base)


def log_at(execute: Execute, n: int, base: int) -> Log:
    """The log with this number and its spans."""
    spans: list[Span] = []
    low = 0
    if base:
        shares = "SELECT source, until FROM shares WHERE log = ? ORDER BY position"
        for source, until in execute(shares, (n,)).fetchall():
            spans.append(Span(source, low, until))
            low = until
    spans.append(Span(n, base, MAX_SEQ))
    return Log(n, base, tuple(spans))


_HEAD = (
    "SELECT base, (SELECT max(key) FROM events WHERE key BETWEEN ?2 AND ?3) "
    "FROM logs WHERE n = ?1 AND session IS NOT NULL"
)


def head_of(execute: Execute, n: int) -> int | None:
    """The last `seq` of a log; None if the log was deleted."""
    first = n << 32
    row = execute(_HEAD, (n, first, first | MAX_SEQ)).get
    if row is None:
        return None
    base, top = row
    head: int = base if top is None else top & MAX_SEQ
    return head


# --- single events -----------------------------------------------------------------------

COLUMNS = "key, id, ts, kind, follows, CAST(data AS BLOB)"
"""The columns of an event. As bytes the body needs no detour over text, nor be valid."""

_BY_NUMBER = f"SELECT {COLUMNS} FROM events WHERE key = ? AND id = ?"
_BY_ID = (
    f"SELECT {COLUMNS} FROM events INDEXED BY events_id "
    "WHERE key >> 32 = ? AND id = ? AND key <= ? "
    "AND substr(id, 29) IS NOT format('%08x', key & 4294967295)"
)


def event_by_id(execute: Execute, log: Log, id: str) -> Event | None:
    """The event with this id: at the number the id ends in, or else in the index."""
    seq = number_in(id)
    at = None if seq is None else log.span_of(seq)
    if at is not None and seq is not None:
        row = execute(_BY_NUMBER, (at.log << 32 | seq, id)).get
        if row is not None:
            return event_of(row)
    for span in log.spans:
        row = execute(_BY_ID, (span.log, id, span.log << 32 | span.high)).get
        if row is not None:
            return event_of(row)
    return None


def event_of(row: Any) -> Event:
    """The event in a row; `Damaged` if its body cannot be read."""
    key, id, ts, kind, follows, body = row
    try:
        return make_event(key & MAX_SEQ, id, ts, kind, decode_body(body), follows)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(f"event {key & MAX_SEQ} (`{id}`) cannot be read: {error}") from error


# --- the end of a log --------------------------------------------------------------------

_LAST = (
    "SELECT e.key, e.id, e.ts, e.kind, e.follows, CAST(e.data AS BLOB) FROM sessions s "
    "CROSS JOIN logs l ON l.session = s.n AND l.name = ? "
    f"CROSS JOIN events e ON e.key > l.n << 32 AND e.key <= (l.n << 32) + {MAX_SEQ} "
    "WHERE s.scope = ? AND s.id = ? ORDER BY e.key DESC LIMIT ?"
)


def last_events(
    connection: apsw.Connection, scope: str, session_id: str, name: str, n: int
) -> list[Event] | None:
    """The last `n` events, oldest first, by one statement.

    None if it takes more than that: where there are not as many that are the log's own, or
    where something is damaged.
    """
    events: list[Event] = []
    add = events.append
    cursor = connection.cursor()
    try:
        cursor.execute(_LAST, (name, scope, session_id, n))
        for key, id, ts, kind, follows, body in cast("Iterator[Any]", cursor):
            add(make_event(key & MAX_SEQ, id, ts, kind, decode_body(body), follows))
    except (apsw.CorruptError, msgspec.MsgspecError, ValueError):
        return None
    finally:
        cursor.close()
    events.reverse()
    return events if len(events) == n else None
