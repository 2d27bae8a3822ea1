"""The reserved directory of a restore, in the root, where scans do not look.

Step `i` of the plan uses four names in it: `i.part` is being built, `i.new` is whole (or,
after a swap, what was swapped out), `i.old` and `i.del` were moved out of the way. So
whoever finds the directory after a crash knows what each thing is.
"""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor

from .beneath import DIRECTORY, alike, describe, is_being_written, remove, write_file
from .ignore import RESERVED
from .plan import Step
from .trees import Entry

_SYNC_THREADS = 8
SYNCED_TOGETHER = 32
"""How many files or directories are synced at a time."""

_PATIENCE = 1.0
"""Seconds to wait, in all, for programs that are writing what is to be replaced."""


class Workbench:
    """The reserved directory of one restore."""

    def __init__(self, root: int, id: str) -> None:
        self._root = root
        self._name = RESERVED + id.encode()
        self._unsynced: list[int] = []
        self._patience = _PATIENCE
        self.id = id.encode()
        self.fd = -1

    def open(self) -> None:
        """Make it, unless a restore that was cut short did."""
        if self.fd < 0:
            try:
                os.mkdir(self._name, 0o700, dir_fd=self._root)
            except FileExistsError:
                pass
            self.fd = os.open(self._name, DIRECTORY, dir_fd=self._root)

    def close(self) -> None:
        """Let go of it."""
        while self._unsynced:
            os.close(self._unsynced.pop())
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def names(self) -> list[bytes]:
        """What is in it."""
        return sorted(os.fsencode(name) for name in os.listdir(self.fd))

    # --- building ------------------------------------------------------------------------

    def build(self, index: int, wanted: Entry, content: bytes) -> None:
        """Make something new. It has its place after `finish`."""
        name = part(index)
        remove(self.fd, name)
        if wanted.kind == "link":
            os.symlink(wanted.value, name, dir_fd=self.fd)
        elif wanted.kind == "directory":
            os.mkdir(name, 0o700, dir_fd=self.fd)
        else:
            self._unsynced.append(write_file(self.fd, name, content, wanted.mode))
            if len(self._unsynced) >= SYNCED_TOGETHER:
                self._sync()

    def finish(self, indexes: list[int]) -> None:
        """What was built is whole and on the disk."""
        self._sync()
        for index in indexes:
            remove(self.fd, new(index))
            os.rename(part(index), new(index), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)

    def _sync(self) -> None:
        sync_together(self._unsynced)
        while self._unsynced:
            os.close(self._unsynced.pop())

    # --- what came out -------------------------------------------------------------------

    def holds(self, name: bytes, expected: Entry | None) -> bool:
        """Whether a thing is the expected one; of a directory, whether it is empty."""
        found = describe(self.fd, name)
        if found is None or found.kind != "directory":
            return alike(found, expected)
        if expected is None or expected.kind != "directory":
            return False
        fd = os.open(name, DIRECTORY, dir_fd=self.fd)
        try:
            return not os.listdir(fd)
        finally:
            os.close(fd)

    def knows(self, name: bytes, step: Step) -> bool:
        """Whether the store has a thing, so that it may go, and nobody is writing to it."""
        while is_being_written(self.fd, name):
            if self._patience <= 0:
                return False
            time.sleep(0.01)
            self._patience -= 0.01
        return self.holds(name, step.before) or self.holds(name, step.after)

    def drop(self, name: bytes) -> bool:
        """Remove something; False if it is a directory with something in it."""
        try:
            remove(self.fd, name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    def remove(self) -> None:
        """Remove the directory itself, which is empty; a power cut does not bring it back."""
        try:
            os.rmdir(self._name, dir_fd=self._root)
        except FileNotFoundError:
            return
        os.fsync(self._root)


def sync_together(fds: list[int]) -> None:
    """Sync open files or directories at once: the disk then writes its journal once."""
    if len(fds) > 2:
        with ThreadPoolExecutor(min(_SYNC_THREADS, len(fds))) as pool:
            list(pool.map(os.fsync, fds))
    else:
        for fd in fds:
            os.fsync(fd)


def part(index: int) -> bytes:
    """The name under which a step's new thing is being built."""
    return b"%d.part" % index


def new(index: int) -> bytes:
    """The name of a step's new thing; after a swap, of what was swapped out."""
    return b"%d.new" % index


def old(index: int) -> bytes:
    """The name of what made way for a step's new thing."""
    return b"%d.old" % index


def deleted(index: int) -> bytes:
    """The name of what a step deletes."""
    return b"%d.del" % index


def read_name(name: bytes) -> tuple[int, bytes]:
    """The step that a name belongs to, -1 if none, and what the name says."""
    number, _, what = name.partition(b".")
    return (int(number) if number.isdigit() else -1), what
