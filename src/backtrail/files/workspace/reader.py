"""From files to blobs: read, hash, and hand over what the store does not have.

The scan reads and hashes; where there is much, as in a first import, a few threads
compress and store meanwhile. How much is on its way to them is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ..._startup.hashing import sha256
from ...errors import Conflict, StoreFailed
from ..contents.blobs import Blobs, Reference
from ..trees import NOTHING, UNREADABLE, Kind, digest_of, is_link_text, remember
from .ignore import FILE_LIMIT
from .index import Index
from .known import KnownDirectory, KnownFile

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_THREADS = 2
_SLICE = 8 * 1024 * 1024
_FEW = 100
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

SECOND = 1_000_000_000
DAY = 86_400 * SECOND

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
_REPLACED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_SPECIAL = (
    (stat.S_ISFIFO, b"a pipe"),
    (stat.S_ISSOCK, b"a socket"),
    (stat.S_ISBLK, b"a device"),
    (stat.S_ISCHR, b"a device"),
)


class Reading(NamedTuple):
    """A name to be looked at closely: its numbers now, and what was known about it."""

    name: bytes
    status: os.stat_result
    old: KnownFile | None


class _Threads(NamedTuple):
    """Those that store contents, and how much more may be on its way to them."""

    pool: ThreadPoolExecutor
    room: threading.Semaphore


class _Replaced(Exception):
    """What is at a name is not what it was a moment ago."""


def unreadable(error: OSError) -> bytes:
    """The reason a tree gives for what cannot be read.

    That this process has no descriptor or memory left says nothing about the file, and is
    no reason but a failure.
    """
    if error.errno in _EXHAUSTED:
        raise StoreFailed(f"cannot scan: {error.strerror}", errno=error.errno) from error
    return UNREADABLE + (error.strerror or str(error)).encode()


def is_gone(error: OSError) -> bool:
    """Whether an error says that nothing is there."""
    return error.errno in _GONE


class Capture:
    """Takes contents during one scan, and stores them. `finish` makes them durable.

    `check_room` raises if no more may be stored; it is asked before much is handed over.
    `trees` are new ones, the first of them, for those that ask for them next.
    """

    def __init__(self, blobs: Blobs, check_room: Callable[[], None] | None = None) -> None:
        self._blobs = blobs
        self._check_room = check_room
        self._index: Index | None = None
        self._limit = FILE_LIMIT
        self._start = time.time_ns()
        self.trees: dict[bytes, bytes] = {}
        self._new: dict[bytes, bytes] = {}
        self._bytes = 0
        self._done: set[bytes] = set()
        self._unsynced = False
        self._threads: _Threads | None = None
        self._error: BaseException | None = None
        self.written = 0

    @property
    def pending(self) -> bool:
        """Whether anything waits to be stored, or to survive a power cut."""
        return bool(self._new) or self._unsynced

    @property
    def size(self) -> int:
        """The bytes of what `finish` will store; what was handed over is not in it."""
        return self._bytes

    @property
    def is_large(self) -> bool:
        """Whether some of it was handed over already."""
        return self._unsynced

    @property
    def waiting(self) -> Collection[bytes]:
        """The digests of what `finish` will store."""
        return self._new.keys()

    def begin(self, index: Index, limit: int, start: int) -> None:
        """A scan begins: what changed since `start` may change again unseen."""
        self._index, self._limit, self._start = index, limit, start

    def racy(self, mtime: int, ctime: int) -> bool:
        """Whether another change might leave these times as they are.

        Times a little ahead count too: a server's clock may be. Whole seconds are the sign
        of a file system that counts no finer than that, or than two.
        """
        start = self._start
        if ctime % SECOND == 0:
            start -= 2 * SECOND
        return start <= ctime < start + DAY or start <= mtime < start + 10 * SECOND

    # --- files ---------------------------------------------------------------------------

    def files(self, fd: int, files: Iterable[Reading], known: KnownDirectory) -> None:
        """Look closely at names in the open directory `fd`, and note in `known` what they are."""
        for reading in files:
            self._examine(fd, known, reading)

    def _examine(self, fd: int, known: KnownDirectory, reading: Reading) -> None:
        """Find out what a name is, trying again while it is replaced under our hands."""
        name, status, old = reading
        for attempt in range(3):
            try:
                if attempt:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                self._settle(known, name, self._describe(fd, name, status, old))
                return
            except StoreFailed:
                raise
            except OSError as error:
                if is_gone(error):
                    break
                self._settle(known, name, _skipped(status, unreadable(error), racy=True))
                return
            except _Replaced:
                continue
        # Gone, or never twice the same: the directory is listed again next time.
        known.racy = True
        self._settle(known, name, None)

    def _settle(self, known: KnownDirectory, name: bytes, file: KnownFile | None) -> None:
        """Note in the index what a name is."""
        files = known.files
        if files.get(name) == file:
            return
        if file is None:
            del files[name]
        else:
            files[name] = file
        if self._index is not None:
            self._index.changed = True

    def _describe(
        self, fd: int, name: bytes, status: os.stat_result, old: KnownFile | None
    ) -> KnownFile:
        mode = status.st_mode
        if stat.S_ISREG(mode):
            return self._regular(fd, name, status, old)
        racy = self.racy(status.st_mtime_ns, status.st_ctime_ns)
        if stat.S_ISLNK(mode):
            try:
                text = os.readlink(name, dir_fd=fd)
            except OSError as error:
                if error.errno in _REPLACED:
                    raise _Replaced from error
                raise
            if not is_link_text(text):
                # A file system in user space may say anything.
                return _skipped(status, b"a link that leads nowhere", racy=racy)
            return _known("link", status, text, racy=racy)
        if stat.S_ISDIR(mode):
            raise _Replaced
        reason = next((text for test, text in _SPECIAL if test(mode)), b"a special file")
        known = _skipped(status, reason, racy=racy)
        known.size = 0
        return known

    def _regular(
        self, fd: int, name: bytes, status: os.stat_result, old: KnownFile | None
    ) -> KnownFile:
        """Read a file until it holds still, three times at most."""
        for _ in range(3):
            if status.st_size > self._limit:
                racy = self.racy(status.st_mtime_ns, status.st_ctime_ns)
                return _skipped(status, _over(self._limit), racy=racy)
            content, before, status = _read(name, fd, self._limit)
            steady = len(content) == status.st_size and _numbers(before) == _numbers(status)
            if steady:
                break
        if len(content) > self._limit:
            return _skipped(status, _over(self._limit), racy=True)
        digest = sha256(content).digest()
        # A program keeps writing to it: this is one of its states, and not the last.
        racy = not steady or self.racy(status.st_mtime_ns, status.st_ctime_ns)
        if old is None or old.kind != "file" or old.value != digest:
            self._add(digest, content)
        known = _known("file", status, digest, racy=racy)
        known.size = len(content)
        return known

    # --- blobs ---------------------------------------------------------------------------

    def tree(self, known: KnownDirectory, names: Collection[bytes] | None) -> bytes:
        """The digest of a directory's tree, which is stored unless it is the one known already.

        `names` are those in it that may have changed, None for all.
        """
        made = known.tree(names)
        encoded = made.encoded()
        digest = digest_of(encoded)
        if digest != known.digest:
            few = len(self.trees) < _FEW
            # What changed once may well change again.
            known.made = made if few and known.digest else NOTHING
            self._add(digest, encoded)
            if few:
                self.trees[digest] = encoded
                remember(encoded, made.tree)
        return digest

    def _add(self, digest: bytes, content: bytes) -> None:
        if digest in self._done:
            return
        self._done.add(digest)
        self._new[digest] = content
        self._bytes += len(content)
        if self._bytes >= _SLICE:
            ready, self._new, self._bytes = self._new, {}, 0
            self._hand_over(ready)

    def _hand_over(self, contents: dict[bytes, bytes]) -> None:
        """Let a thread store contents, as soon as one has time."""
        if self._check_room is not None:
            self._check_room()
        if self._threads is None:
            # Most scans find little to read, and a hook pays for every import.
            from concurrent.futures import ThreadPoolExecutor

            pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="backtrail-import")
            self._threads = _Threads(pool, threading.BoundedSemaphore(_THREADS + 1))
        pool, room = self._threads
        self._unsynced = True
        self.written += len(contents)
        room.acquire()
        pool.submit(self._store, contents, room)
        if self._error is not None:
            raise self._error

    def _store(self, contents: dict[bytes, bytes], room: threading.Semaphore) -> None:
        """Store contents, in a thread. After the first error nothing more is stored."""
        try:
            if self._error is None:
                self._blobs.write(contents.items(), sync=False)
        except BaseException as error:
            self._error = error
        finally:
            room.release()

    def wait(self) -> None:
        """Return when everything handed over is stored; raise what kept it from that."""
        self.abandon()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Let the threads come to an end, whatever happened to them."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.pool.shutdown()

    def finish(self, references: Iterable[Reference] = (), *, sync: bool = True) -> None:
        """Store what is left, with references; with `sync` all survives a power cut then.

        The references rely on what the index believes to be stored. If that was collected
        meanwhile, the index is doubtful, nothing refers to the tree, and `Conflict` says so.
        """
        index = self._index
        ready, self._new, self._bytes = self._new, {}, 0
        try:
            self.wait()
            self._write_last(ready, list(references), sync)
        except BaseException:
            if index is not None:
                index.doubtful = True
            raise
        self.written += len(ready)
        self._unsynced = False

    def _write_last(
        self, ready: dict[bytes, bytes], references: list[Reference], sync: bool
    ) -> None:
        index = self._index
        if index is None:
            self._blobs.write(ready.items(), references, sync=sync)
            return
        try:
            self._blobs.write(ready.items(), references, epoch=index.epoch, sync=sync)
        except Conflict:
            # Something was removed since. To name all that the tree relies on takes long,
            # and is needed now only.
            relies = set(index.digests()) - ready.keys()
            self._blobs.write(ready.items(), references, relies=relies, sync=sync)


def _over(limit: int) -> bytes:
    """The reason of what is too large, such as "over 20 MB"."""
    millions, rest = divmod(limit, 10**6)
    return (f"over {limit} bytes" if rest else f"over {millions} MB").encode()


def _read(name: bytes, directory: int, limit: int) -> tuple[bytes, os.stat_result, os.stat_result]:
    """A file's bytes, and its numbers before and after; of one too large, the beginning."""
    try:
        fd = os.open(name, _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in _REPLACED:
            raise _Replaced from error
        raise
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise _Replaced
        content = os.read(fd, min(before.st_size, limit) + 1)
        if len(content) != before.st_size:
            parts = [content]
            total = len(content)
            while total <= limit and (part := os.read(fd, 1 << 20)):
                parts.append(part)
                total += len(part)
            content = b"".join(parts)
        return content, before, os.fstat(fd)
    finally:
        os.close(fd)


def _numbers(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _known(kind: Kind, status: os.stat_result, value: bytes, *, racy: bool) -> KnownFile:
    return KnownFile(
        kind, stat.S_IMODE(status.st_mode), status.st_size, status.st_mtime_ns,
        status.st_ctime_ns, status.st_ino, value, racy,
    )  # fmt: skip


def _skipped(status: os.stat_result, reason: bytes, *, racy: bool) -> KnownFile:
    return _known("skipped", status, reason, racy=racy)
