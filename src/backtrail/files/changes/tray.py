"""A small file of records in front of a database: what is written there soon.

To commit a little, SQLite writes several pages to a file that grows. Here it is one record,
written into a file that keeps its length. Whoever begins a transaction on the database moves
the records there first, so the tray holds only what nobody has looked for in the database
since.

The file has a header and records one behind another:

    header   "BtrlTray", generation, checksum
    record   "BTRC", generation, length, checksum, body

A record counts if its generation is the header's and its checksum is right. To empty the
tray the header gets another generation, drawn by lot, and the head of the first record is
overwritten. If the header is damaged, the generation of the first record counts: to move
records a second time does no harm.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from ...errors import Closed
from ...stores.disk import forks
from ...stores.disk.checks import decoded
from ...stores.disk.fs import NO_ROOM, failed, sync_directory
from ...stores.disk.sync import SyncFile

_HEADER = struct.Struct("<8sQI")
_HEAD = struct.Struct("<4sQII")
_NAME, _RECORD = b"BtrlTray", b"BTRC"
_MARK = struct.Struct("<4sQ")
_REST = struct.Struct("<II")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class Tray(ABC):
    """The file, and what is in it as far as this process has looked.

    Who writes holds the lock of the database; who reads needs none. What a reader does not
    find here it finds in the database, if it looks there afterwards.

    The file has its full length from the start: to write into it is cheaper than to make it
    longer, and needs no room on the disk.
    """

    def __init__(self, database: Path, size: int, idle: Callable[[], None] | None = None) -> None:
        self._database = database
        self._path = database.with_name(f"{database.name}-tray")
        self._size = size
        self._idle = idle
        self._fd = -1
        self._refused = self._closed = False
        # There once the file can be written to.
        self.sync: SyncFile | None = None
        # The last whole header that was read, and the generation it tells.
        self._header = b"", 0
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        self._mutex = threading.Lock()
        self._forget(-1)

    def _forget(self, generation: int) -> None:
        self._emptied()
        self._end = _HEADER.size
        self._mark = _MARK.pack(_RECORD, max(generation, 0))
        # Last: who is interrupted before that forgets again.
        self._generation = generation

    # --- what the records are ------------------------------------------------------------

    @abstractmethod
    def _emptied(self) -> None:
        """Nothing is in it."""

    @abstractmethod
    def _take_in(self, body: bytes) -> None:
        """A record was found."""

    # --- reading -------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Another number each time that it was emptied, as this process has looked."""
        return self._generation

    def _look(self) -> None:
        """Take in what others wrote, or took out."""
        if self._fd < 0 and not self._open():
            return
        # The header comes last each time: what was read before it is of its generation.
        mark = self._read_at(self._end, _MARK.size)
        generation = self._read_header()
        if generation == self._generation and mark != self._mark:
            return
        while True:
            if generation != self._generation:
                self._forget(generation)
            data = self._read_at(self._end, self._size)
            generation = self._read_header()
            if generation == self._generation:
                break
        start = self._end
        for end, body in _records(data, generation):
            decoded(self._take_in, body, f"a record in {self._path}")
            self._end = start + end

    def _read_header(self) -> int:
        """The generation that counts."""
        data = self._read_at(0, _HEADER.size + _HEAD.size)
        header, known = self._header
        if data[: _HEADER.size] == header:
            return known
        if _is_header(data):
            generation = int(_HEADER.unpack_from(data)[1])
            self._header = data[: _HEADER.size], generation
            return generation
        if len(data) == _HEADER.size + _HEAD.size:
            mark, generation = _MARK.unpack_from(data, _HEADER.size)
            if mark == _RECORD:
                return int(generation)
        return 0

    def _read_at(self, at: int, count: int) -> bytes:
        try:
            return os.pread(self._fd, count, at)
        except OSError as error:
            raise failed(error, f"read {self._path}") from error

    def _open(self) -> bool:
        """Open the file, if it is there."""
        self._check_open()
        try:
            try:
                self._fd = os.open(self._path, os.O_RDWR | _FLAGS)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._fd = os.open(self._path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failed(error, f"open {self._path}") from error
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._database} is closed")

    # --- writing: for who holds the lock of the database ---------------------------------

    def is_ready(self) -> bool:
        """Whether it can be written to; the file is made if need be."""
        sync = self.sync
        if sync is None:
            with self._mutex:
                self._check_open()
                if self.sync is None and not self._refused:
                    self._refused = not self._make()
                sync = self.sync
        if sync is not None and sync.failure is not None:
            raise sync.failure
        return sync is not None

    def _make(self) -> bool:
        """Make the file, as long as it will ever be. False if there is no room for it."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            try:
                length = os.fstat(fd).st_size
                if length < self._size:
                    # What a crash left of it stays: it may hold records.
                    os.pwrite(fd, bytes(self._size - length), length)
                    if os.fstat(fd).st_size < self._size:
                        raise _full()
                    if os.geteuid() == 0:
                        # As SQLite does: who owns the database can use it after root came by.
                        owner = os.stat(self._database)
                        os.fchown(fd, owner.st_uid, owner.st_gid)
                    os.fsync(fd)
                    sync_directory(self._path.parent)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            if error.errno in NO_ROOM:
                return False
            raise failed(error, f"make {self._path}") from error
        old, self._fd = self._fd, fd
        if old >= 0:
            _close(old, self._path)
        if not self._read_header():
            self._begin()
        self.sync = SyncFile(str(self._path), fd, self._idle)
        return True

    def _write(self, body: bytes) -> int:
        """Write a record behind what was found, and say where it ends; 0 if there is no room.

        `_wrote` follows. Who is interrupted before that finds it at the next look.
        """
        if self._closed:
            self._check_open()
        mark = self._mark
        record = mark + _REST.pack(len(body), crc32(body, crc32(mark))) + body
        end = self._end + len(record)
        if end > self._size:
            return 0
        self._write_at(self._end, record)
        return end

    def _wrote(self, end: int) -> None:
        """A record that ends there is known here, and to be synced."""
        self._end = end
        assert self.sync is not None
        self.sync.note()

    def clear(self) -> None:
        """Empty it: all that is in it lies in the database."""
        with self._mutex:
            self._check_open()
            self._begin()
            if self.sync is not None:
                self.sync.note()

    def wipe(self) -> None:
        """Leave no trace of what was in it."""
        with self._mutex:
            if self._fd < 0 and not self._open():
                return
            try:
                os.pwrite(self._fd, bytes(self._size), 0)
                self._begin()
                os.fsync(self._fd)
            except OSError as error:
                raise failed(error, f"wipe {self._path}") from error

    def _begin(self) -> None:
        generation = int.from_bytes(os.urandom(8)) | 1
        header = _HEADER.pack(_NAME, generation, 0)[:-4]
        self._write_at(0, header + struct.pack("<I", crc32(header)))
        with suppress(OSError):
            # Only for a header that is damaged later.
            os.pwrite(self._fd, bytes(_HEAD.size), _HEADER.size)
        self._forget(generation)

    def _write_at(self, at: int, data: bytes) -> None:
        try:
            if os.pwrite(self._fd, data, at) < len(data):
                raise _full()
        except OSError as error:
            raise failed(error, f"write {self._path}") from error

    # --- the end -------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when every record of this process is on the disk."""
        if self.sync is not None:
            self.sync.flush()

    @property
    def dirty(self) -> bool:
        """Whether a record may not be on the disk."""
        return self.sync is not None and self.sync.dirty

    def close(self) -> None:
        """Sync what is left, and let go of the file; who comes later gets `Closed`."""
        with self._mutex:
            sync, self.sync = self.sync, None
            self._closed = True
        try:
            if sync is not None:
                sync.retire()
        finally:
            with self._mutex:
                fd, self._fd = self._fd, -1
                if fd >= 0:
                    _close(fd, self._path)


def _close(fd: int, path: Path) -> None:
    try:
        os.close(fd)
    except OSError as error:
        raise failed(error, f"close {path}") from error


def _full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_header(data: bytes) -> bool:
    if len(data) < _HEADER.size:
        return False
    name, _, check = _HEADER.unpack_from(data)
    return bool(name == _NAME and check == crc32(data[: _HEADER.size - 4]))


def _records(data: bytes, generation: int) -> Iterator[tuple[int, bytes]]:
    """The whole records, and where each ends; what is damaged between them is passed over."""
    mark = _MARK.pack(_RECORD, generation)
    at = 0
    while (at := data.find(mark, at)) >= 0 and at + _HEAD.size <= len(data):
        _, _, length, check = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(body) == length and crc32(body, crc32(mark)) == check:
            at += _HEAD.size + length
            yield at, body
        else:
            at += 1
