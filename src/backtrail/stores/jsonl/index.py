"""The index of a JSONL store: its sessions' records, so that a list need not read every folder.

It is a cache, safe to delete, made by lists and never by an append. A row counts
only while `metadata.json` and `messages.jsonl` are the files that it was made of, untouched, and
if it was made a moment after they were: a clock has ticks, and a write within one shows nowhere.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import InvalidId
from ...events import MAX_SEQ, SessionInfo, check_session_id, is_ts
from ..disk.fs import open_file, read_file, write_all
from ..records import Wanted
from .layout import MAIN_FILE

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
    temporary = f"{os.path.dirname(path)}/.{NAME}.{os.getpid()}.{os.urandom(4).hex()}"
    content = msgspec.json.encode(_Content(_FORMAT, rows))
    fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    try:
        write_all(fd, content)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)


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
