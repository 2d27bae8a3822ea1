"""The SQLite store: one database for all sessions, safe for many threads and processes.

Behind it stand `sqlite_schema` (tables, opening, errors), `sqlite_connections` (readers,
the writer, syncing, process forks), `sqlite_logs` (events), `sqlite_records` (sessions and
what is folded from their logs) and `sqlite_search` (the full-text index).

An append writes one row and its index entry. Counts and search words follow later.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Unpack

import apsw
import msgspec

from ..errors import BacktrailError, Damaged, InvalidData, InvalidId, NotFound, StoreFailed
from ..events import (
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
    encode_data,
    now,
    text_of,
    timestamp,
)
from . import files
from .base import Lease, Memory, OnDamage, Store, checkpoint_of, resolved
from .batches import PURGED, drafts, settle
from .locks import file_lease
from .observing import observed
from .options import Options
from .records import Filters, changed_record, new_record, select
from .searching import Query
from .sqlite_connections import Database, Execute
from .sqlite_deleting import detach, sweep
from .sqlite_logs import (
    COLUMNS,
    MAX_SEQ,
    Log,
    event_by_id,
    event_of,
    find_log,
    head_of,
    problem,
    read_log,
)
from .sqlite_records import COLUMNS as RECORD
from .sqlite_records import (
    add_log,
    current_info,
    info_of,
    insert_record,
    refresh,
    shared_spans,
    update_record,
)
from .sqlite_schema import located
from .sqlite_search import behind, candidates, catch_up, erase, forget, index_slice
from .sqlite_verify import verify

logger = logging.getLogger("backtrail")

_INSERT = "INSERT INTO events VALUES(?, ?, ?, ?, ?, CAST(? AS TEXT))"
_DIRTY = "INSERT OR IGNORE INTO dirty VALUES(?)"
_TOMBSTONE = encode_data(PURGED).decode()
_REMEMBERED = 4096


def open_sqlite(address: str, options: Options) -> SQLiteStore:
    """`sqlite:///PATH`, as SQLAlchemy has it: a fourth slash makes the path absolute."""
    return SQLiteStore(
        located(address),
        scope=options.scope,
        durability=options.durability,
        on_damage=options.on_damage,
    )


class SQLiteStore(Store):
    """Sessions in a SQLite database."""

    def __init__(
        self,
        path: Path,
        *,
        scope: str = "",
        durability: str = "written",
        on_damage: OnDamage | None = None,
    ) -> None:
        self.scope = scope
        self.url = f"sqlite:///{path}"
        self._path = path
        self._on_damage = on_damage
        self._appends = self._seen = 0
        self._resting = threading.Lock()
        # Where a session's log is; every use checks that it still exists.
        self._places: dict[tuple[str, str], Log] = {}
        self._database = Database(path, synced=durability == "synced", idle=self._idle)

    # --- sessions ------------------------------------------------------------------------

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        record = new_record(info, self.scope)
        if base is not None:
            check_session_id(base[0])
        with self._database.writing as execute:
            spans = [] if base is None else shared_spans(execute, self.scope, *base)
            session = insert_record(execute, record)
            log = add_log(execute, session, MAIN_LOG, tuple(spans))
            if log.base:
                execute(_DIRTY, (log.n,))
        self._database.acknowledge()

    def info(self, session_id: str) -> SessionInfo:
        check_session_id(session_id)
        return current_info(self._database, self.scope, session_id)

    def update(self, session_id: str, **changes: Json) -> SessionInfo:
        check_session_id(session_id)
        query = f"SELECT {RECORD}, s.n FROM sessions s WHERE s.scope = ? AND s.id = ?"
        with self._database.writing as execute:
            row = execute(query, (self.scope, session_id)).get
            if row is None:
                raise NotFound(f"no session `{session_id}`")
            update_record(execute, row[20], changed_record(info_of(row[:20]), changes))
        self._database.acknowledge()
        return self.info(session_id)
