"""Full-text search in SQLite: an FTS5 index that is caught up later, never by an append.

The index holds words only, under the key of their event; the text stays in the event. Words
are cut and folded by `words_of`, as everywhere else, so the index finds what `Query` means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice

import apsw

from ...errors import Closed, Damaged, SessionBusy, StoreFailed
from ...events import MAIN_LOG, MESSAGE_KINDS, Event, Hit, Problem, check_session_id, decode_data
from ...events.messages import text_of
from ...telemetry import logger
from ..disk.checks import COLUMNS, SEQ_BITS, UNDECODABLE, event_of, whole_number
from ..disk.database import Database
from ..disk.fs import NO_ROOM
from ..disk.schema import Execute
from ..query import Query, words_of
from .logs import has_parts, unsealed_in
from .pages import problem

SLICE = 200
"""Events indexed in one transaction: short enough for a writer to wait for."""

_SLICE_BYTES = 1 << 20

_TOP = "(SELECT max(key) FROM events WHERE key BETWEEN l.n << 32 AND l.n << 32 | 4294967295)"
_BEHIND = (
    f"SELECT n FROM (SELECT l.n, l.indexed, {_TOP} AS top"
    " FROM (SELECT log FROM unindexed UNION SELECT log FROM dirty) d"
    " CROSS JOIN logs l ON l.n = d.log"
    ") WHERE top & 4294967295 > indexed ORDER BY n"
)
_ONE = f"SELECT l.indexed, {_TOP} FROM logs l WHERE l.n = ?"


def behind(database: Database) -> deque[int]:
    """The logs with events that the index does not know, in the order of their numbers.

    This looks at every log that was written to: ask once, and index slices of the answer.
    """
    with database.reading() as connection:
        return deque(n for (n,) in connection.execute(_BEHIND))


def catch_up(database: Database) -> bool:
    """Index everything, in slices that let others write in between; False if it cannot."""
    waiting = behind(database)
    try:
        while waiting:
            with database.writing() as execute:
                index_slice(execute, waiting)
    except SessionBusy:
        return False
    except StoreFailed as error:
        if error.errno not in NO_ROOM:
            raise
        return False
    return True


def index_slice(execute: Execute, waiting: deque[int]) -> None:
    """Index some events of the first logs that wait, and drop the logs that are done.

    In the order of their keys: FTS5 takes ascending numbers best.
    """
    left, room = SLICE, _SLICE_BYTES
    while waiting and left > 0 and room > 0:
        log = waiting[0]
        # Others may have indexed it meanwhile, written to it, or deleted it.
        indexed, top = execute(_ONE, (log,)).get or (0, None)
        if top is not None and top & SEQ_BITS > whole_number(indexed, f"what is indexed of {log}"):
            first = log << 32 | indexed
            last, size = _index(execute, first, top, left)
            if not first < last <= top:
                raise Damaged("the events to index are out of order: `verify` reports where")
            left -= last - first
            room -= size
            execute("UPDATE logs SET indexed = ? WHERE n = ?", (last & SEQ_BITS, log))
            if last < top:
                continue
            execute("DELETE FROM unindexed WHERE log = ?", (log,))
        waiting.popleft()


def _index(execute: Execute, first: int, top: int, rows: int) -> tuple[int, int]:
    """Index some events behind the key `first`; returns the last key, and how much was read."""
    query = (
        "SELECT key, kind, CAST(data AS BLOB) FROM events "
        "WHERE key > ? AND key <= ? ORDER BY key LIMIT ?"
    )
    taken: list[tuple[int, str]] = []
    last, size = top, 0
    for last, kind, body in execute(query, (first, top, rows)):
        size += len(body or b"")
        if kind in MESSAGE_KINDS:
            taken.append((last, _words(body)))
        if size >= _SLICE_BYTES:
            break
    for key, text in taken:
        if text:
            execute("INSERT INTO words(rowid, text) VALUES(?, ?)", (key, text))
    return last, size


def _words(body: bytes) -> str:
    try:
        return " ".join(words_of(text_of(decode_data(body).get("message"))))
    except UNDECODABLE:
        # `read` and `verify` report what cannot be read; there are no words in it.
        return ""


def forget(execute: Execute, first: int, last: int) -> bool:
    """Take the events with keys from `first` to `last` out of the index, if they are in it."""
    query = "SELECT 1 FROM words_docsize WHERE id BETWEEN ? AND ? LIMIT 1"
    if execute(query, (first, last)).get is None:
        return False
    execute("DELETE FROM words WHERE rowid BETWEEN ? AND ?", (first, last))
    return True


def erase(database: Database) -> None:
    """Rewrite the index without what was taken out: until then its words are still there."""
    with database.writing() as execute:
        execute("INSERT INTO words(words, rank) VALUES('merge', -200)")
    while True:
        with database.writing() as execute:
            before = execute("SELECT total_changes()").get
            execute("INSERT INTO words(words, rank) VALUES('merge', 200)")
            # FTS5 says by this number that there is nothing left to merge.
            if execute("SELECT total_changes()").get - before < 2:
                break
    with database.writing() as execute:
        execute("INSERT INTO words(words) VALUES('optimize')")


# Every session that reads a found event: its owner, and the forks that share it.
_FIND = """
WITH found(key) AS MATERIALIZED (SELECT rowid FROM words WHERE words MATCH ?1),
readers(key, session, fork) AS (
  SELECT key, l.session, NULL FROM found CROSS JOIN logs l ON l.n = key >> 32
  UNION ALL
  SELECT key, l.session, h.log FROM found
    CROSS JOIN shares h ON h.source = key >> 32 AND h.until >= key & 4294967295
    CROSS JOIN logs l ON l.n = h.log
)
SELECT r.key, s.id, r.fork FROM readers r CROSS JOIN sessions s ON s.n = r.session
WHERE s.scope = ?2 ORDER BY s.updated_at DESC, s.n DESC, r.key & 4294967295 DESC
"""


_MANY = 500
"""Events that match, from which on sessions are gone through first: the newest may suffice."""

_WALKED = 100
"""Sessions that are gone through one by one, before all that match are looked up at once."""

_SOME = "SELECT rowid FROM words WHERE words MATCH ? LIMIT ?"
_NEXT_SESSIONS = (
    "SELECT n, id, updated_at FROM sessions WHERE scope = ? AND (updated_at, n) < (?, ?) "
    "ORDER BY updated_at DESC, n DESC LIMIT 100"
)
_READS = (
    "SELECT n, 4294967295, NULL FROM logs WHERE session = ?1 UNION ALL "
    "SELECT h.source, h.until, h.log FROM logs l CROSS JOIN shares h ON h.log = l.n "
    "WHERE l.session = ?1"
)
_IN_LOG = (
    "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? "
    "ORDER BY rowid DESC LIMIT 100"
)


def _walk(database: Database, scope: str, wanted: str) -> Iterator[tuple[int, str, int | None]]:
    """What `_FIND` finds, in its order: session by session for a while, then from its beginning."""
    updated, last = "~", 0
    for _ in range(0, _WALKED, 100):
        with database.reading() as connection:
            sessions = connection.execute(_NEXT_SESSIONS, (scope, updated, last)).fetchall()
        for last, session_id, updated in sessions:  # noqa: B007 - where the next page begins
            with database.reading() as connection:
                parts = connection.execute(_READS, (last,)).fetchall()
            keys = [_in_log(database, wanted, *part) for part in parts]
            for key, fork in merge(*keys, key=lambda found: -(found[0] & SEQ_BITS)):
                yield key, session_id, fork
        if not sessions:
            return
    with database.reading() as connection:
        yield from connection.execute(_FIND, (wanted, scope)).fetchall()


def _in_log(
    database: Database, wanted: str, log: int, until: int, fork: int | None
) -> Iterator[tuple[int, int | None]]:
    """The events of a log that match, newest first."""
    first, last = log << 32, log << 32 | until
    while last >= first:
        with database.reading() as connection:
            keys = connection.execute(_IN_LOG, (wanted, first, last)).fetchall()
        yield from ((key, fork) for (key,) in keys)
        last = keys[-1][0] - 1 if keys else -1


_EVENT = f"SELECT {COLUMNS} FROM events WHERE key = ?"


def hits(
    database: Database, scope: str, query: Query, limit: int, damage: Callable[[Problem], None]
) -> list[Hit]:
    """What the index finds, newest session and newest event first, with the text it is in."""
    found: list[Hit] = []
    seen: set[tuple[int, str, str]] = set()
    candidates = _candidates(database, scope, query)
    while wanted := list(islice(candidates, limit - len(found))):
        for session_id, event in _events(database, wanted, damage):
            # A copy of an event, in a session that was copied, is the same event.
            if (event.seq, event.id, event.ts) in seen:
                continue
            text = text_of(event.data.get("message"))
            # FTS5 cuts words of over 32 KB, so the text has the last word.
            if query.matches(text):
                seen.add((event.seq, event.id, event.ts))
                found.append(Hit(check_session_id(session_id), event, query.snippet(text)))
    return found


def _events(
    database: Database, wanted: list[tuple[int, str]], damage: Callable[[Problem], None]
) -> Iterator[tuple[str, Event]]:
    """The events of these keys, each with its session; `damage` is told of those that are lost."""
    with database.reading() as connection:
        execute, unsealed = connection.execute, dict[int, int]()
        for key, session_id in wanted:
            log = key >> 32
            try:
                row = execute(_EVENT, (key,)).get
                if log not in unsealed:
                    unsealed[log] = unsealed_in(execute, log)
                if row is not None:
                    yield session_id, event_of(row, unsealed[log])
            except (Damaged, apsw.CorruptError, UnicodeDecodeError) as error:
                damage(problem(session_id, MAIN_LOG, key & SEQ_BITS, str(error)))


def _candidates(database: Database, scope: str, query: Query) -> Iterator[tuple[int, str]]:
    """Keys and sessions of the events that match, newest session and newest event first.

    An event comes once, under the newest session that reads it.
    """
    wanted = " AND ".join(
        f'"{" ".join(phrase)}"{" *" if begins else ""}'
        for phrase, begins in zip(query.phrases, query.begins, strict=True)
    )
    with database.reading() as connection:
        few = len(connection.execute(_SOME, (wanted, _MANY)).fetchall()) < _MANY
        rows = connection.execute(_FIND, (wanted, scope)).fetchall() if few else ()
    seen: set[int] = set()
    sound: dict[int, bool] = {}
    for key, session_id, fork in rows if few else _walk(database, scope, wanted):
        if key in seen:
            continue
        if fork is not None and fork not in sound:
            with database.reading() as connection:
                sound[fork] = has_parts(connection.execute, fork)
        if fork is None or sound[fork]:
            seen.add(key)
            yield key, session_id


def in_background(database: Database, waiting: deque[int], busy: bool) -> None:
    """Checkpoint, and index what waits while the database is not busy."""
    try:
        database.checkpoint()
        if not (busy or waiting):
            waiting.extend(behind(database))
        if busy or waiting:
            # The transaction, even an empty one, is what brings us here again.
            with database.briefly() as execute:
                if not busy:
                    index_slice(execute, waiting)
    except (Closed, SessionBusy):
        # Not ours to report: a search does the same before it looks.
        pass
    except Exception:
        if database.closed:
            return
        # The thread serves other stores too and must go on.
        logger().exception("background work on %s failed", database.path)
