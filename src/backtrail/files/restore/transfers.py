"""What is not captured, on its way to another name: nothing is written, and nothing replaced.

A thing goes straight to its new name if that is free and its directory is there. Else it is
parked on the workbench until the plan has made room: of two things that change places, one
has to be somewhere meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ..beneath import Directories, put_in, renameat2_is_there, take_out
from ..workspace.ignore import is_empty, is_mount_point
from .plan import Step
from .workbench import ABSENT, Deed, Deeds, Workbench, parked

CHANGED = "changed during the restore"
APPEARED = "appeared during the restore"
NO_DIRECTORY = "the directory it belongs in is not there"

_IMMOVABLE = frozenset({errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.EINVAL})
"""Why the system may refuse to move a directory, whatever is tried again."""


class Transfers:
    """The moves of one restore. `finishing` says that another process began it.

    Each answers why the thing is not moved; empty if it is, or may still be.
    """

    def __init__(
        self, directories: Directories, bench: Workbench, deeds: Deeds, *, finishing: bool
    ) -> None:
        self._directories = directories
        self._bench = bench
        self._deeds = deeds
        self._finishing = finishing

    def leave(self, index: int, step: Step, *, ready: bool) -> str:
        """Take a thing from its path; with `ready`, its directory is there and stays."""
        if self._is_parked(index, step) or self._is_home(step):
            return ""
        try:
            source, name = self._directories.parent(step.source)
        except ABSENT:
            return CHANGED
        if number(source, name) != step.inode:
            return CHANGED
        self._directories.forget(step.source)
        try:
            if not (ready and self._go(index, step, source, name)):
                take_out(source, name, self._bench.fd, parked(index))
                self._deeds.add(Deed("parked", index, step.source, parked(index)))
        except FileNotFoundError:
            return CHANGED
        except OSError as error:
            if error.errno not in _IMMOVABLE:
                raise
            return f"cannot be moved: {error.strerror}"
        if self._is_parked(index, step) or self._is_home(step):
            return ""
        self._deeds.undo_step(index, step)
        return CHANGED

    def arrive(self, index: int, step: Step, make_way: Callable[[int, bytes], bool]) -> str:
        """Give a parked thing its name; `make_way` takes out what the plan says is there."""
        if not number(self._bench.fd, parked(index)):
            return ""
        try:
            parent, name = self._directories.parent(step.path)
        except ABSENT:
            return self._returned(index, step, NO_DIRECTORY)
        try:
            if step.before is None:
                self._clear_way(parent, name)
            if number(parent, name) and not make_way(parent, name):
                return self._returned(index, step, APPEARED)
            if not put_in(self._bench.fd, parked(index), parent, name):
                return self._returned(index, step, APPEARED)
        except OSError as error:
            if error.errno not in _IMMOVABLE:
                raise
            return self._returned(index, step, f"cannot be moved: {error.strerror}")
        self._deeds.add(Deed("unparked", index, step.path, parked(index)))
        return ""

    def is_left(self, step: Step) -> bool:
        """Whether nothing is at a path that something left for good."""
        try:
            return not number(*self._directories.parent(step.path))
        except ABSENT:
            return True

    def give_back(self, index: int, step: Step) -> bool:
        """Put a parked thing where it was; False if that name is taken."""
        try:
            return put_in(self._bench.fd, parked(index), *self._directories.parent(step.source))
        except ABSENT:
            return False

    def _returned(self, index: int, step: Step, reason: str) -> str:
        # What was taken out for it goes back, too. Where another process parked it, no deed says.
        self._deeds.undo_step(index, step)
        if number(self._bench.fd, parked(index)):
            self.give_back(index, step)
        return reason

    def _go(self, index: int, step: Step, source: int, name: bytes) -> bool:
        """Move a thing straight to its place, if that is free."""
        try:
            parent, home = self._directories.parent(step.path)
        except ABSENT:
            return False
        if step.before is None:
            self._clear_way(parent, home)
        if number(parent, home) or not put_in(source, name, parent, home):
            return False
        self._deeds.add(Deed("moved", index, step.path, step.source))
        return True

    def _is_parked(self, index: int, step: Step) -> bool:
        there = number(self._bench.fd, parked(index))
        return there != 0 and there == step.inode

    def _is_home(self, step: Step) -> bool:
        """Whether a thing is where it shall be; a second name that it had to have goes."""
        try:
            if number(*self._directories.parent(step.path)) != step.inode:
                return False
            source, name = self._directories.parent(step.source)
            if number(source, name) == step.inode:
                # Cut short between a second name and the removal of the first.
                os.unlink(name, dir_fd=source)
        except ABSENT:
            return self._is_at(step.path, step.inode)
        return True

    def _is_at(self, path: bytes, inode: int) -> bool:
        try:
            return number(*self._directories.parent(path)) == inode
        except ABSENT:
            return False

    def _clear_way(self, parent: int, name: bytes) -> None:
        """Remove an empty directory that is in no tree: one that a sandbox left.

        Or one that a restore made to move something onto, and was cut short.
        """
        ours = self._finishing and not renameat2_is_there() and is_empty(parent, name)
        if ours or is_mount_point(parent, name):
            os.rmdir(name, dir_fd=parent)


def number(parent: int, name: bytes) -> int:
    """The inode of what is at a name; 0 for nothing."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return 0
