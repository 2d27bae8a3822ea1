"""The steps of a restore, taken one by one, each only if its path is what the plan says it was.

What is not captured is on its way to another name: nothing of it is written, and nothing replaced.
Such a thing goes straight to its new name if that is free and its directory is there. Else it is
parked on the workbench until the plan has made room: of two things that change places, one
has to be somewhere meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import replace

from ...errors import Damaged, NotFound
from ..beneath import (
    DIRECTORY,
    FILE,
    Directories,
    describe,
    descriptor,
    exchange,
    put_in,
    renameat2_is_there,
    take_out,
)
from ..changes.effects import Conflict
from ..trees import Get
from ..workspace.ignore import is_empty, is_mount_point
from .plan import Step
from .workbench import (
    ABSENT,
    NOT_EMPTY,
    Deed,
    Deeds,
    Workbench,
    deleted,
    is_directory,
    new,
    old,
    parked,
    same,
)

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


# --- what the store has ------------------------------------------------------------------


Steps = dict[int, Step]
"""Steps by their numbers in the plan."""

UNAVAILABLE = "its content cannot be had any more"


class StepTaker:
    """Takes single steps. `at` is the path in hand, `went` are the steps that went otherwise."""

    def __init__(self, directories: Directories, bench: Workbench, deeds: Deeds, get: Get) -> None:
        self.at = b""
        self.went: Steps = {}
        self._directories = directories
        self._bench = bench
        self._deeds = deeds
        self._get = get
        self._stuck: list[bytes] = []

    def note(self, index: int, step: Step, reason: str) -> Step:
        """The step turns into a conflict. What was to be moved stays, and nothing comes there."""
        if step.source:
            self._stuck += [step.source, step.path]
        code: Conflict = "lost" if reason == UNAVAILABLE else "during"
        self.went[index] = replace(step, action="conflict", reason=reason, code=code)
        return self.went[index]

    def built(self, steps: Steps) -> list[int]:
        """Build all that comes, before any name changes; the steps that lack their content."""
        built: list[int] = []
        lacking: list[int] = []
        coming = [item for item in steps.items() if item[1].action not in ("chmod", "move")]
        entries = [(index, step.path, step.after) for index, step in coming if step.after]
        self._bench.expect(len(entries))
        for index, path, entry in entries:
            self.at = path
            try:
                content = self._get(entry.value) if entry.kind == "file" else b""
            except (NotFound, Damaged):
                lacking.append(index)
                continue
            self._bench.build(index, entry, content)
            built.append(index)
        self._bench.finish(built)
        return lacking

    def take(self, index: int, step: Step) -> Step:
        """Take one step; the step as it went."""
        if any(step.path == at or step.path.startswith(at + b"/") for at in self._stuck):
            return self.note(index, step, "what is in the way could not be moved")
        try:
            parent, name = self._directories.parent(step.path)
        except ABSENT:
            if step.after is None:
                return step
            return self.note(index, step, NO_DIRECTORY)
        there = describe(parent, name)
        if same(there, step.after):
            return step
        if not same(there, step.before):
            return self.note(index, step, CHANGED)
        self._directories.forget(step.path)
        try:
            if step.action == "chmod":
                return self._chmod(index, parent, name, step)
            if step.after is None:
                return self._delete(index, parent, name, step)
            if step.before is None:
                if not self._put(index, parent, name, step):
                    return self.note(index, step, APPEARED)
                return step
            return self._swap(index, parent, name, step)
        except FileNotFoundError:
            return self.note(index, step, CHANGED)

    def _put(self, index: int, parent: int, name: bytes, step: Step) -> bool:
        if not put_in(self._bench.fd, new(index), parent, name):
            return False
        self._deeds.add(Deed("put", index, step.path, new(index)))
        return True

    def _swap(self, index: int, parent: int, name: bytes, step: Step) -> Step:
        out = new(index)
        if is_directory(step.before):
            self._unlock(index, parent, name, step)
        if exchange(self._bench.fd, out, parent, name):
            self._deeds.add(Deed("swapped", index, step.path, out))
            return step if self._bench.holds(out, step.before) else self.give_back(index, step)
        out = old(index)
        take_out(parent, name, self._bench.fd, out)
        self._deeds.add(Deed("took", index, step.path, out))
        if not self._bench.holds(out, step.before):
            return self.give_back(index, step)
        if not self._put(index, parent, name, step):
            return self.note(index, step, APPEARED)
        return step

    def _unlock(self, index: int, parent: int, name: bytes, step: Step) -> None:
        """Let a directory be moved: its entry for the one above is written then."""
        try:
            fd = os.open(name, DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                return
            raise
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            if mode & 0o300 != 0o300:
                self._deeds.add(Deed("mode", index, step.path, mode=mode))
                os.fchmod(fd, mode | 0o700)
        finally:
            os.close(fd)

    def _delete(self, index: int, parent: int, name: bytes, step: Step) -> Step:
        if is_directory(step.before):
            mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno == errno.ENOTDIR:
                    return self.note(index, step, CHANGED)
                if error.errno not in NOT_EMPTY:
                    raise
                return replace(step, action="skip", reason="not empty")
            self._deeds.add(Deed("removed", index, step.path, mode=mode))
            return step
        take_out(parent, name, self._bench.fd, deleted(index))
        self._deeds.add(Deed("took", index, step.path, deleted(index)))
        if self._bench.holds(deleted(index), step.before):
            return step
        return self.give_back(index, step)

    def _chmod(self, index: int, parent: int, name: bytes, step: Step) -> Step:
        assert step.after is not None
        if step.after.kind != "file":
            return step
        with descriptor(name, FILE, dir_fd=parent) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return self.note(index, step, CHANGED)
            if status.st_nlink == 1:
                mode = stat.S_IMODE(status.st_mode)
                self._deeds.add(Deed("mode", index, step.path, mode=mode))
                os.fchmod(fd, step.after.mode)
                os.fsync(fd)
                return step
        # Its other names may be outside the workspace, and the mode is theirs too.
        if self.built({index: replace(step, action="write")}):
            return self.note(index, step, UNAVAILABLE)
        return self._swap(index, parent, name, step)

    def make_way(self, index: int, step: Step, parent: int, name: bytes) -> bool:
        """Take out what the plan says is at the name to move to; False if it is another."""
        if step.before is None or not same(describe(parent, name), step.before):
            return False
        self._directories.forget(step.path)
        return self._delete(index, parent, name, replace(step, after=None)).action == "move"

    def set_mode(self, path: bytes, mode: int) -> None:
        """Directories get their modes last: a read-only one could not be filled."""
        self.at = path
        try:
            fd = self._directories.at(path)
        except ABSENT:
            return
        now = stat.S_IMODE(os.fstat(fd).st_mode)
        if now != mode:
            self._deeds.add(Deed("mode", -1, path, mode=now))
            os.fchmod(fd, mode)
            os.fsync(fd)

    def give_back(self, index: int, step: Step) -> Step:
        """Undo one step, because what came out is not ours to remove."""
        self._deeds.undo_step(index, step)
        return self.note(index, step, CHANGED)
