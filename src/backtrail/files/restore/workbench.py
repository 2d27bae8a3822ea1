"""The reserved directory of a restore, in the root, where scans do not look.

Step `i` of the plan uses five names in it: `i.part` is being built, `i.new` is whole (or,
after a swap, what was swapped out), `i.old` and `i.del` were moved out of the way, `i.mov`
is not captured and on its way to another name. So a process that finds the directory after a crash
knows what each thing is.

Each change of the workspace is noted, so that it can be taken back: names move back and modes are
set again; nothing is written. What others changed since is left to them.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from .. import beneath
from ..beneath import (
    DIRECTORY,
    FILE,
    Directories,
    describe,
    descriptor,
    exchange,
    is_being_written,
    put_in,
    remove,
    take_out,
    write_file,
)
from ..names import RESERVED
from ..trees import Entry, alike
from .plan import Step

_SYNC_THREADS = 8
_SYNCED_TOGETHER = 32

MANY = 200
"""From so many files or directories on, the whole file system is synced instead of each."""

_PATIENCE = 1.0
"""Seconds to wait, in all, for programs that are writing what is to be replaced."""


class Workbench:
    """The reserved directory of one restore."""

    def __init__(self, root: int, id: str) -> None:
        self._root = root
        self._name = RESERVED + id.encode()
        self._unsynced = Unsynced(root)
        self._patience = _PATIENCE
        self._was_there = False
        self.id = id.encode()
        self.fd = -1

    def open(self) -> None:
        """Make it, unless a restore that was cut short did."""
        if self.fd < 0:
            try:
                os.mkdir(self._name, 0o700, dir_fd=self._root)
            except FileExistsError:
                self._was_there = True
            self.fd = os.open(self._name, DIRECTORY, dir_fd=self._root)

    def close(self) -> None:
        """Let go of it."""
        self._unsynced.close()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def names(self) -> list[bytes]:
        """What is in it."""
        return sorted(os.fsencode(name) for name in os.listdir(self.fd))

    # --- building ------------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """So many things will be built."""
        self._unsynced = Unsynced(self.fd, count)

    def build(self, index: int, wanted: Entry, content: bytes) -> None:
        """Make something new. It has its place after `finish`."""
        name = part(index)
        if self._was_there:
            remove(self.fd, name)
        if wanted.kind == "link":
            os.symlink(wanted.value, name, dir_fd=self.fd)
        elif wanted.kind == "directory":
            os.mkdir(name, 0o700, dir_fd=self.fd)
        else:
            self._unsynced.add(write_file(self.fd, name, content, wanted.mode))

    def finish(self, indexes: list[int]) -> None:
        """What was built is whole and on the disk."""
        self._unsynced.sync()
        for index in indexes:
            if self._was_there:
                remove(self.fd, new(index))
            os.rename(part(index), new(index), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)

    # --- what came out -------------------------------------------------------------------

    def holds(self, name: bytes, expected: Entry | None) -> bool:
        """Whether a thing is the expected one; of a directory, whether it is empty."""
        found = describe(self.fd, name)
        if found is None or found.kind != "directory":
            return alike(found, expected)
        if expected is None or expected.kind != "directory":
            return False
        with descriptor(name, DIRECTORY, dir_fd=self.fd) as fd:
            return not os.listdir(fd)

    def knows(self, name: bytes, step: Step) -> bool:
        """Whether the store has a thing, so that it may go, and no program is writing to it."""
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


class Unsynced:
    """Open files or directories that are to be on the disk when `sync` returns.

    Some are synced at once: the disk then writes its journal once. Where `MANY` are expected, all
    of the file system is synced instead, and none is kept open; with fewer that would take longer,
    because it waits for what other programs wrote.
    """

    def __init__(self, place: int, expected: int = 0) -> None:
        self._place = place
        self._all = beneath.system.syncfs if expected >= MANY else None
        self._fds: list[int] = []

    def add(self, fd: int) -> None:
        """Take over an open file."""
        self._fds.append(fd)
        if self._all is not None:
            self.close()
        elif len(self._fds) >= _SYNCED_TOGETHER:
            self._sync()

    def sync(self) -> None:
        """Return when everything is on the disk."""
        if self._all is not None:
            self._all(self._place)
        else:
            self._sync()

    def _sync(self) -> None:
        if len(self._fds) > 2:
            with ThreadPoolExecutor(min(_SYNC_THREADS, len(self._fds))) as pool:
                list(pool.map(os.fsync, self._fds))
        else:
            for fd in self._fds:
                os.fsync(fd)
        self.close()

    def close(self) -> None:
        """Let go of what is still open."""
        while self._fds:
            os.close(self._fds.pop())


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


def parked(index: int) -> bytes:
    """The name of what a step moves, while its new place is not ready."""
    return b"%d.mov" % index


def read_name(name: bytes) -> tuple[int, bytes]:
    """The step that a name belongs to, -1 if none, and what the name says."""
    number, _, what = name.partition(b".")
    return (int(number) if number.isdigit() else -1), what


# --- what was done, and how to take it back ----------------------------------------------


ABSENT = (FileNotFoundError, NotADirectoryError)
"""The errors of a path whose directory is not there."""

NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
"""How systems say that a directory has something in it."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One change. `put` and `took` moved a thing from or to `name` on the workbench,
    `swapped` did both; `removed` and `mode` have the mode that was there; `moved` brought
    what is not captured from the path `name`; `parked` moved such a thing to `name` on the
    workbench, and `unparked` from there.
    """

    kind: Literal["put", "took", "swapped", "removed", "mode", "moved", "parked", "unparked"]
    index: int
    path: bytes
    name: bytes = b""
    mode: int = 0


class Deeds:
    """The changes of one restore, in order."""

    def __init__(self, directories: Directories, bench: Workbench) -> None:
        self._directories = directories
        self._bench = bench
        self._done: list[Deed] = []

    def add(self, deed: Deed) -> None:
        """A change was made."""
        self._done.append(deed)

    def taken_out(self) -> list[Deed]:
        """The changes by which a thing came to the workbench."""
        return [deed for deed in self._done if deed.kind in ("took", "swapped")]

    def undo_step(self, index: int, step: Step) -> None:
        """Take back what one step did."""
        for deed in [deed for deed in reversed(self._done) if deed.index == index]:
            self._done.remove(deed)
            self._undo(deed, step)

    def undo_all(self, steps: Mapping[int, Step]) -> None:
        """Take everything back, the last change first."""
        while self._done:
            deed = self._done.pop()
            self._undo(deed, steps.get(deed.index))

    def _undo(self, deed: Deed, step: Step | None) -> None:
        try:
            parent, name = self._directories.parent(deed.path)
        except ABSENT:
            return
        if deed.kind == "mode":
            _set_mode(parent, name, deed.mode)
            return
        self._directories.forget(deed.path)
        if deed.kind == "removed":
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                return
            _set_mode(parent, name, deed.mode)
        elif deed.kind in ("took", "parked"):
            put_in(self._bench.fd, deed.name, parent, name)
        elif deed.kind == "unparked":
            put_in(parent, name, self._bench.fd, deed.name)
        elif deed.kind == "moved":
            self._directories.forget(deed.name)
            put_in(parent, name, *self._directories.parent(deed.name))
        elif step is not None:
            self._undo_put(deed, step, parent, name)

    def _undo_put(self, deed: Deed, step: Step, parent: int, name: bytes) -> None:
        """Take out what was put in, unless it was changed since."""
        bench = self._bench
        there = describe(parent, name)
        if there is None and deed.kind == "swapped":
            put_in(bench.fd, deed.name, parent, name)
        if not same(there, step.after):
            return
        if deed.kind == "swapped":
            exchange(bench.fd, deed.name, parent, name)
            if not bench.holds(deed.name, step.after):
                exchange(bench.fd, deed.name, parent, name)
        elif is_directory(step.after):
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno not in (*NOT_EMPTY, errno.ENOTDIR, errno.ENOENT):
                    raise
        else:
            # A second name of the same file would make the move do nothing.
            bench.drop(deed.name)
            take_out(parent, name, bench.fd, deed.name)
            if not bench.holds(deed.name, step.after):
                put_in(bench.fd, deed.name, parent, name)


def _set_mode(parent: int, name: bytes, mode: int) -> None:
    try:
        fd = os.open(name, FILE, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return
    try:
        os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)


def same(a: Entry | None, b: Entry | None) -> bool:
    """Whether two things are alike; any two directories are, since modes are set last."""
    return alike(a, b) or (is_directory(a) and is_directory(b))


def is_directory(entry: Entry | None) -> bool:
    """Whether an entry is a directory."""
    return entry is not None and entry.kind == "directory"
