"""The group syncer: one `fdatasync` for all that wait, outside every write lock.

A `SyncFile` counts what was written to a file and what of it is known to be on the disk.
`note` after each write takes a ticket. `wait(ticket)` returns once the write is synced:
the first to come syncs for all that are there, the others wait for it and find it done. What
no caller waits for is synced by one background thread within `DELAY`.

A sync that fails is never tried again: the kernel may have dropped the pages and would
report success. The file stops acknowledging and says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable

from ...errors import StoreFailed
from . import forks

DELAY = 0.2
"""Seconds after which a write that no caller waits for is synced; the promise is 0.25."""

_advise = getattr(os, "posix_fadvise", None)
_full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def data_sync(fd: int) -> None:
    """Put a file's bytes on the disk itself."""
    if sys.platform == "darwin" and _full_sync is not None:
        fcntl.fcntl(fd, _full_sync)
    else:
        os.fdatasync(fd)


def begin_writing(fd: int, at: int, count: int) -> None:
    """Let the disk begin with these bytes, so that the sync has less to wait for.

    What is being written is not dropped, whatever the name of the advice.
    """
    if _advise is not None:
        try:
            _advise(fd, at, count, os.POSIX_FADV_DONTNEED)
        except OSError:
            # It is only advice.
            pass


def is_removed(fd: int) -> bool:
    """Whether a file has no name any more.

    On Linux the sync of a write takes up to half as long again if `fstat` has looked at the file
    since the write before. So its name is looked at first.
    """
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith(" (deleted)"):
            return False
    except OSError:
        # Other systems, and containers without /proc.
        pass
    return not os.fstat(fd).st_nlink


class SyncFile:
    """What was written to one file, and what of it is on the disk.

    Calls to `note` come one at a time, under the lock of the writer. A `lasting` file is
    not removed while it is in use: one that has no name any more has failed.
    """

    def __init__(
        self,
        name: str,
        fd: int,
        idle: Callable[[], None] | None = None,
        *,
        lasting: bool = True,
    ) -> None:
        self.name = name
        self.fd = fd
        self.failure: StoreFailed | None = None
        self._idle = idle
        self._lasting = lasting
        self._written = 0
        self._synced = 0
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        self._leader = allocate_lock()
        self._queued = False

    def check(self) -> None:
        """Raise if a sync of this file has failed."""
        if self.failure is not None:
            raise self.failure

    def note(self) -> int:
        """Something was written; the ticket to wait with."""
        self._written += 1
        if not self._queued:
            self.later()
        return self._written

    def later(self) -> None:
        """Let the background come by in a moment: to sync, and to do what is done when idle."""
        self._queued = True
        background.add(self)

    @property
    def written(self) -> int:
        """The ticket of the last write."""
        return self._written

    @property
    def dirty(self) -> bool:
        """Whether something written is not known to be on the disk."""
        return self._synced < self._written

    def flush(self) -> None:
        """Return when everything noted so far is on the disk."""
        self.wait(self._written)

    def wait(self, ticket: int) -> None:
        """Return when the write with this ticket is on the disk."""
        # `with` a lock of C: an interrupt does not leave it held.
        with self._leader:
            self.check()
            if self._synced < ticket:
                self._lead()

    def _lead(self) -> None:
        """Sync all that is written by now; those that wait find it done."""
        goal = self._written
        try:
            data_sync(self.fd)
        except OSError as error:
            self.failure = StoreFailed(
                f"{self.name} could not be synced ({error.strerror}); it acknowledges nothing "
                "more. What was written since the last sync may be lost: check the disk, reopen",
                errno=error.errno,
            )
        else:
            if not (self._lasting and is_removed(self.fd)):
                self._synced = goal
                return
            self.failure = StoreFailed(
                f"{self.name} was removed while it was in use; it acknowledges nothing more. "
                "What was written to it is lost: put the files back, or reopen for new ones",
                errno=errno.ENOENT,
            )
        raise self.failure

    def retire(self) -> None:
        """Sync what is left, before the descriptor is closed; nothing is done when idle."""
        self._idle = None
        if self.failure is None:
            self.flush()

    def settle(self) -> bool:
        """Sync what is left; False if that fails, or failed before."""
        try:
            self.flush()
        except StoreFailed:
            return False
        return True

    def background_sync(self) -> None:
        """Sync what is there; errors are kept in `failure` for the next append."""
        self._queued = False
        settled, idle = self.settle(), self._idle
        if settled and idle is not None:
            idle()


class _Background:
    """One daemon thread that syncs what no caller waits for."""

    def __init__(self) -> None:
        self._reset()
        forks.register(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._files: list[tuple[float, SyncFile]] = []
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        self._reset()

    def add(self, file: SyncFile) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="backtrail-sync", daemon=True)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError:
                    # From Python 3.12 on, none starts while the interpreter shuts down.
                    pass
            if self._thread is not None:
                self._files.append((time.monotonic() + DELAY, file))
                self._wake.set()
                return
        file.background_sync()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            with self._lock:
                if not self._files:
                    self._wake.clear()
                    continue
                due, file = self._files[0]
            pause = due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            with self._lock:
                self._files.pop(0)
            file.background_sync()


background = _Background()
