"""What was stored last, in a small file in front of the database of blobs.

To commit one small content SQLite writes eight pages to a file that grows. Here it is one
record, written into a file that keeps its length, and a sync of that is all the caller
waits for. Whoever begins a transaction on the database moves the records there first, so
the tray holds only what nobody has looked for in the database since.

The file has a header and records one behind another:

    header   "BtrlTray", generation, checksum
    record   "BTRC", generation, length, checksum, body

A record counts if its generation is the header's and its checksum is right. To empty the
tray the header gets another generation, drawn by lot; what is left of the last one is
overwritten. If the header is damaged, that of the first record counts: to move records a
second time does no harm.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from ..stores import forking
from ..stores.files import NO_ROOM, failed, sync_directory
from ..stores.syncing import SyncFile, begin_writing
from .blobs import Reference

SIZE = 512 << 10
"""The length of the file, made at once: to write into it is cheaper than to make it longer."""

_HEADER = struct.Struct("<8sQI")
_HEAD = struct.Struct("<4sQII")
_NAME, _RECORD = b"BtrlTray", b"BTRC"
_MARK = struct.Struct("<4sQ")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class Laid(NamedTuple):
    """The body of a record: contents with their digests, references to them, and when that was."""

    contents: list[tuple[bytes, bytes]]
    references: list[Reference]
    stamp: float


_decode = msgspec.msgpack.Decoder(Laid).decode
_encode = msgspec.msgpack.Encoder().encode


class Tray:
    """The file, and what is in it as far as this process has looked.

    Who writes holds the lock of the database; who reads needs none. What a reader does not
    find here it finds in the database, if it looks there afterwards.
    """

    def __init__(self, path: Path, idle: Callable[[], None]) -> None:
        self._path = path
        self._idle = idle
        self._fd = -1
        self._refused = self._closed = False
        self.sync: SyncFile | None = None
        # The last whole header that was read, and the generation it tells.
        self._header = b"", 0
        self.after_fork()
        forking.register(self)

    def after_fork(self) -> None:
        self._mutex = threading.Lock()
        self._forget(-1)

    def _forget(self, generation: int) -> None:
        self._generation = generation
        self._end = _HEADER.size
        self._contents: dict[bytes, bytes] = {}
        self._references: dict[Reference, None] = {}
        self._stamp = 0.0

    # --- reading -------------------------------------------------------------------------

    def contents(self) -> dict[bytes, bytes]:
        """What is in it now; not to be changed."""
        with self._mutex:
            self._look()
            return self._contents

    def laid(self) -> Laid:
        """All that is in it now."""
        with self._mutex:
            self._look()
            return Laid(list(self._contents.items()), list(self._references), self._stamp)

    @property
    def generation(self) -> int:
        """Another number each time that it was emptied, as this process has looked."""
        return self._generation

    @property
    def holds(self) -> bool:
        """Whether anything was in it when this process looked last."""
        return bool(self._contents or self._references)

    def _look(self) -> None:
        """Take in what others wrote, or took out."""
        if self._fd < 0 and not self._open():
            return
        try:
            generation = self._read_header()
            if generation != self._generation:
                self._forget(generation)
            elif os.pread(self._fd, _MARK.size, self._end) != _MARK.pack(_RECORD, generation):
                return
            data = os.pread(self._fd, SIZE, self._end)
        except OSError as error:
            raise failed(error, f"read {self._path}") from error
        start = self._end
        for end, laid in _records(data, generation):
            self._take_in(laid)
            self._end = start + end

    def _take_in(self, laid: Laid) -> None:
        self._contents.update(laid.contents)
        self._references.update(dict.fromkeys(laid.references))
        self._stamp = max(self._stamp, laid.stamp)

    def _read_header(self) -> int:
        """The generation that counts."""
        data = os.pread(self._fd, _HEADER.size + _HEAD.size, 0)
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

    def _open(self) -> bool:
        """Open the file, if it is there."""
        if self._closed:
            return False
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

    # --- writing: for who holds the lock of the database ---------------------------------

    def is_ready(self) -> bool:
        """Whether it can be written to; the file is made if need be."""
        with self._mutex:
            if self.sync is None and not self._refused:
                self._refused = not self._make()
            if self.sync is None:
                return False
            self.sync.check()
            self._look()
            return True

    def _make(self) -> bool:
        """Make the file, as long as it will ever be. False if there is no room for it."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            try:
                length = os.fstat(fd).st_size
                if length < SIZE:
                    # What a crash left of it stays: it may hold records.
                    os.pwrite(fd, bytes(SIZE - length), length)
                    if os.fstat(fd).st_size < SIZE:
                        raise _full()
                    os.fsync(fd)
                    sync_directory(self._path.parent)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            if error.errno in NO_ROOM:
                return False
            raise failed(error, f"make {self._path}") from error
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        if not self._read_header():
            self._begin()
        self.sync = SyncFile(str(self._path), fd, self._idle)
        return True

    def lay(self, laid: Laid) -> bool:
        """Append a record, to be synced; False if the tray has to be emptied first."""
        with self._mutex:
            assert self.sync is not None
            body = _encode(laid)
            check = crc32(body, crc32(_MARK.pack(_RECORD, self._generation)))
            record = _HEAD.pack(_RECORD, self._generation, len(body), check) + body
            if self._end + len(record) > SIZE:
                return False
            try:
                written = os.pwrite(self._fd, record, self._end)
            except OSError as error:
                raise failed(error, f"write {self._path}") from error
            if written < len(record):
                raise failed(_full(), f"write {self._path}")
            self._take_in(laid)
            self._end += len(record)
            self.sync.note()
            return True

    def clear(self) -> None:
        """Empty it: all that is in it lies in the database, on the disk."""
        with self._mutex:
            self._begin()

    def wipe(self) -> None:
        """Leave no trace of what was in it."""
        with self._mutex:
            if self._fd < 0 and not self._open():
                return
            try:
                os.pwrite(self._fd, bytes(SIZE), 0)
                self._begin()
                os.fsync(self._fd)
            except OSError as error:
                raise failed(error, f"wipe {self._path}") from error

    def _begin(self) -> None:
        generation = int.from_bytes(os.urandom(8)) | 1
        header = _HEADER.pack(_NAME, generation, 0)[:-4]
        try:
            os.pwrite(self._fd, header + struct.pack("<I", crc32(header)), 0)
        except OSError as error:
            raise failed(error, f"write {self._path}") from error
        self._forget(generation)

    # --- the end -------------------------------------------------------------------------

    def hasten(self) -> None:
        """Let the disk begin: somebody is about to wait for it, and has other things to do."""
        if self.dirty:
            begin_writing(self._fd, 0, self._end)

    def flush(self) -> None:
        """Return when every record of this process is on the disk."""
        if self.sync is not None:
            self.sync.flush()

    @property
    def dirty(self) -> bool:
        """Whether a record may not be on the disk."""
        return self.sync is not None and self.sync.dirty

    def close(self) -> None:
        """Sync what is left, and let go of the file."""
        sync, self.sync = self.sync, None
        try:
            if sync is not None:
                sync.retire()
        finally:
            with self._mutex:
                fd, self._fd = self._fd, -1
                self._refused = self._closed = True
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


def _records(data: bytes, generation: int) -> Iterator[tuple[int, Laid]]:
    """The whole records, and where each ends; what is damaged between them is passed over."""
    mark = _MARK.pack(_RECORD, generation)
    at = 0
    while (at := data.find(mark, at)) >= 0 and at + _HEAD.size <= len(data):
        _, _, length, check = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(body) == length and crc32(body, crc32(mark)) == check:
            at += _HEAD.size + length
            yield at, _decode(body)
        else:
            at += 1
