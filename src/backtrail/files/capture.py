"""From files to blobs: read, hash, and hand over what the store does not have.

A few files are read on the spot. Many, as in a first import, go to a few threads: reading,
hashing and compressing let others run meanwhile. What is under way is bounded in bytes.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256

from .blobs import Blobs, Reference
from .index import KnownDirectory, KnownFile
from .trees import digest_of

_INLINE = 64
_THREADS = 2
_SLICE = 2 * 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Capture:
    """Takes contents during one scan, and stores them. `finish` makes them durable."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()
        self._new: dict[bytes, bytes] = {}
        self._bytes = 0
        self._done: set[bytes] = set()
        self._count = 0
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(64)
        self._jobs: list[Future[None]] = []
        self.written = 0

    def files(self, fd: int, files: list[tuple[bytes, KnownFile]], known: KnownDirectory) -> bool:
        """Read files of the open directory `fd` and set their digests.

        Whether they changed is only known for those read on the spot; others count as such.
        """
        self._count += len(files)
        if self._count <= _INLINE and self._pool is None:
            for name, file in files:
                self._file(fd, name, file)
            return True
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="backtrail-import")
        for at in range(0, len(files), 256):
            self._room.acquire()
            self._jobs.append(self._pool.submit(self._many, os.dup(fd), files[at : at + 256]))
        return True

    def _many(self, fd: int, files: list[tuple[bytes, KnownFile]]) -> None:
        try:
            for name, file in files:
                self._file(fd, name, file)
        finally:
            os.close(fd)
            self._room.release()

    def _file(self, fd: int, name: bytes, file: KnownFile) -> None:
        """Read one file until it holds still, three times at most."""
        content = b""
        for _ in range(3):
            try:
                content, after = _read(name, fd)
            except OSError as error:
                reason = f"unreadable: {error.strerror or error}"
                file.kind, file.value, file.racy = "skipped", reason.encode(), True
                return
            steady = (file.size, file.mtime, file.inode) == (
                after.st_size,
                after.st_mtime_ns,
                after.st_ino,
            ) and len(content) == after.st_size
            file.size, file.mode = len(content), stat.S_IMODE(after.st_mode)
            file.mtime, file.ctime = after.st_mtime_ns, after.st_ctime_ns
            file.inode = after.st_ino
            if steady:
                break
        else:
            # Somebody keeps writing to it: this is one of its states, and not the last.
            file.racy = True
        file.value = sha256(content).digest()
        self._add(file.value, content)

    def tree(self, encoded: bytes) -> bytes:
        """Store a tree and return its digest."""
        digest = digest_of(encoded)
        self._add(digest, encoded)
        return digest

    def _add(self, digest: bytes, content: bytes) -> None:
        with self._lock:
            if digest in self._done:
                return
            self._done.add(digest)
            self._new[digest] = content
            self._bytes += len(content)
            if self._bytes < _SLICE:
                return
            ready, self._new, self._bytes = self._new, {}, 0
        self._store(ready)

    def _store(self, contents: dict[bytes, bytes], references: Iterable[Reference] = ()) -> None:
        self._blobs.write(contents.items(), references)
        self.written += len(contents)

    def wait(self) -> None:
        """Return when every file handed over is read."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.result()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def finish(self, references: Iterable[Reference] = ()) -> None:
        """Store what is left, with references; afterwards all survives a power cut."""
        ready, self._new, self._bytes = self._new, {}, 0
        self._store(ready, references)


def _read(name: bytes, directory: int) -> tuple[bytes, os.stat_result]:
    fd = os.open(name, _FLAGS, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "no regular file any more")
        parts = [os.read(fd, status.st_size + 1)]
        while parts[-1]:
            parts.append(os.read(fd, 1 << 20))
        return b"".join(parts), os.fstat(fd)
    finally:
        os.close(fd)
