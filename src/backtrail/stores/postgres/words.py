"""Search in PostgreSQL: an index of words that is caught up later, never by an append.

Words are cut and folded by `words_of`, as everywhere, and cut short in the index; the text has the
last word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from ...errors import Damaged
from ...events import MAIN_LOG, MESSAGE_KINDS, Hit, Problem, check_session_id
from ...events.messages import text_of
from ..query import Query, words_of
from .link import Execute, Link
from .rowgate import COLUMNS, event_of
from .spans import problem

SLICE = 500
"""Events indexed in one transaction."""

_SLICE_BYTES = 4 << 20
_LONGEST = 200

_BEHIND = "SELECT n, indexed, head FROM backtrail.logs WHERE indexed < head AND name = 'messages' "


def catch_up(link: Link, logs: Collection[int] | None = None) -> None:
    """Index everything, or what these logs have, in slices."""
    query, values = _BEHIND, list[object]()
    if logs is not None:
        query, values = f"{_BEHIND}AND n = ANY(%s) ", [list(logs)]
    for log, indexed, head in link.read(lambda e: e.all(f"{query}ORDER BY n", values)):
        while indexed < head:
            indexed = _index(link, log, indexed, head)


def _index(link: Link, log: int, first: int, top: int) -> int:
    """Index some events behind the number `first`; the last number."""
    query = (
        f"SELECT {COLUMNS} FROM backtrail.events e WHERE e.log = %s AND e.seq > %s "
        "AND e.seq <= %s ORDER BY e.seq LIMIT %s"
    )
    rows = link.read(lambda execute: execute.all(query, (log, first, top, SLICE)))
    taken: list[tuple[int, int, str]] = []
    last, size = top if len(rows) < SLICE else first, 0
    for row in rows:
        size += len(row[5])
        if row[3] in MESSAGE_KINDS:
            for word in _words(log, row):
                taken.append((row[0], row[6], word))
        if size >= _SLICE_BYTES or row is rows[-1]:
            last = max(last, row[0]) if row is rows[-1] else row[0]
            break
    columns = [[one[at] for one in taken] for at in range(3)]

    def store(execute: Execute) -> None:
        # First, so that a purge is over, or waits: then what it erased is not put back.
        execute(
            "UPDATE backtrail.logs SET indexed = greatest(indexed, %s) WHERE n = %s", (last, log)
        )
        execute(_STORE, (*columns, log))

    link.write(store)
    return last


_STORE = (
    "INSERT INTO backtrail.words(log, seq, words) SELECT e.log, e.seq, array_agg(w.word) "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS w(seq, crc, word) "
    "JOIN backtrail.events e ON e.log = %s AND e.seq = w.seq AND e.crc = w.crc "
    "GROUP BY e.log, e.seq ON CONFLICT (log, seq) DO NOTHING"
)


def _words(log: int, row: tuple[Any, ...]) -> set[str]:
    try:
        text = text_of(event_of(log, row).data.get("message"))
    except Damaged:
        # `read` and `verify` report what cannot be read; there are no words in it.
        return set()
    return {word[:_LONGEST] for word in words_of(text)}


# Every session that reads a found event: its owner, and the forks that share it.
_FIND = f"""
WITH found AS (SELECT log, seq FROM backtrail.words WHERE words @> %s::text[]/*begins*/),
readers AS (
  SELECT f.log, f.seq, l.session FROM found f JOIN backtrail.logs l ON l.n = f.log
  UNION ALL
  SELECT f.log, f.seq, l.session FROM found f
    JOIN backtrail.shares h ON h.source = f.log AND h.until >= f.seq
    JOIN backtrail.logs l ON l.n = h.log
)
SELECT r.log, s.id, {COLUMNS} FROM readers r JOIN backtrail.sessions s ON s.n = r.session
JOIN backtrail.logs m ON m.session = s.n AND m.name = 'messages'
JOIN backtrail.events e ON e.log = r.log AND e.seq = r.seq
WHERE s.scope = %s ORDER BY m.updated_at DESC, s.n DESC, r.seq DESC LIMIT %s OFFSET %s
"""

# No index knows how words begin: without a whole word beside it, all words are looked at.
_BEGINS = (
    " AND NOT EXISTS(SELECT 1 FROM unnest(%s::text[]) AS b(start) WHERE NOT EXISTS("
    "SELECT 1 FROM unnest(words) AS w(word) WHERE starts_with(w.word, b.start)))"
)


def hits(
    link: Link, scope: str, query: Query, limit: int, damage: Callable[[Problem], None]
) -> list[Hit]:
    """What the index finds, newest session and newest event first, with the text it is in."""
    found: list[Hit] = []
    places: set[tuple[int, int]] = set()
    seen: set[tuple[int, str, str]] = set()
    for log, session_id, row in _candidates(link, scope, query, limit):
        if (log, row[0]) in places:
            continue
        places.add((log, row[0]))
        try:
            event = event_of(log, row)
        except Damaged as error:
            damage(problem(session_id, MAIN_LOG, row[0], str(error)))
            continue
        # A copy of an event, in a session that was copied, is the same event.
        if (event.seq, event.id, event.ts) in seen:
            continue
        text = text_of(event.data.get("message"))
        if query.matches(text):
            seen.add((event.seq, event.id, event.ts))
            found.append(Hit(check_session_id(session_id), event, query.snippet(text)))
            if len(found) >= limit:
                break
    return found


def _candidates(
    link: Link, scope: str, query: Query, limit: int
) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
    whole: set[str] = set()
    starts: set[str] = set()
    for phrase, begins in zip(query.phrases, query.begins, strict=True):
        cut = [word[:_LONGEST] for word in phrase]
        if begins:
            starts.add(cut.pop())
        whole.update(cut)
    text = _FIND.replace("/*begins*/", _BEGINS if starts else "")
    wanted = [sorted(whole), sorted(starts)] if starts else [sorted(whole)]
    size, at = min(limit * 2 + 20, 500), 0
    while True:
        values = (*wanted, scope, size, at)
        rows = link.read(lambda execute, v=values: execute.all(text, v))  # type: ignore[misc]
        for log, session_id, *row in rows:
            yield log, session_id, tuple(row)
        if len(rows) < size:
            return
        at += size
