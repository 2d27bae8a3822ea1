"""What a JSONL store knows of its sessions: their records, counts, and lists of them.

The index has their records, so that a list need not read every folder. It is a cache, safe to
delete, made by lists and never by an append. A row counts only while `metadata.json` and
`messages.jsonl` are the files that it was made of, untouched, and if it was made a moment after
they were: a clock has ticks, and a write within one shows nowhere.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Unpack

import msgspec

from ...errors import AlreadyExists, InvalidId, NotFound, Unsupported
from ...events import MAX_SEQ, SessionInfo, check_session_id, is_ts
from ...events.history import Fold, fold
from ..base import Store
from ..disk.fs import read_file, replace_file
from ..records import Filters, Wanted, folded
from .layout import MAIN_FILE, is_session
from .lines import Damage
from .metadata import FoldCache, ancestors_of, read_record

NAME = "index.json"
_FORMAT = 1
_MOST = 256 << 20
_WORTH = 16
"""So many sessions that had to be read make it worth writing the index anew."""

_TICK = 20_000_000
"""Nanoseconds; no clock of a file system ticks slower."""

Stamp = tuple[int, int, int, int]
"""Which file it is, how large, when it was written to and when it was touched."""

_NONE: Stamp = (0, 0, 0, 0)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Infos:
    """The records of the sessions in a store's folder; `report` gets damaged ones."""

    def __init__(
        self, store: Store, sessions: Path, report: Callable[[str, str, Damage], None]
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._report = report
        self._folds: dict[str, FoldCache] = {}

    def after_fork(self) -> None:
        """Forget what the parent counted."""
        self._folds = {}

    def record(self, session_id: str) -> SessionInfo:
        """What is stored of a session; from the log where `metadata.json` is damaged."""
        return self._read(session_id)[0]

    def _read(self, session_id: str) -> tuple[SessionInfo, bool]:
        """The same, and whether it could be read from there."""
        record, problem = read_record(self._sessions / session_id, self._store.scope)
        if problem:
            self._report(session_id, "metadata.json", Damage(0, 0, problem))
        return record, not problem

    def counted(self, session_id: str, record: SessionInfo | None = None) -> SessionInfo:
        """A session's record with what its log says."""
        record = record or self.record(session_id)
        return folded(record, self._fold(self._sessions / session_id, record))

    def _fold(self, path: Path, record: SessionInfo) -> Fold:
        """The log's fold, advanced from where this process or another left it."""
        id, store = record.id, self._store
        status = os.stat(path / MAIN_FILE)
        cache = self._folds.get(id) or FoldCache.load(path)
        if cache is None or not cache.fits(status):
            cache = FoldCache(status.st_ino, 0, Fold())
        if cache.size < status.st_size:
            state = fold(
                cache.fold,
                store.read(id, after=cache.fold.head),
                lambda seq: store.walk(id, until=seq),
                own_after=record.fork_seq or 0,
            )
            advanced = FoldCache(status.st_ino, status.st_size, state)
            advanced.save(path, cache)
            cache = advanced
        self._folds[id] = cache
        return cache.fold

    def recount(self, session_id: str) -> None:
        """Forget a session's counts: its log is not what it was."""
        self._folds.pop(session_id, None)

    # --- all of them ---------------------------------------------------------------------

    def _ids(self) -> list[str]:
        """The folders that may be sessions."""
        found: list[str] = []
        with os.scandir(self._sessions) as entries:
            for entry in entries:
                with suppress(InvalidId):
                    check_session_id(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        found.append(entry.name)
        return found

    def _index(self) -> Index:
        return Index(self._sessions.parent, str(self._sessions), self._store.scope)

    def listed(self, **filters: Unpack[Filters]) -> tuple[list[SessionInfo], Index]:
        """The sessions that are about what is asked for, oldest first by creation."""
        wanted, index = Wanted(**filters), self._index()
        found: list[tuple[str, int, SessionInfo]] = []
        for id in self._ids():
            with suppress(NotFound, OSError, Unsupported):
                one = index.find(id, wanted, self._read, self.counted)
                if one is not None:
                    found.append((one[1].created_at, *one))
        found.sort(key=itemgetter(0, 1))
        return [info for _, _, info in found], index

    def check_key(self, record: SessionInfo) -> None:
        """Raise if another session has this key. The caller holds the store's lock."""
        if record.key is None:
            return
        infos, index = self.listed(key=record.key)
        if index.is_worth_it:
            index.save()
        for info in infos:
            if info.id != record.id:
                raise AlreadyExists(f"key `{record.key}` belongs to session `{info.id}`")

    def forget(self, session_id: str) -> None:
        """Take a session out of the index, because its record is changed or erased."""
        self._index().forget(session_id)

    def family(self, session_id: str) -> set[str]:
        """The sessions that may hold copies of one's events: what forks connect."""
        ids = [id for id in self._ids() if is_session(self._sessions / id)]
        lines = {id: {id, *ancestors_of(self._sessions / id)} for id in ids}
        own = lines.get(session_id, {session_id})
        return {id for id, line in lines.items() if id != session_id and line & own}


class _Row(msgspec.Struct, array_like=True, gc=False):
    about: Stamp
    log: Stamp
    cwd: str | None
    root: str | None
    info: msgspec.Raw
    """All of the record: most lists are about one folder, and need no other's."""


class _Content(msgspec.Struct):
    format: int
    rows: dict[str, _Row]


_decode = msgspec.json.Decoder(SessionInfo).decode


class Index:
    """The rows that were there, and those that a list makes."""

    def __init__(self, top: Path, place: str, scope: str) -> None:
        self._path = f"{top}/{NAME}"
        self._place = place
        self._scope = scope
        self._made = _stamp(self._path)
        self._rows = _load(self._path)
        self._new: dict[str, _Row] = {}
        self._read = 0

    def find(
        self,
        id: str,
        wanted: Wanted,
        read: Callable[[str], tuple[SessionInfo, bool]],
        count: Callable[[str, SessionInfo], SessionInfo],
    ) -> tuple[int, SessionInfo] | None:
        """A session's record, if it is wanted, and when its log was touched.

        `read` gives the record, and says whether it is sound; `count` adds what the log says.
        """
        row, info = self._rows.get(id), None
        about = _stamp(f"{self._place}/{id}/metadata.json")
        if row is not None and about == row.about:
            self._new[id] = row
            if wanted.place is not None and wanted.place not in (row.cwd, row.root):
                return None
            info = self._possible(id, row)
        known = _NONE if row is None or info is None else row.log
        stale = info is None
        if info is None:
            info, sound = read(id)
            self._keep(id, _settled(about) if sound else _NONE, _NONE, info)
        if not wanted(info):
            self._read += stale
            return None
        log = _stamp(f"{self._place}/{id}/{MAIN_FILE}")
        if log is None:
            raise FileNotFoundError(f"session `{id}` has no main log")
        if log != known:
            settled = _settled(log)
            info, stale = count(id, info), True
            self._keep(id, self._new[id].about, settled, info)
        self._read += stale
        return log[3], info

    def _keep(self, id: str, about: Stamp, log: Stamp, info: SessionInfo) -> None:
        raw = msgspec.Raw(msgspec.json.encode(info))
        self._new[id] = _Row(about, log, info.cwd, info.root, raw)

    @property
    def is_worth_it(self) -> bool:
        """Whether so much is new that the index should be saved."""
        return self._read >= _WORTH

    def save(self) -> None:
        """Keep the rows; failing to is no loss. The caller holds the store's lock.

        An index that others replaced meanwhile stays: what is here may be erased there.
        """
        if _stamp(self._path) == self._made:
            with suppress(OSError):
                _write(self._path, self._new)

    def forget(self, id: str) -> None:
        """Take a session out, because its record is changed or erased. Under the lock."""
        if self._rows.pop(id, None) is not None:
            try:
                _write(self._path, self._rows)
            except OSError:
                os.unlink(self._path)

    def _possible(self, id: str, row: _Row) -> SessionInfo | None:
        """A row's record, if it may be that of the session: nothing in a file is trusted."""
        try:
            info = _decode(row.info)
            if info.parent_id is not None:
                check_session_id(info.parent_id)
        except (*_UNREADABLE, InvalidId):
            return None
        counts = (info.head, info.message_count, info.turn_count, info.fork_seq or 0)
        right = (info.id, info.scope) == (id, self._scope) and info.key != ""
        times = is_ts(info.created_at) and (not info.updated_at or is_ts(info.updated_at))
        return info if right and times and min(counts) >= 0 and max(counts) <= MAX_SEQ else None


def _write(path: str, rows: dict[str, _Row]) -> None:
    content = msgspec.json.encode(_Content(_FORMAT, rows))
    replace_file(Path(path), content, synced=False)


def _load(path: str) -> dict[str, _Row]:
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST:
            return {}
        content = msgspec.json.decode(read_file(Path(path)), type=_Content)
    except (OSError, *_UNREADABLE):
        return {}
    return content.rows if content.format == _FORMAT else {}


def _stamp(path: str) -> Stamp | None:
    """A regular file's stamp; None if it is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _settled(stamp: Stamp | None) -> Stamp:
    """The stamp, if a write from now on must change it."""
    if stamp is None or max(stamp[2:]) + _TICK > time.time_ns():
        return _NONE
    return stamp
