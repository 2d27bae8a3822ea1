"""Logs in PostgreSQL: finding one, the rows it consists of, reading it in pages.

A log is read as spans, one for each range of rows: a fork first reads the logs it shares, each up
to a number, then its own. The list is flat however deep the forks are. Between two pages nothing
is held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Unpack

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, InvalidId, NotFound
from ...events import MAX_SEQ, Event, Problem, check_log
from ...events.history import Mark
from ..batches import check_head
from ..records import Range
from .link import Execute, Link
from .rowgate import COLUMNS, event_of, events_of, share_sum

_FIRST_PAGE = 64
_LAST_PAGE = 4096
_PAGE_BYTES = 4 << 20

Damage = Callable[[int, str], None]
"""Called with the `seq` of a row that cannot be read, and why."""


class Span(NamedTuple):
    """Rows of one log number: `low < seq <= high`."""

    log: int
    low: int
    high: int


class Log(NamedTuple):
    """A log that exists, as it was when it was looked for."""

    n: int
    session: int
    base: int
    head: int
    epoch: int
    sorted_at: str
    spans: tuple[Span, ...]

    def span_of(self, seq: int) -> Span | None:
        """Where the event with this number is, if it can be."""
        for span in self.spans:
            if span.low < seq <= span.high:
                return span
        return None


# --- finding logs ------------------------------------------------------------------------

_FIND = (
    "SELECT s.n, l.n, l.base, l.head, l.epoch, s.sorted_at, "
    "(SELECT array_agg(ARRAY[h.position, h.source, h.until, h.seal] ORDER BY h.position) "
    "FROM backtrail.shares h WHERE h.log = l.n AND l.base > 0) "
    "FROM backtrail.sessions s LEFT JOIN backtrail.logs l ON l.session = s.n AND l.name = %s "
    "WHERE s.scope = %s AND s.id = %s"
)


def find_log(
    execute: Execute, scope: str, session_id: str, name: str, lock: str = ""
) -> tuple[int, Log | None]:
    """The session's number and its log; None where nothing was written to the log.

    `lock` is how the rows of both are locked.
    """
    row = execute.one(_FIND + lock, (name, scope, session_id))
    if row is None:
        raise NotFound(f"no session `{session_id}`")
    session, n, base, head, epoch, sorted_at, shares = row
    if n is None:
        return session, None
    spans = spans_of(n, base, shares)
    return session, Log(n, session, base, head, epoch, sorted_at, spans)


def check_head_of(
    execute: Execute, scope: str, session_id: str, name: str, expected: int | None
) -> None:
    """Raise `Conflict` if a log has not the head that is expected; it is locked until the end."""
    if expected is not None:
        _, log = find_log(execute, scope, session_id, name)
        row = None
        if log is not None:
            head = "SELECT head FROM backtrail.logs WHERE n = %s FOR UPDATE"
            row = execute.one(head, (log.n,))
        check_head(expected, row[0] if row is not None else 0)


def spans_of(n: int, base: int, shares: list[list[int]] | None) -> tuple[Span, ...]:
    """The parts of a log; `Damaged` if they cannot be those of one."""
    spans: list[Span] = []
    low = 0
    for position, source, until, seal in shares or ():
        if seal != share_sum(n, position, source, until) or until < low:
            raise Damaged(f"a part of log {n} is not what was written: its check sum is wrong")
        spans.append(Span(source, low, until))
        low = until
    if low != base:
        raise Damaged(f"log {n} shares events up to {base}, and has only those up to {low}")
    return (*spans, Span(n, base, MAX_SEQ))


def log_names(execute: Execute, scope: str, session_id: str) -> list[str]:
    """The names of a session's logs, sorted."""
    query = (
        "SELECT l.name FROM backtrail.sessions s JOIN backtrail.logs l ON l.session = s.n "
        # One that was made for an event that was refused is none.
        "WHERE s.scope = %s AND s.id = %s AND (l.head > 0 OR l.name = 'messages')"
    )
    rows = execute.all(query, (scope, session_id))
    if not rows:
        raise NotFound(f"no session `{session_id}`")
    names: list[str] = []
    for (name,) in rows:
        with suppress(InvalidId):
            names.append(check_log(name))
    return sorted(names)


# --- single events -----------------------------------------------------------------------

_BY_ID = (
    f"SELECT e.log, {COLUMNS} FROM unnest(%s::bigint[], %s::bigint[]) AS p(log, high) "
    "CROSS JOIN unnest(%s::text[]) AS w(id) "
    "JOIN backtrail.events e ON e.log = p.log AND e.id = w.id AND e.seq <= p.high "
    "AND right(e.id, 8) <> lpad(to_hex(e.seq), 8, '0')"
)
_BY_NUMBER = (
    f"SELECT e.log, {COLUMNS} FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) "
    "AS w(log, seq, id) JOIN backtrail.events e ON e.log = w.log AND e.seq = w.seq "
    "AND e.id = w.id"
)
_HEX = frozenset("0123456789abcdef")


def own_number(id: str) -> int | None:
    """The number that an id ends in, if an event could have it; then it is in no index."""
    tail = id[-8:]
    if len(tail) != 8 or not _HEX.issuperset(tail):
        return None
    number = int(tail, 16)
    return number if 0 < number <= MAX_SEQ else None


def events_by_id(execute: Execute, log: Log, ids: Collection[str]) -> dict[str, Event]:
    """The events with these ids: at the number an id ends in, or else in the index."""
    found: dict[str, Event] = {}
    wanted = list(ids)
    places = [
        (span.log, seq, id)
        for id in wanted
        if (seq := own_number(id)) is not None and (span := log.span_of(seq)) is not None
    ]
    if places:
        columns = [list(column) for column in zip(*places, strict=True)]
        for row in execute.all(_BY_NUMBER, columns):
            found[row[2]] = event_of(row[0], row[1:])
    if len(found) < len(wanted):
        logs, highs = [span.log for span in log.spans], [span.high for span in log.spans]
        for row in execute.all(_BY_ID, (logs, highs, wanted)):
            found.setdefault(row[2], event_of(row[0], row[1:]))
    return found


# --- pages -------------------------------------------------------------------------------

_ALIVE = "EXISTS(SELECT 1 FROM backtrail.logs WHERE n = %s AND session IS NOT NULL)"


def read_log(
    link: Link, log: Log, session_id: str, damage: Damage, **events: Unpack[Range]
) -> Iterator[Event]:
    """The events of a log, in pages; between them nothing is held. `NotFound` once it is gone."""
    pages = _pages(link, log, session_id, damage, **events)
    # The first page is read at the call.
    first = next(pages, [])
    return chain(first, chain.from_iterable(pages))


def _pages(
    link: Link,
    log: Log,
    session_id: str,
    damage: Damage,
    *,
    after: int = 0,
    until: int | None = None,
    limit: int | None = None,
    reverse: bool = False,
    kinds: Collection[str] | None = None,
) -> Iterator[list[Event]]:
    left = MAX_SEQ if limit is None else limit
    # Numbers beyond any event's would be no numbers of the server's.
    after = max(-1, min(after, MAX_SEQ))
    until = MAX_SEQ if until is None else max(-1, min(until, MAX_SEQ))
    wanted = None if kinds is None else list(kinds)
    rows = _FIRST_PAGE
    for source, low, high in reversed(log.spans) if reverse else log.spans:
        low, high = max(low, after), min(high, until)
        while low < high and left > 0:
            count = min(rows, left)
            found = _page(link, log.n, source, low, high, count, reverse, wanted)
            if found is None:
                raise NotFound(f"session `{session_id}`, or its log, was deleted during the read")
            events = events_of(source, found, damage)
            yield events
            left -= len(events)
            size = sum(len(row[5]) for row in found)
            rows = min(rows * 16, _LAST_PAGE, max(16, _PAGE_BYTES * len(found) // max(size, 1)))
            # Forwards, only an empty page is the end: events may have come meanwhile.
            if not found or (reverse and len(found) < count):
                break
            if reverse:
                high = found[-1][0] - 1
            else:
                low = found[-1][0]


def _page(
    link: Link, reader: int, source: int, low: int, high: int, rows: int, reverse: bool,
    kinds: list[str] | None,
) -> list[tuple[Any, ...]] | None:  # fmt: skip
    """Some rows of one span; None once the log of the reader was deleted."""
    only = "" if kinds is None else " AND e.kind = ANY(%s)"
    if kinds == ["checkpoint"]:
        # The constant is what lets the server use the index.
        only = " AND e.kind = ANY(%s) AND e.kind = 'checkpoint'"
    query = (
        f"SELECT {COLUMNS} FROM backtrail.events e WHERE e.log = %s AND e.seq > %s "
        f"AND e.seq <= %s{only} AND {_ALIVE} "
        f"ORDER BY e.seq{' DESC' if reverse else ''} LIMIT %s"
    )
    values = [source, low, high, *([] if kinds is None else [kinds]), reader, rows]

    def read(execute: Execute) -> list[tuple[Any, ...]] | None:
        found = execute.all(query, values)
        if not found and not is_alive(execute, reader):
            return None
        return found

    return link.read(read)


def is_alive(execute: Execute, log: int) -> bool:
    """Whether a log still is one of a session."""
    row = execute.one(f"SELECT {_ALIVE}", (log,))
    return row is not None and bool(row[0])


def problem(session_id: str, log: str, seq: int, why: str) -> Problem:
    """The report for a row that cannot be read."""
    return Problem(session_id, log, "unreadable", f"event {seq}: {why}", seqs=(seq,))


# --- without bodies ----------------------------------------------------------------------


def marks_of(
    link: Link, log: Log, kinds: Collection[str], after: int, until: int | None
) -> list[Mark] | None:
    """The events of some kinds, and all that jump, in order; None if a jump cannot be read."""
    query = (
        f"SELECT {COLUMNS.replace('e.data', 'CASE WHEN e.follows IS NOT NULL THEN e.data END')} "
        "FROM backtrail.events e WHERE e.log = %s AND e.seq > %s AND e.seq <= %s "
        "AND (e.follows IS NOT NULL OR e.kind = ANY(%s)) ORDER BY e.seq"
    )
    found: list[Mark] = []
    for source, rows in _rows(link, log, query, (list(kinds),), after, until):
        for row in rows:
            if row[4] is not None:
                try:
                    event_of(source, row)
                except Damaged:
                    return None
            found.append(Mark(row[0], row[3], row[4]))
    return found


def tally_of(link: Link, log: Log, after: int, until: int | None) -> dict[str, int]:
    """How many events of each kind there are."""
    query = (
        "SELECT e.kind, count(*) FROM backtrail.events e WHERE e.log = %s AND e.seq > %s "
        "AND e.seq <= %s GROUP BY e.kind"
    )
    found: dict[str, int] = {}
    for _, rows in _rows(link, log, query, (), after, until):
        for kind, count in rows:
            found[kind] = found.get(kind, 0) + count
    return found


def _rows(
    link: Link, log: Log, query: str, values: tuple[object, ...], after: int, until: int | None
) -> list[tuple[int, list[tuple[Any, ...]]]]:
    after = max(-1, min(after, MAX_SEQ))
    until = MAX_SEQ if until is None else max(-1, min(until, MAX_SEQ))

    def read(execute: Execute) -> list[tuple[int, list[tuple[Any, ...]]]]:
        found = [
            (span.log, execute.all(query, (span.log, max(span.low, after), high, *values)))
            for span in log.spans
            if max(span.low, after) < (high := min(span.high, until))
        ]
        if not is_alive(execute, log.n):
            raise NotFound("the session, or its log, was deleted during the read")
        return found

    return link.read(read)
