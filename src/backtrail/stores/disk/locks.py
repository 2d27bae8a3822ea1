"""Locks between threads and processes, and the lease of a session.

A `FileLock` is a mutex and a flock on a file of its own. The kernel frees it when its
holder dies, and other descriptors of the file do not disturb it. Every wait has a limit
and names the holder.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import msgspec

from ...errors import Closed, NotFound, Owner, SessionBusy
from ...events import now
from ..base import Lease
from . import forks
from .fs import failed, open_file

_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

WAIT = 30.0
"""Seconds to wait for a lock that is only ever held for the length of one write."""


_NOW = fcntl.LOCK_EX | fcntl.LOCK_NB

_BLOCKING, _AT_ONCE = (True,), (False,)

_MOMENT = 0.05


class FileLock:
    """A mutex plus flock on `path`, which is made when first needed and never replaced."""

    def __init__(self, path: str | Path, what: str) -> None:
        self.path = path
        self.what = what
        self._mutex = threading.Lock()
        self._fd = -1
        self._shut = False
        self.release: Callable[[], object] = self._mutex.release
        """Give the lock back. It is C code, so no interrupt finds it begun and not done."""
        forks.register(self)

    def after_fork(self) -> None:
        # Closing the copy leaves the parent's lock alone; unlocking it would not.
        self._mutex = threading.Lock()
        self.drop()

    @property
    def fd(self) -> int:
        """The locked file's descriptor, for comparing it with what is at the path."""
        return self._fd

    def acquire(self, wait: float = WAIT) -> None:
        """Take the lock or raise `SessionBusy` after `wait` seconds."""
        taken: list[bool] = []
        try:
            # One call of C code takes the mutex and notes it, so an interrupt leaves neither
            # half of it: a caller interrupted right after it would not know of it.
            taken.extend(map(self._mutex.acquire, _BLOCKING, (wait,)))
            if not taken[0]:
                owner = Owner(os.getpid(), os.uname().nodename)
                raise SessionBusy(f"{self.what} is in use by another thread", owner=owner)
            if self._fd < 0:
                self._open()
            try:
                fcntl.flock(self._fd, _NOW)
            except BlockingIOError:
                self._wait(wait)
            if self._shut:
                raise self._closed()
        except BaseException:
            if taken and taken[0]:
                # Perhaps the file was locked. At once: another interrupt may come with any call.
                self.release()
            raise

    def try_acquire(self) -> bool:
        """Take the lock if it is free and was taken before."""
        if self._fd < 0:
            return False
        taken: list[bool] = []
        try:
            taken.extend(map(self._mutex.acquire, _AT_ONCE))
            if not taken[0]:
                return False
            if self._fd < 0 or self._shut:
                self.release()
                return False
            fcntl.flock(self._fd, _NOW)
        except BaseException as error:
            if taken and taken[0]:
                self.release()
            if isinstance(error, BlockingIOError):
                return False
            raise
        return True

    def _wait(self, wait: float) -> None:
        deadline = time.monotonic() + wait
        pause = 0.0001
        while True:
            time.sleep(pause)
            try:
                fcntl.flock(self._fd, _NOW)
                return
            except BlockingIOError:
                if self._shut:
                    raise self._closed() from None
                if time.monotonic() > deadline:
                    owner = holder(self._fd)
                    raise SessionBusy(
                        f"{self.what} is locked by {owner}; waited {wait:g} s", owner=owner
                    ) from None
                pause = min(pause * 1.5, 0.002)

    def enter(self, wait: bool) -> bool:
        """Keep other threads out, without locking the file; False if one is in."""
        return self._mutex.acquire(blocking=wait)

    def leave(self) -> None:
        """Let other threads in again."""
        self._mutex.release()

    def _open(self) -> None:
        if self._shut:
            raise self._closed()
        fd = open_file(self.path, _LOCK)
        try:
            # The next of the pair unlocks the file and then lets threads in, both in one call:
            # an interrupt may come when a function begins, which would do neither.
            unlocking = map(fcntl.flock, repeat(fd), repeat(fcntl.LOCK_UN))
            self.release = zip(unlocking, iter(self._mutex.release, True), strict=False).__next__
            self._fd = fd
        except BaseException:
            os.close(fd)
            raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. A generator: one that an interrupt drops gives it back all the same."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Let go of the file: now, or when the thread that holds the lock releases it.

        Never under the holder: by the time it unlocks, the descriptor's number may be another
        file's.
        """
        self.release = self._drop_and_release
        # A holder that is in the release before this one has done it in a moment.
        if self._mutex.acquire(timeout=_MOMENT):
            self._drop_and_release()

    def drop(self) -> None:
        """Let go of the file. Only for the thread that holds the lock, or keeps others out."""
        fd, self._fd = self._fd, -1
        # Closing the file unlocks it too.
        self.release = self._mutex.release
        if fd >= 0:
            os.close(fd)

    def _drop_and_release(self) -> None:
        try:
            self.drop()
        finally:
            self._mutex.release()

    def _closed(self) -> Closed:
        return Closed(f"{self.what} is closed")

    def shut(self) -> None:
        """Close it for good: a later `acquire` raises `Closed` and makes no file."""
        self._shut = True
        self.close()


def holder(fd: int) -> Owner:
    """The holder of the flock on a file, where the system knows it."""
    if sys.platform != "linux":
        return Owner()
    status = os.fstat(fd)
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    name = f"{major:02x}:{minor:02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if "FLOCK" in fields and name in fields:
                    return Owner(int(fields[fields.index(name) - 1]), os.uname().nodename)
    except (OSError, ValueError):
        return Owner()
    return Owner()


# --- leases ------------------------------------------------------------------------------


class _Held:
    """The descriptors of leases this process holds, so that a forked child drops them."""

    def __init__(self) -> None:
        self.fds: set[int] = set()
        forks.register(self)

    def after_fork(self) -> None:
        fds, self.fds = self.fds, set()
        for fd in fds:
            os.close(fd)


_held = _Held()


def me() -> Owner:
    """This process as an owner, from now."""
    return Owner(os.getpid(), os.uname().nodename, now())


def busy(session_id: str, owner: Owner) -> SessionBusy:
    """The error for a session that another process drives."""
    return SessionBusy(
        f"session `{session_id}` is driven by {owner}: wait for it (`wait=`), or work on a fork",
        owner=owner,
    )


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether no other process does what the lock on `path` stands for, while the block lasts."""
    fd = open_file(path, _LOCK)
    try:
        try:
            fcntl.flock(fd, _NOW)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


@contextmanager
def file_lease(path: Path, session_id: str, wait: float) -> Iterator[Lease]:
    """A lease as a flock on `path`, which names its holder. Death frees it at once."""
    deadline = time.monotonic() + wait
    fd = -1
    try:
        while fd < 0:
            fd, owner = _lease_taken(path, session_id)
            if fd < 0:
                if time.monotonic() >= deadline:
                    raise busy(session_id, owner)
                time.sleep(0.02)
        _write_owner(fd, msgspec.json.encode(owner))
        yield Lease(session_id, owner)
    finally:
        # A forked child has closed its copy already and must not touch the number again.
        if fd in _held.fds:
            try:
                _write_owner(fd, b"")
            finally:
                # An interrupt may come after each of these, and when a function begins.
                try:
                    # Not left to `close`: a child forked just now still has a copy.
                    fcntl.flock(fd, fcntl.LOCK_UN)
                finally:
                    try:
                        _held.fds.discard(fd)
                    finally:
                        os.close(fd)


def _lease_taken(path: Path, session_id: str) -> tuple[int, Owner]:
    """The locked file and this process; -1 and the present owner where another one has it."""
    while True:
        try:
            fd = os.open(path, _LOCK, 0o600)
        except FileNotFoundError:
            raise NotFound(f"no session `{session_id}`") from None
        except OSError as error:
            raise failed(error, f"take the lease of session `{session_id}`") from error
        is_mine = False
        try:
            fcntl.flock(fd, _NOW)
            owner = me()
            if _is_at(fd, path):
                _held.fds.add(fd)
                is_mine = True
                return fd, owner
        except BlockingIOError:
            return -1, _read_owner(fd)
        finally:
            if not is_mine:
                try:
                    _held.fds.discard(fd)
                finally:
                    os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Whether `path` still names the file behind `fd`."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)


def _write_owner(fd: int, text: bytes) -> None:
    """Name the holder of the lease. It is only information: a full disk must not stop it."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    except OSError:
        # `_read_owner` asks the system then.
        pass


def _read_owner(fd: int) -> Owner:
    try:
        return msgspec.json.decode(os.pread(fd, 1000, 0), type=Owner)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return holder(fd)
