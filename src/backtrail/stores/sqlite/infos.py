"""Session records in SQLite, and the fold of their logs kept beside them.

Appending does not touch the record: it marks the log as dirty. A caller that asks for records
first folds the dirty logs' new events, stores the outcome and clears the marks. When the
write lock is not to be had, the outcome is used and not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from ...errors import (
    AlreadyExists,
    Damaged,
    InvalidData,
    InvalidId,
    NotFound,
    SessionBusy,
    StoreFailed,
)
from ...events import MAIN_LOG, MAX_SEQ, AsDict, Event, SessionInfo, check_session_id
from ...events.history import Fold, fold, walk
from ..disk.checks import SEQ_BITS, UNDECODABLE, share_sum, whole_number
from ..disk.database import Database
from ..disk.fs import NO_ROOM
from ..disk.schema import Execute
from ..records import folded
from .logs import NAMED, Log, Span, find_log, has_parts, head_of, log_at
from .pages import read_log

# The order of `SessionInfo`, so that a row is its arguments.
COLUMNS = (
    "s.id, s.key, s.scope, s.parent_id, s.relation, s.fork_seq, s.title, s.cwd, s.root, "
    "s.model, s.agent_name, s.created_at, s.updated_at, s.folded, s.message_count, s.turn_count, "
    "s.usage, s.cost_usd, s.exit_reason, s.tags, s.metadata"
)

WIDTH = len(SessionInfo.__slots__)
"""How many columns that are; others come behind them."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_usage = msgspec.json.Decoder(dict[str, int]).decode
_decode_tags = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.encode


class _Loose(AsDict):
    """`SessionInfo` while it is built.

    The constructor of a frozen dataclass takes seven times as long, which a list of ten
    thousand sessions shows. The layout is the same, so the class can be exchanged.
    """

    __slots__ = tuple(SessionInfo.__slots__)


RELATIONS = (None, "fork", "subagent")
TEXT, MAYBE, COUNT = (str,), (str, type(None)), (int,)
TYPES: tuple[tuple[type, ...], ...] = (
    *(TEXT, MAYBE, TEXT, MAYBE, MAYBE, (int, type(None))),
    *(MAYBE, MAYBE, MAYBE, MAYBE, MAYBE),
    *(TEXT, TEXT, COUNT, COUNT, COUNT, TEXT, (float, type(None)), MAYBE, TEXT, TEXT),
)
"""The types that the columns are made with. A damaged page may hold any."""
_seen: set[tuple[type, ...]] = set()


def _check_types(row: tuple[Any, ...]) -> None:
    """Raise `Damaged` if a column has another type than it was made with."""
    types = tuple(map(type, row))
    if types not in _seen:
        for found, known in zip(types, TYPES, strict=True):
            if found not in known:
                raise Damaged(f"the record of a session holds a {found.__name__} out of place")
        _seen.add(types)


def info_of(row: tuple[Any, ...]) -> SessionInfo:
    """The record in a row of `COLUMNS`; `Damaged` if it cannot be one."""
    _check_types(row)
    try:
        check_session_id(row[0])
    except InvalidId as error:
        raise Damaged(f"the record of session `{row[0]}` cannot be read: {error}") from error
    if row[4] not in RELATIONS:
        raise Damaged(f"the record of session `{row[0]}` has the relation {row[4]!r}")
    if not 0 <= row[13] <= MAX_SEQ:
        raise Damaged(f"the record of session `{row[0]}` has the head {row[13]}")
    return make_info(row)


def make_info(row: tuple[Any, ...]) -> SessionInfo:
    """The record in a row that `info_of` would not refuse; `Damaged` if it cannot be decoded."""
    info: Any = _Loose()
    (
        info.id,
        info.key,
        info.scope,
        info.parent_id,
        info.relation,
        info.fork_seq,
        info.title,
        info.cwd,
        root,
        info.model,
        info.agent_name,
        info.created_at,
        info.updated_at,
        info.head,
        info.message_count,
        info.turn_count,
        usage,
        info.cost_usd,
        info.exit_reason,
        tags,
        metadata,
    ) = row
    info.root = info.cwd if root is None else root
    try:
        info.usage = {} if usage == "{}" else _decode_usage(usage)
        info.tags = [] if tags == "[]" else _decode_tags(tags)
        info.metadata = {} if metadata == "{}" else _decode(metadata)
    except UNDECODABLE as error:
        raise Damaged(f"the record of session `{info.id}` cannot be read: {error}") from error
    info.__class__ = SessionInfo
    made: SessionInfo = info
    return made


# --- changing records --------------------------------------------------------------------


_CHANGING = "key, title, cwd, root, model, agent_name, tags, metadata"
_LASTING = "id, scope, parent_id, relation, fork_seq, created_at, updated_at"


def _changing(record: SessionInfo) -> tuple[object, ...]:
    tags, metadata = _encode(record.tags).decode(), _encode(record.metadata).decode()
    root = None if record.root == record.cwd else record.root
    named = (record.key, record.title, record.cwd, root, record.model, record.agent_name)
    return *named, tags, metadata


def insert_record(execute: Execute, record: SessionInfo) -> int:
    """Store a new record and return its number; `AlreadyExists` if id or key is taken."""
    taken = "SELECT 1 FROM sessions WHERE scope = ? AND id = ?"
    if execute(taken, (record.scope, record.id)).get is not None:
        raise AlreadyExists(f"session `{record.id}` exists: `Session.open` resumes it")
    check_key(execute, record)
    made = record.created_at
    origin = (record.parent_id, record.relation, record.fork_seq)
    marks = ", ".join("?" * 15)
    insert = f"INSERT INTO sessions({_LASTING}, {_CHANGING}) VALUES({marks}) RETURNING n"
    values = (record.id, record.scope, *origin, made, made, *_changing(record))
    try:
        n: int = execute(insert, values).get
    except OverflowError:
        raise InvalidData(f"there is no event {record.fork_seq} to fork at") from None
    return n


def check_key(execute: Execute, record: SessionInfo) -> None:
    """Raise if another session of the scope has this key."""
    if record.key is None:
        return
    owner = "SELECT id FROM sessions WHERE scope = ? AND key = ?"
    other = execute(owner, (record.scope, record.key)).get
    if other is not None and other != record.id:
        raise AlreadyExists(f"key `{record.key}` belongs to session `{other}`")


def update_record(execute: Execute, n: int, record: SessionInfo) -> None:
    """Replace the fields of a record that may change."""
    check_key(execute, record)
    marks = ", ".join("?" * 8)
    execute(f"UPDATE sessions SET ({_CHANGING}) = ({marks}) WHERE n = ?", (*_changing(record), n))


def add_log(execute: Execute, session: int, name: str, shares: tuple[Span, ...] = ()) -> Log:
    """Make a log that reads `shares` and then its own events."""
    base = shares[-1].high if shares else 0
    insert = "INSERT INTO logs(session, name, base, indexed) VALUES(?, ?, ?, ?) RETURNING n"
    made = execute(insert, (session, name, base, base)).get
    # Behind a damaged number come only such as no reader takes.
    n = whole_number(made, "the number of a new log", MAX_SEQ)
    insert = "INSERT INTO shares(log, position, source, until, seal) VALUES(?, ?, ?, ?, ?)"
    for position, span in enumerate(shares):
        row = (n, position, span.log, span.high)
        execute(insert, (*row, share_sum(*row)))
    return Log(n, base, (*shares, Span(n, base, MAX_SEQ)))


def shared_spans(execute: Execute, scope: str, parent: str, seq: int) -> tuple[Span, ...]:
    """What a fork of `parent` at `seq` reads of others."""
    _, log = find_log(execute, scope, parent, MAIN_LOG)
    head = None if log is None else head_of(execute, log.n)
    if log is None or head is None or not 0 <= seq <= head:
        raise NotFound(f"no event {seq} in session `{parent}`")
    return tuple(span._replace(high=min(span.high, seq)) for span in log.spans if span.low < seq)


_INHERIT = (
    "UPDATE sessions SET (folded, message_count, turn_count, updated_at) = ("
    "  SELECT p.folded, p.message_count, p.turn_count, max(p.updated_at, sessions.updated_at)"
    "  FROM sessions p WHERE p.scope = ?1 AND p.id = ?2)"
    " WHERE n = ?3 AND fork_seq = ?4 AND EXISTS("
    "  SELECT 1 FROM sessions p WHERE p.scope = ?1 AND p.id = ?2"
    "  AND p.folded <= ?4 AND p.created_at <= sessions.created_at)"
)


def inherit_fold(execute: Execute, scope: str, parent: str, fork: int, seq: int) -> None:
    """Let a fork begin with the parent's counts, so that it need not read everything again.

    They must not reach beyond the fork, and the parent must not be the younger one, whose
    time of creation would count as a time of the log.
    """
    execute(_INHERIT, (scope, parent, fork, seq))


# --- folding -----------------------------------------------------------------------------

# CROSS JOIN keeps the order: a few dirty logs first, never all sessions.
_DIRTY = (
    f"SELECT {COLUMNS}, s.n, l.n, l.base, l.unsealed FROM dirty d CROSS JOIN logs l ON l.n = d.log "
    "CROSS JOIN sessions s ON s.n = l.session WHERE s.scope = ?"
)
_STORE = (
    "UPDATE sessions SET folded = ?, updated_at = ?, message_count = ?, turn_count = ?, "
    "usage = ?, cost_usd = ?, exit_reason = ? WHERE n = ? AND folded = ?"
)


class Folded:
    """A session's record with everything its log says, as of its `head`."""

    def __init__(self, info: SessionInfo, n: int, log: int, since: int) -> None:
        self.info = info
        self.n = n
        self.log = log
        self.since = since

    def store(self, execute: Execute) -> None:
        """Keep the counts, unless newer ones are kept, and clear the mark."""
        info = self.info
        counts = (info.head, info.updated_at, info.message_count, info.turn_count)
        spent = (_encode(info.usage).decode(), info.cost_usd, info.exit_reason)
        execute(_STORE, (*counts, *spent, self.n, self.since))
        execute("INSERT OR IGNORE INTO unindexed SELECT log FROM dirty WHERE log = ?", (self.log,))
        head = head_of(execute, self.log)
        if execute("SELECT folded FROM sessions WHERE n = ?", (self.n,)).get == head:
            execute("DELETE FROM dirty WHERE log = ?", (self.log,))


def fold_row(database: Database, row: tuple[Any, ...]) -> Folded:
    """Fold what a row of `_DIRTY` does not count yet; nothing is locked meanwhile."""
    info = info_of(row[:WIDTH])
    n, number, base, unsealed = row[WIDTH:]
    with database.reading() as connection:
        log = log_at(connection.execute, number, base, unsealed)
        top = head_of(connection.execute, number)
    since = info.head
    if top is None or top < since:
        # Deleted, or its end is lost, which `verify` reports: the counts stay as they are.
        return Folded(info, n, number, since)

    def read_back(bound: int | None) -> Iterator[Event]:
        return read_log(database, log, info.id, _ignore, until=bound, reverse=True)

    state = Fold(
        info.head,
        info.message_count,
        info.turn_count,
        info.usage,
        info.cost_usd,
        info.exit_reason,
        info.updated_at,
    )
    events = read_log(database, log, info.id, _ignore, after=since, until=top)
    new = fold(state, events, lambda seq: walk(read_back, seq), own_after=info.fork_seq or 0)
    # A damaged last event is passed over by the fold, and still the head.
    return Folded(folded(info, replace(new, head=top)), n, number, since)


_READERS = (
    "SELECT session FROM logs WHERE n = ?1 AND session IS NOT NULL UNION "
    "SELECT l.session FROM shares h JOIN logs l ON l.n = h.log "
    "WHERE h.source = ?1 AND h.until >= ?2 AND l.session IS NOT NULL"
)


def unfold(execute: Execute, log: int, seq: int) -> None:
    """Forget the counts of every session that reads this event: it is not what it was."""
    for (n,) in execute(_READERS, (log, seq)).fetchall():
        execute(
            "UPDATE sessions SET folded = 0, updated_at = created_at, message_count = 0, "
            "turn_count = 0, usage = '{}', cost_usd = NULL, exit_reason = NULL WHERE n = ?",
            (n,),
        )
        execute(
            "INSERT OR IGNORE INTO dirty "
            "SELECT n FROM logs WHERE session = ? AND name = 'messages'",
            (n,),
        )


def _ignore(seq: int, why: str) -> None:
    """Folding passes over damage: `read` and `verify` report it."""


def refresh(database: Database, scope: str) -> tuple[list[Folded], set[str]]:
    """Bring the records of a scope up to date.

    Returns what could not be stored, because others write or it is not possible, and the ids of
    sessions that cannot be read.
    """
    late: list[Folded] = []
    lost: set[str] = set()
    for row in _dirty_rows(database, scope):
        try:
            late.append(fold_row(database, row))
        except NotFound:
            # Deleted meanwhile.
            continue
        except Damaged:
            lost.add(row[0])
    return ([] if not late or _stored(database, late) else late), lost


def _dirty_rows(database: Database, scope: str) -> list[Any]:
    """The records whose logs have new events; those that cannot be read are left out."""
    try:
        with database.reading() as connection:
            rows: list[Any] = connection.execute(_DIRTY, (scope,)).fetchall()
            return rows
    except Damaged:
        rows = []
    try:
        with database.reading() as connection:
            marks = connection.execute("SELECT log FROM dirty").fetchall()
    except Damaged:
        return rows
    for (log,) in marks:
        try:
            with database.reading() as connection:
                row = connection.execute(f"{_DIRTY} AND d.log = ?", (scope, log)).get
        except Damaged:
            continue
        if row is not None:
            rows.append(row)
    return rows


def _stored(database: Database, late: list[Folded]) -> bool:
    try:
        with database.briefly() as execute:
            for one in late:
                one.store(execute)
    except SessionBusy:
        return False
    except StoreFailed as error:
        # Counts can be folded again. A caller that cannot write must still be able to look.
        if error.errno not in NO_ROOM:
            raise
        return False
    return True


_ONE = (
    f"SELECT {COLUMNS}, s.n, l.n, l.base, l.unsealed, d.log FROM sessions s "
    "JOIN logs l ON l.session = s.n AND l.name = 'messages' "
    f"LEFT JOIN dirty d ON d.log = l.n WHERE {NAMED} LIMIT 1"
)


def current_info(database: Database, scope: str, session_id: str) -> SessionInfo:
    """One session's record, up to date."""
    with database.reading() as connection:
        row = connection.execute(_ONE, (scope, session_id)).get
    if row is None:
        raise NotFound(f"no session `{session_id}`")
    if row[WIDTH + 4] is None:
        return info_of(row[:WIDTH])
    one = fold_row(database, row[: WIDTH + 4])
    _stored(database, [one])
    return one.info


def reader_of(database: Database, scope: str, key: int) -> str | None:
    """The session an event belongs to, or the newest fork that reads it; None elsewhere."""
    log, seq = key >> 32, key & SEQ_BITS
    owner = "SELECT s.id, s.scope FROM logs l JOIN sessions s ON s.n = l.session WHERE l.n = ?"
    fork = (
        "SELECT s.id, s.scope, h.log FROM shares h JOIN logs l ON l.n = h.log "
        "JOIN sessions s ON s.n = l.session WHERE h.source = ? AND h.until >= ? "
        "ORDER BY s.updated_at DESC, s.n DESC"
    )
    with database.reading() as connection:
        row = connection.execute(owner, (log,)).get
        if row is None:
            forks = connection.execute(fork, (log, seq)).fetchall()
            row = next((row for row in forks if has_parts(connection.execute, row[2])), None)
    try:
        return check_session_id(row[0]) if row is not None and row[1] == scope else None
    except InvalidId as error:
        raise Damaged(f"the record of a session cannot be read: {error}") from error


# --- the newest -----------------------------------------------------------------------------

OF_FOLDER = (
    "SELECT n FROM sessions WHERE scope = ? AND cwd = ? UNION ALL "
    "SELECT n FROM sessions WHERE scope = ? AND root = ?"
)
"""The numbers of the sessions that belong to a folder by their `cwd` or their `root`."""

# One statement, its indexes named: on a fresh connection preparing it is most of its cost.
_NEWEST = (
    "SELECT n, updated_at FROM (SELECT n, updated_at FROM sessions INDEXED BY sessions_{0} "
    "WHERE scope = ?1 AND {0} = ?2 AND relation IS NOT 'subagent' "
    "ORDER BY updated_at DESC, n DESC LIMIT 1)"
)
_LATEST = (
    f"SELECT {COLUMNS}, EXISTS(SELECT 1 FROM dirty) FROM sessions s WHERE s.n = (SELECT n FROM "
    f"({_NEWEST.format('cwd')} UNION ALL {_NEWEST.format('root')}) "
    "ORDER BY updated_at DESC, n DESC LIMIT 1)"
)


def latest_record(database: Database, scope: str, cwd: str) -> SessionInfo | None:
    """The newest record of a directory; None if there is none, or if it takes a closer look."""
    with database.reading() as connection:
        try:
            row = connection.execute(_LATEST, (scope, cwd)).get
            return None if row is None or row[WIDTH] else info_of(row[:WIDTH])
        except (Damaged, apsw.CorruptError, UnicodeError):
            return None
