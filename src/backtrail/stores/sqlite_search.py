"""Full-text search in SQLite: an FTS5 index that is caught up later, never by an append.

The index holds words only, under the key of their event; the text stays in the event. Words
are cut and folded by `words_of`, as everywhere else, so the index finds what `Query` means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import apsw

from ..errors import Damaged, StoreFailed
from ..events import MAIN_LOG, MESSAGE_KINDS, Hit, Problem, check_session_id, decode_data
from ..messages import text_of
from .files import NO_ROOM
from .searching import Query, words_of
from .sqlite_checks import COLUMNS, SEQ_BITS, UNDECODABLE, event_of, whole_number
from .sqlite_connections import Database
from .sqlite_logs import unsealed_in
from .sqlite_pages import problem
from .sqlite_transactions import Execute

SLICE = 200
"""Events indexed in one transaction: short enough for a writer to wait for."""

_SLICE_BYTES = 1 << 20

_BEHIND = (
    "SELECT n, indexed, top FROM ("
    "SELECT l.n, l.indexed,"
    " (SELECT max(key) FROM events WHERE key BETWEEN l.n << 32 AND l.n << 32 | 4294967295) AS top"
    " FROM (SELECT log FROM unindexed UNION SELECT log FROM dirty) d"
    " CROSS JOIN logs l ON l.n = d.log"
    ") WHERE top & 4294967295 > indexed ORDER BY n LIMIT 100"
)


def behind(database: Database) -> list[tuple[int, int, int]]:
    """The logs with events that the index does not know: how far it goes, and how far they go."""
    with database.reading() as connection:
        rows: list[tuple[int, int, int]] = connection.execute(_BEHIND).fetchall()
    return rows


def catch_up(database: Database) -> bool:
    """Index everything, in slices that let others write in between; False if it cannot."""
    before: list[tuple[int, int, int]] = []
    try:
        while rows := behind(database):
            if rows == before:
                raise Damaged("the events to index are out of order: `verify` tells where")
            before = rows
            with database.writing as execute:
                index_slice(execute)
    except StoreFailed as error:
        if error.errno not in NO_ROOM:
            raise
        return False
    return True


def index_slice(execute: Execute) -> None:
    """Index some events, in the order of their keys: FTS5 takes ascending numbers best."""
    left, room = SLICE, _SLICE_BYTES
    for log, indexed, top in execute(_BEHIND).fetchall():
        whole_number(indexed, f"what is indexed of log {log}")
        rows = execute(
            "SELECT key, kind, CAST(data AS BLOB) FROM events "
            "WHERE key > ? AND key <= ? ORDER BY key LIMIT ?",
            (log << 32 | indexed, top, left),
        )
        taken: list[tuple[int, str]] = []
        last = top
        for last, kind, body in rows:
            left -= 1
            room -= len(body or b"")
            if kind in MESSAGE_KINDS:
                taken.append((last, _words(body)))
            if left <= 0 or room <= 0:
                break
        for key, text in taken:
            if text:
                execute("INSERT INTO words(rowid, text) VALUES(?, ?)", (key, text))
        execute("UPDATE logs SET indexed = ? WHERE n = ?", (last & SEQ_BITS, log))
        if last == top:
            execute("DELETE FROM unindexed WHERE log = ?", (log,))
        if left <= 0 or room <= 0:
            return


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
    with database.writing as execute:
        execute("INSERT INTO words(words, rank) VALUES('merge', -200)")
    while True:
        with database.writing as execute:
            before = execute("SELECT total_changes()").get
            execute("INSERT INTO words(words, rank) VALUES('merge', 200)")
            # FTS5 says by this number that there is nothing left to merge.
            if execute("SELECT total_changes()").get - before < 2:
                break
    with database.writing as execute:
        execute("INSERT INTO words(words) VALUES('optimize')")


# Every session that reads a found event: its owner, and the forks that share it.
_FIND = """
WITH found(key) AS MATERIALIZED (SELECT rowid FROM words WHERE words MATCH ?1),
readers(key, session) AS (
  SELECT key, l.session FROM found CROSS JOIN logs l ON l.n = key >> 32
  UNION ALL
  SELECT key, l.session FROM found
    CROSS JOIN shares h ON h.source = key >> 32 AND h.until >= key & 4294967295
    CROSS JOIN logs l ON l.n = h.log
)
SELECT r.key, s.id FROM readers r CROSS JOIN sessions s ON s.n = r.session
WHERE s.scope = ?2 ORDER BY s.updated_at DESC, s.n DESC, r.key & 4294967295 DESC
"""


_EVENT = f"SELECT {COLUMNS} FROM events WHERE key = ?"


def hits(
    database: Database, scope: str, query: Query, limit: int, damage: Callable[[Problem], None]
) -> list[Hit]:
    """What the index finds, newest session and newest event first, with the text it is in."""
    found: list[Hit] = []
    seen: set[tuple[int, str, str]] = set()
    for key, session_id in _candidates(database, scope, query):
        with database.reading() as connection:
            try:
                row = connection.execute(_EVENT, (key,)).get
                unsealed = unsealed_in(connection.execute, key >> 32)
                event = None if row is None else event_of(row, unsealed)
            except (Damaged, apsw.CorruptError, UnicodeDecodeError) as error:
                damage(problem(session_id, MAIN_LOG, key & SEQ_BITS, str(error)))
                continue
        # A copy of an event, in a session that was copied, is the same event.
        if event is None or (event.seq, event.id, event.ts) in seen:
            continue
        text = text_of(event.data.get("message"))
        # FTS5 cuts words of over 32 KB, so the text has the last word.
        if query.matches(text):
            seen.add((event.seq, event.id, event.ts))
            found.append(Hit(check_session_id(session_id), event, query.snippet(text)))
            if len(found) >= limit:
                break
    return found


def _candidates(database: Database, scope: str, query: Query) -> Iterator[tuple[int, str]]:
    """Keys and sessions of the events that match, newest session and newest event first.

    An event comes once, under the newest session that reads it.
    """
    wanted = " AND ".join(f'"{" ".join(phrase)}"' for phrase in query.phrases)
    with database.reading() as connection:
        rows = connection.execute(_FIND, (wanted, scope)).fetchall()
    seen: set[int] = set()
    for key, session_id in rows:
        if key not in seen:
            seen.add(key)
            yield key, session_id
