"""The SQLite store: one database for all sessions, safe for many threads and processes.

Behind it stand `disk` (connections, transactions, tables, syncing, process forks), `append.py`,
`logs.py` and `pages.py` (events), `infos.py` and `listing.py` (sessions and what is folded from
their logs), `fulltext.py` (the full-text index), `removal.py` and `verify.py`.

An append writes one row. Counts and search words follow later. What no append needs is imported
where it is used: a hook pays for every import.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ...errors import Damaged, NotFound, StoreFailed
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
)
from ...events.history import Mark
from ..base import Durability, KnownIds, Lease, OnDamage, Store
from ..batches import Call, Outcome, drafts, observed, observed_each
from ..disk import fs
from ..disk.checks import COLUMNS, event_of
from ..disk.database import Database
from ..disk.identity import identity_of
from ..disk.locks import file_lease
from ..disk.schema import located
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
from .append import Appender, insert_all
from .infos import COLUMNS as RECORD
from .infos import (
    WIDTH,
    add_log,
    current_info,
    info_of,
    inherit_fold,
    insert_record,
    latest_record,
    reader_of,
    refresh,
    shared_spans,
    update_record,
)
from .logs import (
    NAMED,
    Log,
    check_head_of,
    event_by_id,
    find_log,
    last_events,
    log_names,
    unsealed_in,
)
from .pages import problem, read_log

if TYPE_CHECKING:
    from ..adopting import Logs
    from ..notes import Memory

_RECORD = f"SELECT {RECORD}, s.n FROM sessions s WHERE {NAMED} LIMIT 1"
_DIRTY = "INSERT OR IGNORE INTO dirty VALUES(?)"
# A named tuple's own constructor goes through Python code.
_AT_ONCE = 64  # events of a tail that one statement reads


def open_sqlite(address: str, options: Options) -> SQLiteStore:
    """`sqlite:///PATH`, as SQLAlchemy has it: a fourth slash makes the path absolute."""
    path = located(address)
    options.check(path)
    scope, durability, on_damage, _ = options
    return SQLiteStore(path, scope=scope, durability=durability, on_damage=on_damage)


class SQLiteStore(Store):
    """Sessions in a SQLite database."""

    groups = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        scope: str = "",
        durability: Durability = "written",
        on_damage: OnDamage | None = None,
    ) -> None:
        self.scope = scope
        self._on_damage = on_damage
        self._appends = self._seen = 0
        self._unindexed: deque[int] = deque()
        self._database = Database(path, synced=durability == "synced", idle=self._idle)
        self._path = self._database.path
        self.url = f"sqlite:///{self._path}"
        self._appender = Appender(self._database, scope)
        self.durability = durability
        self._synced = durability == "synced"
        # A hint: one caller writes and waits for the disk, and those that come meanwhile queue.
        self._busy = False

    @property
    def id(self) -> str:
        return self._identity[0]

    @property
    def former_name(self) -> str:
        return self._identity[1]

    @cached_property
    def _identity(self) -> tuple[str, str]:
        """The id in the database, and the URL that was its name before; empty where read-only."""
        return identity_of(self._database, self.url)

    # Made when asked for: a command that looks at one thing would pay for each path.
    @cached_property
    def contents(self) -> Path | None:  # type: ignore[override]
        """The folder for contents of files."""
        return Path(f"{self._path}-files")

    @cached_property
    def places(self) -> tuple[Path, ...]:  # type: ignore[override]
        """Files and folders of its own, which no scan of a workspace captures."""
        ends = ("", "-wal", "-shm", "-lock", "-leases", "-retention", "-retention.log")
        return tuple(Path(f"{self._path}{end}") for end in ends)

    # --- sessions ------------------------------------------------------------------------

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        record = new_record(info, self.scope, base)
        if base is not None:
            check_session_id(base[0])
        with self._database.writing() as execute:
            spans = () if base is None else shared_spans(execute, self.scope, *base)
            session = insert_record(execute, record)
            log = add_log(execute, session, MAIN_LOG, spans)
            if base is not None and log.base:
                inherit_fold(execute, self.scope, base[0], session, log.base)
                execute(_DIRTY, (log.n,))
        self._database.acknowledge()

    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        from ..adopting import whole, with_main

        record = new_record(info, self.scope)
        with self._database.writing() as execute:
            session = insert_record(execute, record)
            for name, events in with_main(logs).items():
                log = add_log(execute, session, check_log(name))
                filled = insert_all(execute, log, whole(events))
                if filled and name == MAIN_LOG:
                    execute(_DIRTY, (log.n,))
        self._database.acknowledge()

    def info(self, session_id: str) -> SessionInfo:
        check_session_id(session_id)
        return current_info(self._database, self.scope, session_id)

    def record(self, session_id: str) -> SessionInfo:
        check_session_id(session_id)
        with self._database.reading() as connection:
            row = connection.execute(_RECORD, (self.scope, session_id)).get
        if row is None:
            raise NotFound(f"no session `{session_id}`")
        return info_of(row[:WIDTH])

    def update(
        self, session_id: str, *, expected: int | None = None, **changes: Json
    ) -> SessionInfo:
        check_session_id(session_id)
        with self._database.writing() as execute:
            check_head_of(execute, self.scope, session_id, MAIN_LOG, expected)
            row = execute(_RECORD, (self.scope, session_id)).get
            if row is None:
                raise NotFound(f"no session `{session_id}`")
            update_record(execute, row[WIDTH], changed_record(info_of(row[:WIDTH]), changes))
        self._database.acknowledge()
        return self.info(session_id)

    def sessions(self, **filters: Unpack[Filters]) -> list[SessionInfo]:
        from .listing import listed

        return listed(self._database, self.scope, **filters)

    def latest(self, cwd: str | os.PathLike[str]) -> SessionInfo:
        path = resolved(cwd)
        newest = latest_record(self._database, self.scope, path)
        if newest is None:
            # Something may not be counted yet.
            refresh(self._database, self.scope)
            newest = latest_record(self._database, self.scope, path)
        return newest or super().latest(cwd)

    def delete(
        self, session_id: str, *, log: str | None = None, expected: int | None = None
    ) -> None:
        from .removal import detach, sweep

        check_session_id(session_id)
        if log is not None:
            check_log(log)
        with self._database.writing() as execute:
            check_head_of(execute, self.scope, session_id, log or MAIN_LOG, expected)
            session = detach(execute, self.scope, session_id, log)
        sweep(self._database)
        if log is None:
            self._lease_path(session).unlink(missing_ok=True)
        self._database.acknowledge()
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
        self._appends += 1
        if not self._synced:
            return self._appender.append(session_id, events, log, expected, known)
        busy = self._busy or self._is_queued(session_id)
        if busy and type(session_id) is str and type(log) is str:
            call = Call(session_id, drafts(events), log, expected, quiet=True, known=known)
            return self.queue.do(call) or []
        self._busy = True
        try:
            result = self._appender.append(session_id, events, log, expected, known)
            self._database.acknowledge()
            return result
        finally:
            self._busy = False

    @observed_each
    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        self._appends += len(calls)
        self._busy = True
        try:
            outcomes = self._appender.append_each(calls)
            self._database.acknowledge()
            return outcomes
        except StoreFailed as error:
            # What is written and not on the disk belongs to no caller.
            return [error] * len(calls)
        finally:
            self._busy = False

    def append_many(self, batches: Mapping[str, Sequence[NewEvent]]) -> dict[str, list[Event]]:
        self._appends += len(batches)
        stored = self._appender.append_many(batches)
        self._database.acknowledge()
        return stored

    def read(
        self, session_id: str, *, log: str = MAIN_LOG, **events: Unpack[Range]
    ) -> Iterator[Event]:
        found = self._log(session_id, log)
        if found is None:
            return iter(())

        def damage(seq: int, why: str) -> None:
            self._report(problem(session_id, log, seq, why))

        return read_log(self._database, found, session_id, damage, **events)

    def tail(self, session_id: str, n: int, *, log: str = MAIN_LOG) -> list[Event]:
        check_session_id(session_id)
        check_log(log)
        if 0 < n <= _AT_ONCE:
            with self._database.reading() as connection:
                events = last_events(connection, self.scope, session_id, log, n)
            if events is not None:
                return events
        return super().tail(session_id, n, log=log)

    def outline(
        self, session_id: str, *, kinds: Collection[str] = (), after: int = 0,
        until: int | None = None,
    ) -> list[Mark]:  # fmt: skip
        from .pages import UNREADABLE, marks_of

        found = self._log(session_id, MAIN_LOG)
        try:
            return marks_of(self._database, found, kinds, after, until) if found else []
        except UNREADABLE:
            return super().outline(session_id, kinds=kinds, after=after, until=until)

    def tally(self, session_id: str, *, after: int = 0, until: int | None = None) -> dict[str, int]:
        from .pages import UNREADABLE, tally_of

        found = self._log(session_id, MAIN_LOG)
        try:
            return tally_of(self._database, found, after, until) if found else {}
        except UNREADABLE:
            return super().tally(session_id, after=after, until=until)

    def _log(self, session_id: str, name: str) -> Log | None:
        check_session_id(session_id)
        check_log(name)
        with self._database.reading() as connection:
            return find_log(connection.execute, self.scope, session_id, name)[1]

    def _report(self, found: Problem) -> None:
        if self._on_damage is not None:
            self._on_damage(found)

    def find(self, session_id: str, id: str, *, log: str = MAIN_LOG) -> Event:
        found = self._log(session_id, log)
        event = None
        if found is not None and isinstance(id, str) and id.isprintable():
            with self._database.reading() as connection:
                event = event_by_id(connection.execute, found, id)
        if event is None:
            raise NotFound(f"no event `{id}` in session `{session_id}`")
        return event

    def checkpoint(self, id: str) -> Checkpoint:
        query = f"SELECT {COLUMNS} FROM events WHERE kind = 'checkpoint' AND id = ? ORDER BY key"
        rows: list[Any] = []
        if isinstance(id, str) and id.isprintable():
            with self._database.reading() as connection:
                rows = connection.execute(query, (id,)).fetchall()
        for row in rows:
            session_id = reader_of(self._database, self.scope, row[0])
            if session_id is not None and is_deleted(self, session_id, id):
                # Another session that shares the event may still have it.
                return super().checkpoint(id)
            if session_id is not None:
                with self._database.reading() as connection:
                    unsealed = unsealed_in(connection.execute, row[0] >> 32)
                return checkpoint_of(event_of(row, unsealed), session_id)
        raise NotFound(f"no checkpoint `{id}` in this store")

    def purge(self, session_id: str, seqs: Collection[int], *, log: str = MAIN_LOG) -> None:
        from .removal import purge

        check_session_id(session_id)
        check_log(log)
        purge(self._database, self.scope, session_id, seqs, log)

    def logs(self, session_id: str) -> list[str]:
        check_session_id(session_id)
        with self._database.reading() as connection:
            return log_names(connection.execute, self.scope, session_id)

    # --- the rest ------------------------------------------------------------------------

    def search(self, text: str, *, limit: int = 20) -> list[Hit]:
        from ..query import Query
        from .fulltext import catch_up, hits

        query = Query(text)
        if limit < 1:
            return []
        refresh(self._database, self.scope)
        try:
            if catch_up(self._database):
                return hits(self._database, self.scope, query, limit, self._report)
        except Damaged as error:
            # The index is damaged, which costs time and no event.
            self._report(Problem("", "", "index", str(error)))
        # A caller that cannot write must still be able to look: the slow way only reads.
        return super().search(text, limit=limit)

    def memory(self, cwd: str | os.PathLike[str]) -> Memory:
        from ..notes import DatabaseMemory

        return DatabaseMemory(self._database, self.scope, resolved(cwd))

    def verify(self) -> list[Problem]:
        from .verify import verify

        return verify(self._database, self.scope)

    def seal(self, *, dry_run: bool = False) -> int:
        from .verify import count_unsealed, seal

        return count_unsealed(self._database) if dry_run else seal(self._database)

    @contextmanager
    def lease(self, session_id: str, *, wait: float = 0) -> Iterator[Lease]:
        check_session_id(session_id)
        with self._database.reading() as connection:
            session, _ = find_log(connection.execute, self.scope, session_id, MAIN_LOG)
        path = self._lease_path(session)
        fs.refuse_links(path.parent)
        with fs.failing(f"make {path.parent}"):
            path.parent.mkdir(0o700, exist_ok=True)
        with file_lease(path, session_id, wait) as lease:
            yield lease

    def _lease_path(self, session: int) -> Path:
        return Path(f"{self._path}-leases", str(session))

    def flush(self) -> None:
        if self.relies_on is not None:
            self.relies_on()
        with fs.failing(f"flush the database {self._path}"):
            self._database.flush()

    def close(self) -> None:
        self._database.close()

    def _idle(self) -> None:
        """In the background, after a sync: checkpoint, and index while there are no appends."""
        from .fulltext import in_background

        busy, self._seen = self._appends != self._seen, self._appends
        in_background(self._database, self._unindexed, busy)
