"""The PostgreSQL store: sessions for many machines, on a server that is there already.

address.py    the URL: what is libpq's, what is ours, what must not be shown
link.py       connections, transactions, what errors mean; pool.py: those that rest
tables.py     the tables, numbered migrations
rowgate.py    the check sum of a row, the gate on its way out
spans.py      logs: finding one, reading it in pages
appender.py   one statement an append; outcomes that are not known; servers that lost events
kept.py       sessions, what is folded from their logs, lists
leases.py     the right to drive a session; news.py: what wakes followers
words.py      search; deletion.py, checkup.py, health.py, copyin.py: what they say
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import psycopg

from ...errors import NotFound, StoreFailed
from ...events import (
    MAIN_LOG,
    Checkpoint,
    Event,
    Hit,
    Json,
    NewEvent,
    Problem,
    SessionInfo,
    check_log,
    check_session_id,
    now,
)
from ...events.history import Mark
from ..base import Durability, KnownIds, Lease, OnDamage, Store
from ..batches import observed
from ..notes import Memory, check_note
from ..opening import Options
from ..records import (
    Filters,
    Range,
    changed_record,
    checkpoint_of,
    is_deleted,
    new_record,
    resolved,
)
from . import tables
from .address import Address, parse
from .appender import Appender
from .kept import (
    current,
    given,
    insert_record,
    is_made_by,
    kept_record,
    latest_of,
    listed,
    locked_record,
    share,
    storable,
    taken,
    update_record,
    updated_of_fork,
)
from .leases import Leases
from .link import Execute, Link
from .news import Listener, News, follow
from .rowgate import COLUMNS, event_of, share_sum
from .spans import (
    Log,
    check_head_of,
    events_by_id,
    find_log,
    log_names,
    marks_of,
    problem,
    read_log,
    tally_of,
)

if TYPE_CHECKING:
    from ..adopting import Logs

T = TypeVar("T")

_FIND_CHECKPOINT = (
    f"SELECT e.log, {COLUMNS} FROM backtrail.events e "
    "WHERE e.kind = 'checkpoint' AND e.id = %s AND e.scope = %s ORDER BY e.log, e.seq"
)
_READER = (
    "SELECT s.id FROM backtrail.logs l JOIN backtrail.sessions s ON s.n = l.session WHERE l.n = %s"
)
_FORK_READER = (
    "SELECT s.id FROM backtrail.shares h JOIN backtrail.logs l ON l.n = h.log "
    "JOIN backtrail.sessions s ON s.n = l.session WHERE h.source = %s AND h.until >= %s "
    "ORDER BY l.updated_at DESC, s.n DESC LIMIT 1"
)


def open_postgres(address: str, options: Options) -> PostgresStore:
    """`postgresql://USER@HOST/DATABASE?schema=…`, with what libpq knows besides."""
    scope, durability, on_damage, create = options
    return PostgresStore(
        parse(f"postgresql:{address}"), scope=scope, durability=durability, on_damage=on_damage,
        create=create,
    )  # fmt: skip


class PostgresStore(Store):
    """Sessions in a PostgreSQL database."""

    def __init__(
        self,
        address: Address,
        *,
        scope: str = "",
        durability: Durability = "written",
        on_damage: OnDamage | None = None,
        create: bool = True,
    ) -> None:
        self.scope = scope
        self.url = address.url
        self.durability = durability
        if address.password:
            self.environment = {"PGPASSWORD": address.password}
        self._on_damage = on_damage
        self._link = Link(address)
        try:
            self._id = tables.check(self._link, create)
        except BaseException:
            self._link.close()
            raise
        self._news = News(self._link, self._idle)
        self._listener = Listener(self._link)
        self._appender = Appender(self._link, scope, self._news.wrote)
        self._leases = Leases(self._link, scope, self._appender)

    @property
    def id(self) -> str:
        return self._id

    @property
    def link(self) -> Link:
        """The way to the database, for what else is kept in it."""
        return self._link

    # --- sessions ------------------------------------------------------------------------

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        record = new_record(info, self.scope, base)
        if base is not None:
            check_session_id(base[0])

        def work(execute: Execute, token: str) -> None:
            if base is None:
                insert_record(execute, record, 0, record.created_at, token)
                return
            parent, seq = self._parent(execute, *base)
            updated = updated_of_fork(execute, parent, record, seq)
            session, n = insert_record(execute, record, seq, updated, token)
            shared = [(s.log, min(s.high, seq)) for s in parent.spans if s.low < seq]
            if seq:
                rows = [
                    (n, position, source, until, share_sum(n, position, source, until))
                    for position, (source, until) in enumerate(shared)
                ]
                share(execute, rows, parent.session, session, seq)

        self._make(record, work)

    def _parent(self, execute: Execute, parent: str, seq: int) -> tuple[Log, int]:
        """The log that a fork begins with, locked: its parent cannot be deleted meanwhile."""
        _, log = find_log(execute, self.scope, parent, MAIN_LOG, " FOR SHARE OF s")
        if log is None or type(seq) is not int or not 0 <= seq <= log.head:
            raise NotFound(f"no event {seq} in session `{parent}`")
        return log, seq

    def _make(self, record: SessionInfo, work: Callable[[Execute, str], None]) -> None:
        """Make a session in one transaction, once, whatever becomes of the connection."""
        token = f"made {os.urandom(16).hex()}"
        self._appender.forget(record.id)

        def attempt(execute: Execute) -> None:
            try:
                with execute.connection.transaction():
                    work(execute, token)
            except psycopg.errors.UniqueViolation:
                if is_made_by(execute, self.scope, record.id, token) is None:
                    raise taken(execute, record) from None

        self._link.read(attempt)

    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        from .copyin import adopted

        record = new_record(info, self.scope)
        for name in logs:
            check_log(name)
        self._appender.forget(record.id)
        self._news.wrote(adopted(self._link, record, logs))

    def info(self, session_id: str) -> SessionInfo:
        check_session_id(session_id)
        return current(self._link, kept_record(self._link, self.scope, session_id))

    def record(self, session_id: str) -> SessionInfo:
        check_session_id(session_id)
        return kept_record(self._link, self.scope, session_id).info

    def update(
        self, session_id: str, *, expected: int | None = None, **changes: Json
    ) -> SessionInfo:
        check_session_id(session_id)

        def work(execute: Execute) -> None:
            check_head_of(execute, self.scope, session_id, MAIN_LOG, expected)
            kept = locked_record(execute, self.scope, session_id)
            record = changed_record(kept.info, changes)
            try:
                with execute.connection.transaction():
                    update_record(execute, kept.log.session, record)
            except psycopg.errors.UniqueViolation:
                raise taken(execute, record) from None

        self._link.write(work)
        return self.info(session_id)

    def sessions(self, **filters: Unpack[Filters]) -> list[SessionInfo]:
        return listed(self._link, self.scope, **filters)

    def latest(self, cwd: str | os.PathLike[str]) -> SessionInfo:
        return latest_of(self._link, self.scope, cwd)

    def delete(
        self, session_id: str, *, log: str | None = None, expected: int | None = None
    ) -> None:
        from .deletion import detach, sweep

        check_session_id(session_id)
        if log is not None:
            check_log(log)
        found = False

        def work(execute: Execute) -> None:
            nonlocal found
            try:
                check_head_of(execute, self.scope, session_id, log or MAIN_LOG, expected)
                detach(execute, self.scope, session_id, log)
            except NotFound:
                # Gone by the attempt whose outcome was not known.
                if not found:
                    raise
            found = True

        self._link.write(work)
        self._appender.forget(session_id)
        sweep(self._link)
        if log is None:
            from .. import due

            due.note(self, due.name_of(self), due.GRACE)

    # --- events --------------------------------------------------------------------------

    @observed
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        return self._appender.append(session_id, events, log, expected, known)

    def append_many(self, batches: Mapping[str, Sequence[NewEvent]]) -> dict[str, list[Event]]:
        return self._appender.append_many(batches)

    def read(
        self, session_id: str, *, log: str = MAIN_LOG, **events: Unpack[Range]
    ) -> Iterator[Event]:
        found = self._log(session_id, log)
        if found is None:
            return iter(())

        def damage(seq: int, why: str) -> None:
            self._report(problem(session_id, log, seq, why))

        return read_log(self._link, found, session_id, damage, **events)

    def outline(
        self, session_id: str, *, kinds: Collection[str] = (), after: int = 0,
        until: int | None = None,
    ) -> list[Mark]:  # fmt: skip
        found = self._log(session_id, MAIN_LOG)
        marks = None if found is None else marks_of(self._link, found, kinds, after, until)
        if marks is None:
            return super().outline(session_id, kinds=kinds, after=after, until=until)
        return marks

    def tally(self, session_id: str, *, after: int = 0, until: int | None = None) -> dict[str, int]:
        found = self._log(session_id, MAIN_LOG)
        return {} if found is None else tally_of(self._link, found, after, until)

    def _log(self, session_id: str, name: str) -> Log | None:
        check_session_id(session_id)
        check_log(name)
        return self._link.read(lambda execute: find_log(execute, self.scope, session_id, name)[1])

    def _report(self, found: Problem) -> None:
        if self._on_damage is not None:
            self._on_damage(found)

    def find(self, session_id: str, id: str, *, log: str = MAIN_LOG) -> Event:
        found = self._log(session_id, log)
        event: Event | None = None
        if found is not None and isinstance(id, str) and id.isprintable():
            event = self._link.read(lambda e: events_by_id(e, found, [id])).get(id)
        if event is None:
            raise NotFound(f"no event `{id}` in session `{session_id}`")
        return event

    def checkpoint(self, id: str) -> Checkpoint:
        rows: list[Any] = []
        if isinstance(id, str) and id.isprintable():
            rows = self._link.read(lambda e: e.all(_FIND_CHECKPOINT, (id, self.scope)))
        self._link.check_open()
        for log, *row in rows:
            session_id = self._reader_of(log, row[0])
            if session_id is not None and is_deleted(self, session_id, id):
                # Another session that shares the event may still have it.
                return super().checkpoint(id)
            if session_id is not None:
                return checkpoint_of(event_of(log, row), session_id)
        raise NotFound(f"no checkpoint `{id}` in this store")

    def _reader_of(self, log: int, seq: int) -> str | None:
        """The session an event belongs to, or the newest fork that reads it."""

        def ask(execute: Execute) -> str | None:
            row = execute.one(_READER, (log,)) or execute.one(_FORK_READER, (log, seq))
            return None if row is None else check_session_id(row[0])

        return self._link.read(ask)

    def purge(self, session_id: str, seqs: Collection[int], *, log: str = MAIN_LOG) -> None:
        from .deletion import purge

        check_session_id(session_id)
        check_log(log)
        self._link.write(lambda execute: purge(execute, self.scope, session_id, seqs, log))

    def logs(self, session_id: str) -> list[str]:
        check_session_id(session_id)
        return self._link.read(lambda execute: log_names(execute, self.scope, session_id))

    # --- the rest ------------------------------------------------------------------------

    def search(self, text: str, *, limit: int = 20) -> list[Hit]:
        from ..query import Query
        from .words import catch_up, hits

        query = Query(text)
        self._link.check_open()
        if limit < 1:
            return []
        try:
            if self._link.standby:
                return super().search(text, limit=limit)
            catch_up(self._link)
        except StoreFailed:
            # It takes no more words: a role that may only read, a full disk.
            return super().search(text, limit=limit)
        return hits(self._link, self.scope, query, limit, self._report)

    def memory(self, cwd: str | os.PathLike[str]) -> Memory:
        self._link.check_open()
        return _Note(self._link, self.scope, resolved(cwd))

    def verify(self) -> list[Problem]:
        from .checkup import verify

        return verify(self._link, self.scope)

    @contextmanager
    def lease(self, session_id: str, *, wait: float = 0) -> Iterator[Lease]:
        check_session_id(session_id)
        with self._leases.lease(session_id, wait) as lease:
            yield lease

    def follow(
        self,
        session_id: str,
        *,
        after: int | None = None,
        log: str = MAIN_LOG,
        poll: float = 0.05,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        found = self._log(session_id, log)
        newest = next(self.read(session_id, log=log, reverse=True, limit=1), None)
        start = after if after is not None else newest.seq if newest else 0
        n = None if found is None else found.n
        return follow(self, self._listener, (session_id, log, n), start, poll, stop)

    def flush(self) -> None:
        if self.relies_on is not None:
            self.relies_on()
        # What the server acknowledged it has synced, as it is configured to.
        self._link.check_open()

    def close(self) -> None:
        self._news.close()
        self._listener.close()
        self._leases.close()
        self._link.close()

    def _idle(self, logs: set[int]) -> None:
        """In the background, while nothing is appended: bring the search up to date."""
        from .words import catch_up

        catch_up(self._link, logs)


class _Note(Memory):
    """A project's note as a row."""

    def __init__(self, link: Link, scope: str, cwd: str) -> None:
        self._link = link
        self._where = (scope, os.fsencode(cwd).decode(errors="backslashreplace"))

    def read(self) -> str:
        query = "SELECT text FROM backtrail.notes WHERE scope = %s AND cwd = %s"
        row = self._link.read(lambda execute: execute.one(query, self._where))
        return "" if row is None else given(row[0]) or ""

    def write(self, text: str) -> None:
        values = (*self._where, storable(check_note(text)), now())
        query = (
            "INSERT INTO backtrail.notes(scope, cwd, text, ts) VALUES(%s, %s, %s, %s) "
            "ON CONFLICT (scope, cwd) DO UPDATE SET text = excluded.text, ts = excluded.ts"
        )
        self._link.read(lambda execute: execute(query, values))
