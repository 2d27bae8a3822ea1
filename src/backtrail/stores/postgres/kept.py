"""Session records in PostgreSQL, and the fold of their logs kept beside them.

Appending does not touch the record. A caller that asks for records folds what their logs have
beyond `folded`, and keeps the outcome: it is a cache. When a session was last used stands in the
head row of its main log, which no index covers; `sorted_at`, which one does, is at most a minute
behind it.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Unpack

import msgspec
import psycopg
from msgspec.structs import replace

from ..._startup.frozen import NamedTuple
from ...errors import AlreadyExists, Damaged, InvalidData, InvalidId, NotFound, StoreFailed
from ...events import MAX_SEQ, Event, SessionInfo, check_session_id, timestamp
from ...events.history import Fold, fold, walk
from ..disk.checks import UNDECODABLE
from ..records import Filters, Wanted, folded, resolved
from .link import Execute, Link, Lost
from .spans import Log, read_log, spans_of

# The order of `SessionInfo`.
_RECORD = (
    "s.id, s.key, s.scope, s.parent_id, s.relation, s.fork_seq, s.title, s.cwd, "
    "coalesce(s.root, s.cwd), s.model, s.agent_name, s.created_at, l.updated_at, s.folded, "
    "s.message_count, s.turn_count, s.usage, s.cost_usd, s.exit_reason, s.tags, s.metadata"
)
_LOG = (
    "s.n, s.sorted_at, l.n, l.base, l.head, l.epoch, "
    "(SELECT array_agg(ARRAY[h.position, h.source, h.until, h.seal] ORDER BY h.position) "
    "FROM backtrail.shares h WHERE h.log = l.n AND l.base > 0)"
)
COLUMNS = f"{_RECORD}, {_LOG}"
"""A record with its main log."""

FROM = "FROM backtrail.sessions s JOIN backtrail.logs l ON l.session = s.n AND l.name = 'messages'"

_WIDTH = 21
_TEXTS = (1, 6, 7, 8, 9, 10)
_MARK = "\x01"

MINUTE = timedelta(seconds=60)
"""How far `sorted_at` may be behind."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_usage = msgspec.json.Decoder(dict[str, int]).decode
_decode_tags = msgspec.json.Decoder(list[str]).decode


def shifted(ts: str, by: timedelta) -> str:
    """A time in the form of `Event.ts`, moved; as it is where the calendar ends."""
    try:
        return timestamp(datetime.fromisoformat(ts) + by)
    except (ValueError, OverflowError, InvalidData):
        return ts


class Kept(NamedTuple):
    """A record as it is stored, and its main log."""

    info: SessionInfo
    sorted_at: str
    log: Log

    @property
    def is_behind(self) -> bool:
        """Whether the log has events that are not counted."""
        return self.info.head != self.log.head


def kept_of(row: tuple[Any, ...]) -> Kept:
    """What a row of `COLUMNS` holds; `Damaged` if it cannot be a record."""
    *fields, usage, cost, reason, tags, metadata = row[:_WIDTH]
    for at in _TEXTS:
        fields[at] = given(fields[at])
    n, sorted_at, number, base, head, epoch, shares = row[_WIDTH:]
    try:
        check_session_id(fields[0])
        if fields[4] not in (None, "fork", "subagent") or not 0 <= fields[13] <= MAX_SEQ:
            raise Damaged(f"the record of session `{fields[0]}` cannot be one")
        tail = (_decode_usage(usage), cost, given(reason), _decode_tags(tags), _decode(metadata))
        info = SessionInfo(*(*fields, *tail))
    except (InvalidId, *UNDECODABLE) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"the record of session `{fields[0]}` cannot be read: {error}") from error
    log = Log(number, n, base, head, epoch, sorted_at, spans_of(number, base, shares))
    return Kept(info, sorted_at, log)


# --- making and changing -----------------------------------------------------------------

_CHANGING = "key, title, cwd, root, model, agent_name, tags, metadata"


def _changing(record: SessionInfo) -> tuple[object, ...]:
    texts = (record.key, record.title, record.cwd, record.root, record.model, record.agent_name)
    encode = msgspec.json.encode
    return *map(storable, texts), encode(record.tags).decode(), encode(record.metadata).decode()


def storable(text: str | None) -> str | None:
    """A text as PostgreSQL takes it, which has no NUL: that is spelt, behind a mark."""
    if text is None or not ("\0" in text or text.startswith(_MARK)):
        return text
    return _MARK + text.replace(_MARK, f"{_MARK}a").replace("\0", f"{_MARK}b")


def given(text: str | None) -> str | None:
    """The text that `storable` was given."""
    if text is None or not text.startswith(_MARK):
        return text
    return text[1:].replace(f"{_MARK}b", "\0").replace(f"{_MARK}a", _MARK)


_INSERT = (
    "WITH s AS (INSERT INTO backtrail.sessions(id, scope, parent_id, relation, fork_seq, "
    f"created_at, sorted_at, {_CHANGING}) VALUES({', '.join(['%s'] * 15)}) RETURNING n) "
    "INSERT INTO backtrail.logs(scope, session, name, base, head, indexed, updated_at, owner) "
    "SELECT %s, s.n, 'messages', %s, %s, %s, %s, %s FROM s RETURNING session, n"
)


def insert_record(
    execute: Execute, record: SessionInfo, base: int, updated_at: str, token: str
) -> tuple[int, int]:
    """Store a new record and its main log; their numbers. `token` names this attempt."""
    if record.fork_seq is not None and not -(1 << 62) < record.fork_seq < 1 << 62:
        raise InvalidData(f"there is no event {record.fork_seq} to fork at")
    values = (
        *(record.id, record.scope, record.parent_id, record.relation, record.fork_seq),
        *(record.created_at, updated_at, *_changing(record)),
        *(record.scope, base, base, base, updated_at, token),
    )
    row = execute.one(_INSERT, values)
    assert row is not None
    return row[0], row[1]


def taken(execute: Execute, record: SessionInfo) -> AlreadyExists:
    """The error for an id or a key in use."""
    there = "SELECT 1 FROM backtrail.sessions WHERE scope = %s AND id = %s"
    if execute.one(there, (record.scope, record.id)) is not None and record.key is None:
        return AlreadyExists(f"session `{record.id}` exists: `Session.open` resumes it")
    owner = "SELECT id FROM backtrail.sessions WHERE scope = %s AND key = %s"
    other = execute.one(owner, (record.scope, storable(record.key)))
    if other is not None and other[0] != record.id:
        return AlreadyExists(f"key `{record.key}` belongs to session `{other[0]}`")
    return AlreadyExists(f"session `{record.id}` exists: `Session.open` resumes it")


_MADE_BY = f"SELECT l.owner, l.n {FROM} WHERE s.scope = %s AND s.id = %s AND l.holder IS NULL"


def is_made_by(execute: Execute, scope: str, session_id: str, token: str) -> int | None:
    """The main log of a session, if the attempt of this name made it: its outcome was not known."""
    row = execute.one(_MADE_BY, (scope, session_id))
    return row[1] if row is not None and row[0] == token else None


def update_record(execute: Execute, n: int, record: SessionInfo) -> None:
    """Replace the fields of a record that may change."""
    marks = ", ".join(f"{name.strip()} = %s" for name in _CHANGING.split(","))
    execute(f"UPDATE backtrail.sessions SET {marks} WHERE n = %s", (*_changing(record), n))


# --- folding -----------------------------------------------------------------------------

# Not synced: what a crash of the server takes back is counted again.
_STORE = (
    "WITH c AS (SELECT set_config('synchronous_commit', 'off', true)), "
    "l AS (SELECT session FROM backtrail.logs WHERE n = %s AND session IS NOT NULL) "
    "UPDATE backtrail.sessions s SET folded = %s, message_count = %s, turn_count = %s, "
    "usage = %s, cost_usd = %s, exit_reason = %s FROM l, c "
    "WHERE s.n = l.session AND s.folded = %s"
)


def current(link: Link, kept: Kept) -> SessionInfo:
    """A record with everything its log says, as of the head that was read with it."""
    if not kept.is_behind:
        return kept.info
    info, log, top = kept.info, kept.log, kept.log.head
    since = info.head if info.head <= top else 0

    def read_back(bound: int | None) -> Iterator[Event]:
        return read_log(link, log, info.id, _ignore, until=bound, reverse=True)

    state = Fold()
    if since:
        state = Fold(
            *(since, info.message_count, info.turn_count, info.usage, info.cost_usd),
            *(info.exit_reason, info.updated_at),
        )
    events = read_log(link, log, info.id, _ignore, after=since, until=top)
    new = fold(state, events, lambda seq: walk(read_back, seq), own_after=info.fork_seq or 0)
    # A damaged last event is passed over by the fold, and still the head.
    found = folded(info, replace(new, head=top, updated_at=info.updated_at))
    counts = (found.head, found.message_count, found.turn_count)
    usage = msgspec.json.encode(found.usage).decode()
    spent = (usage, found.cost_usd, storable(found.exit_reason))
    if not link.standby:
        # Only a copy of what the log says: whoever may not write, or has no room, still reads.
        with suppress(StoreFailed, Lost):
            link.attempt(lambda execute: execute(_STORE, (log.n, *counts, *spent, info.head)))
    return found


def _ignore(seq: int, why: str) -> None:
    """Folding passes over damage: `read` and `verify` report it."""


_READERS = (
    "SELECT session FROM backtrail.logs WHERE n = %s AND session IS NOT NULL UNION "
    "SELECT l.session FROM backtrail.shares h JOIN backtrail.logs l ON l.n = h.log "
    "WHERE h.source = %s AND h.until >= %s AND l.session IS NOT NULL"
)


def unfold(execute: Execute, log: int, seq: int) -> None:
    """Forget the counts of every session that reads this event: it is not what it was."""
    execute(
        "UPDATE backtrail.sessions SET folded = 0, message_count = 0, turn_count = 0, "
        "usage = '{}', cost_usd = NULL, exit_reason = NULL WHERE n IN "
        f"(SELECT n FROM backtrail.sessions WHERE n IN ({_READERS}) ORDER BY n FOR UPDATE)",
        (log, log, seq),
    )


_BY_NAME = f"SELECT {COLUMNS} {FROM} WHERE s.scope = %s AND s.id = %s"


def kept_record(link: Link, scope: str, session_id: str) -> Kept:
    """One session's record, as it is stored."""
    row = link.read(lambda execute: execute.one(_BY_NAME, (scope, session_id)))
    if row is None:
        raise NotFound(f"no session `{session_id}`")
    return kept_of(row)


def locked_record(execute: Execute, scope: str, session_id: str) -> Kept:
    """The same, with the row of the record locked."""
    row = execute.one(f"{_BY_NAME} FOR UPDATE OF s", (scope, session_id))
    if row is None:
        raise NotFound(f"no session `{session_id}`")
    return kept_of(row)


# By `cwd` and by `root`, each with its own index.
_OF_FOLDER = (
    "SELECT n FROM backtrail.sessions WHERE scope = %s AND cwd = %s UNION ALL "
    "SELECT n FROM backtrail.sessions WHERE scope = %s AND root = %s"
)


# --- lists -------------------------------------------------------------------------------


def listed(link: Link, scope: str, **filters: Unpack[Filters]) -> list[SessionInfo]:
    """`Store.sessions` of a scope."""
    tag, limit = filters.get("tag"), filters.get("limit")
    after, before = filters.get("after"), filters.get("before")
    conditions = ["s.scope = %s"]
    values: list[object] = [scope]
    cwd, parent, key = filters.get("cwd"), filters.get("parent"), storable(filters.get("key"))
    if cwd is not None:
        place = resolved(cwd)
        conditions.append(f"s.n IN ({_OF_FOLDER})")
        values += [scope, place, scope, place]
    for column, value in (("parent_id", parent), ("key", key)):
        if value is not None:
            conditions.append(f"s.{column} = %s")
            values.append(value)
    if after is not None:
        low = timestamp(after)
        conditions.append("l.updated_at > %s AND s.sorted_at > %s")
        values += [low, shifted(low, -MINUTE)]
    if before is not None:
        conditions.append("l.updated_at < %s AND s.sorted_at < %s")
        values += [timestamp(before)] * 2
    try:
        # A text that cannot be stored matches nothing.
        "".join(str(value) for value in values).encode()
    except UnicodeEncodeError:
        return []
    if any("\0" in str(value) for value in values):
        return []
    metadata = filters.get("metadata")
    wanted = None if tag is None and metadata is None else Wanted(tag=tag, metadata=metadata)
    where = " AND ".join(conditions)
    found = newest(link, where, values, wanted, limit)
    infos: list[SessionInfo] = []
    for kept in found:
        try:
            infos.append(current(link, kept))
        except (NotFound, Damaged):
            # Deleted meanwhile, or not to be read: `verify` reports that.
            continue
    return infos


Keep = Callable[[SessionInfo], bool]


def newest(
    link: Link, where: str, values: list[object], keep: Keep | None, limit: int | None
) -> list[Kept]:
    """The records that match, newest first; no more of them are read than that takes."""
    if limit is not None and limit < 1:
        return []
    if limit is None:
        query = f"SELECT {COLUMNS} {FROM} WHERE {where} ORDER BY l.updated_at DESC, s.n DESC"
        return _sound(link.read(lambda execute: execute.all(query, values)), keep)
    query = (
        f"SELECT {COLUMNS} {FROM} WHERE {where} AND (s.sorted_at, s.n) < (%s, %s) "
        "ORDER BY s.sorted_at DESC, s.n DESC LIMIT %s"
    )
    found: list[Kept] = []
    last: tuple[str, int] = ("~", MAX_SEQ)
    size = min(limit + 20, 1000)
    while True:
        page_values = [*values, *last, size]
        rows = link.read(lambda execute, v=page_values: execute.all(query, v))  # type: ignore[misc]
        found += _sound(rows, keep)
        found = heapq.nlargest(limit, found, key=_age)
        if len(rows) < size:
            return found
        last = (rows[-1][_WIDTH + 1], rows[-1][_WIDTH])
        if len(found) == limit and shifted(last[0], MINUTE) <= found[-1].info.updated_at:
            return found
        size = min(size * 2, 1000)


def _age(kept: Kept) -> tuple[str, int]:
    return kept.info.updated_at, kept.log.session


def _sound(rows: list[tuple[Any, ...]], keep: Keep | None) -> list[Kept]:
    found: list[Kept] = []
    for row in rows:
        try:
            kept = kept_of(row)
        except Damaged:
            continue
        if keep is None or keep(kept.info):
            found.append(kept)
    return found


def latest_of(link: Link, scope: str, cwd: str | os.PathLike[str]) -> SessionInfo:
    """The newest session of a folder, subagents left out."""
    place = resolved(cwd)
    where = f"s.n IN ({_OF_FOLDER}) AND s.relation IS DISTINCT FROM 'subagent'"
    for kept in newest(link, where, [scope, place, scope, place], None, 1):
        return current(link, kept)
    raise NotFound(f"no previous session found in {os.fspath(cwd)}")


# --- forks -------------------------------------------------------------------------------

_LAST = (
    "SELECT max(e.ts) FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS p(log, low, high) "
    "JOIN backtrail.events e ON e.log = p.log AND e.seq > p.low AND e.seq <= p.high "
    "WHERE e.kind <> 'session_end'"
)


def updated_of_fork(execute: Execute, parent: Log, record: SessionInfo, seq: int) -> str:
    """When a fork was last used: its own making, or the newest event that it begins with."""
    row = execute.one("SELECT updated_at FROM backtrail.logs WHERE n = %s", (parent.n,))
    if row is None or row[0] <= record.created_at or not seq:
        return record.created_at
    parts = [(s.log, s.low, min(s.high, seq)) for s in parent.spans if s.low < seq]
    newest = execute.one(_LAST, [list(column) for column in zip(*parts, strict=True)])
    return max(record.created_at, (newest[0] if newest is not None else None) or "")


_SHARE = (
    "WITH h AS (INSERT INTO backtrail.shares(log, position, source, until, seal) "
    "SELECT * FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[])) "
    "UPDATE backtrail.sessions s SET folded = p.folded, message_count = p.message_count, "
    "turn_count = p.turn_count FROM backtrail.sessions p "
    "WHERE s.n = %s AND p.n = %s AND p.folded <= %s"
)


def share(
    execute: Execute, rows: Sequence[tuple[int, ...]], parent: int, fork: int, seq: int
) -> None:
    """Let a fork read its parent's events, and begin with its counts: none is read again."""
    execute(_SHARE, (*(list(column) for column in zip(*rows, strict=True)), fork, parent, seq))


def unique(error: psycopg.Error) -> str:
    """The name of the index that a value was already in."""
    return error.diag.constraint_name or ""
