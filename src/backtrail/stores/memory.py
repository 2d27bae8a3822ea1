"""The plain store: everything in this process, gone with it. The other stores are compared
with it.

Bodies are kept encoded, so that a caller that changes a dictionary afterwards changes
nothing here, and values come back as they would from a disk.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Unpack

import msgspec

from ..errors import AlreadyExists, Closed, InvalidId, NotFound, Owner
from ..events import (
    MAIN_LOG,
    Event,
    Json,
    NewEvent,
    SessionInfo,
    check_log,
    check_session_id,
    decode_data,
    encode_data,
)
from ..events.history import Fold, fold
from .base import Durability, KnownIds, Lease, Store
from .batches import PURGED, Prepared, check_head, drafts, observed, settle
from .disk import forks
from .disk.locks import busy, me
from .notes import Memory, check_note
from .opening import Options
from .records import (
    Filters,
    Range,
    changed_record,
    check_record,
    folded,
    new_record,
    resolved,
    select,
)

_PAGE = 256
_TOMBSTONE = encode_data(PURGED)


class _Row(msgspec.Struct, eq=False):
    """One event; forks share the object, so that a purge reaches them all."""

    seq: int
    id: str
    ts: str
    kind: str
    follows: int | None
    body: bytes

    def event(self) -> Event:
        data = decode_data(self.body)
        return Event(self.seq, self.id, self.ts, self.kind, data, self.follows)


class _Log(msgspec.Struct, eq=False):
    rows: list[_Row] = []
    ids: dict[str, _Row] = {}

    @property
    def head(self) -> int:
        return self.rows[-1].seq if self.rows else 0

    def add(self, rows: list[_Row]) -> None:
        self.rows.extend(rows)
        self.ids.update((row.id, row) for row in rows)

    def cut(self, count: int) -> None:
        for row in self.rows[count:]:
            del self.ids[row.id]
        del self.rows[count:]


class _Session(msgspec.Struct, eq=False):
    record: SessionInfo
    logs: dict[str, _Log]
    fold: Fold = Fold()


class _State:
    """The sessions of all scopes, shared by the stores that were opened with one name."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sessions: dict[tuple[str, str], _Session] = {}
        self.leases: dict[tuple[str, str], Owner] = {}
        self.notes: dict[tuple[str, str], str] = {}
        self.id = os.urandom(16).hex()
        forks.register(self)

    def after_fork(self) -> None:
        self.lock = threading.RLock()
        self.leases.clear()


_shared: dict[str, _State] = {}


def open_memory(address: str, options: Options) -> MemoryStore:
    """`memory:` is private, `memory:NAME` shared in this process."""
    state = _shared.setdefault(address, _State()) if address else None
    store = MemoryStore(scope=options.scope, _state=state)
    store.url = f"memory:{address}"
    return store


class MemoryStore(Store):
    """Sessions in the memory of this process."""

    durability: Durability = "written"
    groups = True

    def __init__(self, *, scope: str = "", _state: _State | None = None) -> None:
        self.scope = scope
        self.url = "memory:"
        self._state = _state or _State()
        self._closed = False

    @property
    def id(self) -> str:
        return self._state.id

    def _session(self, session_id: str) -> _Session:
        if self._closed:
            raise Closed("this memory store is closed")
        check_session_id(session_id)
        try:
            return self._state.sessions[self.scope, session_id]
        except KeyError:
            raise NotFound(f"no session `{session_id}`") from None

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        record = new_record(info, self.scope, base)
        with self._state.lock:
            rows = [] if base is None else self._shared_rows(*base)
            if self._closed:
                raise Closed("this memory store is closed")
            self._check_free(record)
            log = _Log()
            log.add(rows)
            self._state.sessions[self.scope, record.id] = _Session(record, {MAIN_LOG: log})

    def _shared_rows(self, parent: str, seq: int) -> list[_Row]:
        rows = self._session(parent).logs[MAIN_LOG].rows
        if not 0 <= seq <= (rows[-1].seq if rows else 0):
            raise NotFound(f"no event {seq} in session `{parent}`")
        return rows[:seq]

    def _check_free(self, record: SessionInfo) -> None:
        for (scope, id), other in self._state.sessions.items():
            if scope != self.scope:
                continue
            if id == record.id and other.record is not record:
                raise AlreadyExists(f"session `{id}` exists: `Session.open` resumes it")
            if id != record.id and record.key is not None and other.record.key == record.key:
                raise AlreadyExists(f"key `{record.key}` belongs to session `{id}`")

    def info(self, session_id: str) -> SessionInfo:
        with self._state.lock:
            return self._folded(self._session(session_id))

    def _folded(self, session: _Session) -> SessionInfo:
        id, state = session.record.id, session.fold
        session.fold = fold(
            state,
            self.read(id, after=state.head),
            lambda seq: self.walk(id, until=seq),
            own_after=session.record.fork_seq or 0,
        )
        return folded(check_record(session.record), session.fold)

    def update(
        self, session_id: str, *, expected: int | None = None, **changes: Json
    ) -> SessionInfo:
        with self._state.lock:
            session = self._session(session_id)
            check_head(expected, session.logs[MAIN_LOG].head)
            record = changed_record(session.record, changes)
            if record.key != session.record.key:
                before, session.record = session.record, record
                try:
                    self._check_free(record)
                except AlreadyExists:
                    session.record = before
                    raise
            session.record = record
            return self._folded(session)

    def sessions(self, **filters: Unpack[Filters]) -> list[SessionInfo]:
        if self._closed:
            raise Closed("this memory store is closed")
        with self._state.lock:
            mine = [s for (scope, _), s in self._state.sessions.items() if scope == self.scope]
            return select([self._folded(session) for session in mine], **filters)

    def delete(
        self, session_id: str, *, log: str | None = None, expected: int | None = None
    ) -> None:
        with self._state.lock:
            session = self._session(session_id)
            kept = session.logs.get(MAIN_LOG if log is None else check_log(log))
            if kept is not None:
                check_head(expected, kept.head)
            if log is None:
                del self._state.sessions[self.scope, session_id]
            elif log == MAIN_LOG:
                raise InvalidId("the main log goes only with its session")
            elif session.logs.pop(log, None) is None:
                raise NotFound(f"no log `{log}` in session `{session_id}`")

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
        batch = drafts(events)
        check_log(log)
        with self._state.lock:
            session = self._session(session_id)
            kept = session.logs.get(log) or _Log()
            head = kept.head

            def find(id: str) -> Event | None:
                row = kept.ids.get(id)
                return row.event() if row else None

            result, fresh = settle(batch, head, find, expected, known=known)
            kept.add([_Row(e.seq, e.id, e.ts, e.kind, e.follows, body) for e, body in fresh])
            if fresh:
                session.logs[log] = kept
            return result

    def append_many(self, batches: Mapping[str, Sequence[NewEvent]]) -> dict[str, list[Event]]:
        ready = {id: [Prepared(draft) for draft in drafts(new)] for id, new in batches.items()}
        with self._state.lock:
            for id in ready:
                self._session(id)
            before = {id: len(self._session(id).logs[MAIN_LOG].rows) for id in ready}
            try:
                return {id: self.append(id, new) for id, new in ready.items()}
            except BaseException:
                for id, count in before.items():
                    self._session(id).logs[MAIN_LOG].cut(count)
                raise

    def read(
        self, session_id: str, *, log: str = MAIN_LOG, **events: Unpack[Range]
    ) -> Iterator[Event]:
        session = self._session(session_id)
        kept = session.logs.get(check_log(log))
        return iter(()) if kept is None else self._pages(session, log, kept, events)

    def _pages(self, session: _Session, log: str, kept: _Log, wanted: Range) -> Iterator[Event]:
        after, until = wanted.get("after", 0), wanted.get("until")
        left, kinds = wanted.get("limit"), wanted.get("kinds")
        id, rows = session.record.id, kept.rows
        while left is None or left > 0:
            with self._state.lock:
                here = self._state.sessions.get((self.scope, id)) is session
                if not here or session.logs.get(log) is not kept:
                    raise NotFound(f"session `{id}`, or its log, was deleted during the read")
                first = bisect_right(rows, after, key=lambda row: row.seq)
                last = len(rows)
                if until is not None:
                    last = bisect_right(rows, until, key=lambda row: row.seq)
                if first >= last:
                    return
                if wanted.get("reverse"):
                    page = rows[max(first, last - _PAGE) : last][::-1]
                    until = page[-1].seq - 1
                else:
                    page = rows[first : min(last, first + _PAGE)]
                    after = page[-1].seq
                events = [row.event() for row in page if kinds is None or row.kind in kinds]
            events = events if left is None else events[:left]
            left = None if left is None else left - len(events)
            yield from events

    def purge(self, session_id: str, seqs: Collection[int], *, log: str = MAIN_LOG) -> None:
        wanted = set(seqs)
        with self._state.lock:
            kept = self._session(session_id).logs.get(check_log(log))
            for row in kept.rows if kept else ():
                if row.seq in wanted:
                    row.body = _TOMBSTONE
            for session in self._state.sessions.values():
                session.fold = Fold()

    def logs(self, session_id: str) -> list[str]:
        with self._state.lock:
            return sorted(self._session(session_id).logs)

    @contextmanager
    def lease(self, session_id: str, *, wait: float = 0) -> Iterator[Lease]:
        self._session(session_id)
        name = (self.scope, session_id)
        leases = self._state.leases
        deadline = time.monotonic() + wait
        owner = me()
        while leases.setdefault(name, owner) is not owner:
            if time.monotonic() >= deadline:
                raise busy(session_id, leases.get(name) or owner)
            time.sleep(0.005)
        try:
            yield Lease(session_id, owner)
        finally:
            if leases.get(name) is owner:
                del leases[name]

    def memory(self, cwd: str | os.PathLike[str]) -> Memory:
        self.flush()
        return _Note(self, self._state.notes, (self.scope, resolved(cwd)))

    def flush(self) -> None:
        if self._closed:
            raise Closed("this memory store is closed")

    def close(self) -> None:
        self._closed = True


class _Note(Memory):
    """A project's note in memory."""

    def __init__(
        self, store: MemoryStore, notes: dict[tuple[str, str], str], name: tuple[str, str]
    ) -> None:
        self._store = store
        self._notes = notes
        self._name = name

    def read(self) -> str:
        self._store.flush()
        return self._notes.get(self._name, "")

    def write(self, text: str) -> None:
        self._store.flush()
        check_note(text)
        self._notes[self._name] = text


# --- a store that leaves nothing ---------------------------------------------------------


def open_null(address: str, options: Options) -> NullStore:
    """`null:` takes no address."""
    return NullStore(scope=options.scope)


class NullStore(MemoryStore):
    """A memory store that forgets everything at `close` and never touches the disk.

    A session on it keeps its history while it lives, so a model is sent the same as on
    any other store.
    """

    def __init__(self, *, scope: str = "") -> None:
        super().__init__(scope=scope)
        self.url = "null:"

    def close(self) -> None:
        super().close()
        self._state.sessions.clear()
