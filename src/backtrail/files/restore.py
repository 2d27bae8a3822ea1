"""Restoring: a plan is applied so that a crash at any moment leaves it undone, done, or
finishable, and so that nothing is lost that the store does not have.

Everything new is built first, in one reserved directory of the root that scans do not see.
Then the steps are taken: make way, swap in, delete, set the modes of directories, sync. A
step is taken only if its path is what the plan says it was; one whose path is already as
it shall be is done. So twice is the same as once. What was swapped out stays in the
reserved directory until all is done: after an error it goes back, which needs no space.

There, step `i` uses four names: `i.part` is being built, `i.new` is whole (or, after the
swap, what was swapped out), `i.old` and `i.del` were moved out of the way. `finish` reads
from them where a restore was cut short.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ..errors import BacktrailError, StoreFailed
from .beneath import (
    DIRECTORY,
    FILE,
    Directories,
    alike,
    describe,
    exchange,
    move,
    remove,
    write_file,
)
from .ignore import RESERVED
from .names import shown
from .plan import Plan, Step
from .trees import Entry, Get

_SYNC_THREADS = 8


class Restore:
    """One application of a plan, or the end of one that was cut short."""

    def __init__(self, root: int, id: str, get: Get) -> None:
        self._root = root
        self._name = RESERVED + id.encode()
        self._get = get
        self._directories = Directories(root)
        self._bench = -1
        self._at = b""
        self._begun: list[tuple[int, Step]] = []

    def apply(self, plan: Plan) -> Plan:
        """Do what the plan says; the plan as it went, with what turned into conflicts.

        After an error what was done is taken back, and `StoreFailed` names the path. If
        that fails too, the error is a `HalfRestored`: the journal must stay.
        """
        steps = {index: step for index, step in enumerate(plan.steps) if step.acts}
        done: dict[int, Step] = {}
        try:
            try:
                self._begin(plan)
                self._build(steps)
                self._take_all(plan, steps, done)
                self._end(steps)
            except OSError as error:
                if isinstance(error, BacktrailError):
                    raise
                self._take_back(plan, error)
        finally:
            self.close()
        return replace(plan, steps=[done.get(i, step) for i, step in enumerate(plan.steps)])

    def finish(self, plan: Plan) -> Plan:
        """Finish a plan that was cut short: look after what lies around, then apply it."""
        try:
            self._begin(plan)
            for index, step in enumerate(plan.steps):
                self._at = step.path
                self._settle(index, step)
        except OSError as error:
            self.close()
            if isinstance(error, BacktrailError):
                raise
            raise self._failed(error, HalfRestored) from error
        return self.apply(plan)

    def close(self) -> None:
        """Close every directory but the root."""
        self._directories.close()
        if self._bench >= 0:
            os.close(self._bench)
            self._bench = -1

    def _failed(self, error: OSError, kind: type[StoreFailed] = StoreFailed) -> StoreFailed:
        what = error.strerror or str(error)
        return kind(f"cannot restore {shown(self._at) or 'the root'}: {what}", errno=error.errno)

    # --- before and after ----------------------------------------------------------------

    def _begin(self, plan: Plan) -> None:
        """Open the reserved directory, and the directories that nobody may write in."""
        if self._bench < 0:
            try:
                os.mkdir(self._name, 0o700, dir_fd=self._root)
            except FileExistsError:
                pass
            self._bench = os.open(self._name, DIRECTORY, dir_fd=self._root)
        for path, mode in plan.opened:
            self._at = path
            try:
                os.fchmod(self._directories.at(path), mode | 0o700)
            except (FileNotFoundError, NotADirectoryError):
                continue

    def _end(self, steps: dict[int, Step]) -> None:
        """Sync every directory in which a name changed, and drop the reserved one."""
        touched = {step.path.rpartition(b"/")[0] for step in steps.values()}
        for path in touched:
            self._at = path
            try:
                os.fsync(self._directories.at(path))
            except (FileNotFoundError, NotADirectoryError):
                continue
        self._drop_bench()
        os.fsync(self._root)

    def _drop_bench(self) -> None:
        for name in os.listdir(self._bench):
            if not self._remove(os.fsencode(name)):
                # A directory that was swapped out empty, and filled since by who was in it.
                kept = b"kept-%b-%b" % (self._name[len(RESERVED) :], os.fsencode(name))
                move(self._bench, os.fsencode(name), self._root, kept)
        os.rmdir(self._name, dir_fd=self._root)

    def _remove(self, name: bytes) -> bool:
        """Remove something from the reserved directory; False if it is not empty."""
        try:
            remove(self._bench, name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    # --- building ------------------------------------------------------------------------

    def _build(self, steps: dict[int, Step]) -> None:
        """Build everything new and sync it, before any name in the workspace changes."""
        files: list[tuple[int, int]] = []
        try:
            for index, step in steps.items():
                self._at = step.path
                wanted = step.after
                if wanted is None or step.action == "chmod":
                    continue
                self._remove(_part(index))
                if wanted.kind == "link":
                    os.symlink(wanted.value, _part(index), dir_fd=self._bench)
                elif wanted.kind == "directory":
                    os.mkdir(_part(index), 0o700, dir_fd=self._bench)
                else:
                    content = self._get(wanted.value)
                    fd = write_file(self._bench, _part(index), content, wanted.mode)
                    files.append((index, fd))
                    if len(files) >= 64:
                        _sync_all(files)
            _sync_all(files)
        finally:
            for _, fd in files:
                os.close(fd)
        for index, step in steps.items():
            if step.after is not None and step.action != "chmod":
                self._remove(_new(index))
                os.rename(_part(index), _new(index), src_dir_fd=self._bench, dst_dir_fd=self._bench)
        os.fsync(self._bench)

    # --- taking steps --------------------------------------------------------------------

    def _take_all(self, plan: Plan, steps: dict[int, Step], done: dict[int, Step]) -> None:
        for index, step in in_order(steps):
            self._at = step.path
            self._begun.append((index, step))
            done[index] = self._take(index, step)
        for _, step in sorted(steps.items(), key=lambda item: item[1].path, reverse=True):
            self._at = step.path
            if step.after is not None and step.after.kind == "directory":
                self._set_mode(step.path, step.after.mode)
        final = {step.path for step in steps.values()}
        for path, mode in plan.opened:
            if path not in final:
                self._at = path
                self._set_mode(path, mode)

    def _take(self, index: int, step: Step) -> Step:
        """Take one step; the step as it went."""
        try:
            parent, name = self._directories.parent(step.path)
            there = describe(parent, name)
        except (FileNotFoundError, NotADirectoryError):
            if step.after is None:
                return step
            return _conflict(step, "the directory it belongs in is not there")
        if alike(there, step.after) or (_is_directory(there) and _is_directory(step.after)):
            return step
        if not (alike(there, step.before) or (_is_directory(there) and _is_directory(step.before))):
            return _conflict(step, "changed during the restore")
        if step.action == "chmod":
            return self._chmod(index, parent, name, step)
        if step.after is None:
            return self._delete(index, parent, name, step)
        self._directories.forget(step.path)
        if step.before is None:
            free = move(self._bench, _new(index), parent, name)
            return step if free else _conflict(step, "appeared during the restore")
        return self._swap(index, parent, name, step)

    def _swap(self, index: int, parent: int, name: bytes, step: Step) -> Step:
        if exchange(self._bench, _new(index), parent, name):
            out = _new(index)
        else:
            out = _old(index)
            if not move(parent, name, self._bench, out):
                raise FileExistsError(17, "a file is in the way", shown(out))
            if not move(self._bench, _new(index), parent, name):
                # Somebody put a new thing there: both stay.
                return self._put_back(out, parent, name, step)
        if self._came_out(out, step.before):
            return step
        if out == _new(index):
            exchange(self._bench, out, parent, name)
            return _conflict(step, "changed during the restore")
        move(parent, name, self._bench, _new(index))
        return self._put_back(out, parent, name, step)

    def _came_out(self, name: bytes, expected: Entry | None) -> bool:
        """Whether what is in the reserved directory is what the plan said, and empty if a
        directory."""
        found = describe(self._bench, name)
        if not _is_directory(found) or not _is_directory(expected):
            return alike(found, expected)
        fd = os.open(name, DIRECTORY, dir_fd=self._bench)
        try:
            return not os.listdir(fd)
        finally:
            os.close(fd)

    def _put_back(self, name: bytes, parent: int, home: bytes, step: Step) -> Step:
        """Put something that is not ours to remove back, or beside its place."""
        if move(self._bench, name, parent, home):
            return _conflict(step, "changed during the restore")
        beside = home[:200] + b".kept-" + self._name[len(RESERVED) :][-12:]
        if not move(self._bench, name, parent, beside):
            raise FileExistsError(17, "two files are in the way", shown(beside))
        return _conflict(step, f"changed during the restore: what was there is now {shown(beside)}")

    def _delete(self, index: int, parent: int, name: bytes, step: Step) -> Step:
        self._directories.forget(step.path)
        if step.before is not None and step.before.kind == "directory":
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                return replace(step, action="skip", reason="not empty")
            return step
        if not move(parent, name, self._bench, _del(index)):
            raise FileExistsError(17, "a file is in the way", shown(_del(index)))
        if alike(describe(self._bench, _del(index)), step.before):
            return step
        return self._put_back(_del(index), parent, name, step)

    def _chmod(self, index: int, parent: int, name: bytes, step: Step) -> Step:
        assert step.after is not None
        if step.after.kind != "file":
            return step
        fd = os.open(name, FILE, dir_fd=parent)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return _conflict(step, "changed during the restore")
            if status.st_nlink == 1:
                os.fchmod(fd, step.after.mode)
                os.fsync(fd)
                return step
        finally:
            os.close(fd)
        # Its other names may be outside the workspace, and the mode is theirs too.
        content = self._get(step.after.value)
        self._remove(_new(index))
        file = write_file(self._bench, _new(index), content, step.after.mode)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        return self._swap(index, parent, name, step)

    def _set_mode(self, path: bytes, mode: int) -> None:
        """Directories get their modes last: a read-only one could not be filled."""
        try:
            fd = self._directories.at(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)
            os.fsync(fd)

    # --- after an error ------------------------------------------------------------------

    def _take_back(self, plan: Plan, error: OSError) -> None:
        """Undo the steps that were begun, and say which path failed."""
        failed = self._failed(error)
        try:
            for index, step in reversed(self._begun):
                self._undo(index, step)
            for _, step in self._begun:
                if step.before is not None and step.before.kind == "directory":
                    self._set_mode(step.path, step.before.mode)
            for path, mode in plan.opened:
                self._set_mode(path, mode)
            if self._bench >= 0:
                self._end(dict(self._begun))
        except OSError as second:
            raise HalfRestored(
                f"{failed}; taking back what was done failed too ({second.strerror or second}): "
                "the next use of the workspace finishes it",
                errno=error.errno,
            ) from error
        raise failed from error

    def _undo(self, index: int, step: Step) -> None:
        """Take one step back: names move back, nothing is written."""
        try:
            parent, name = self._directories.parent(step.path)
            there = describe(parent, name)
        except (FileNotFoundError, NotADirectoryError):
            return
        self._directories.forget(step.path)
        if step.action == "chmod" and describe(self._bench, _new(index)) is None:
            if step.before is not None and step.before.kind == "file":
                self._chmod(index, parent, name, inverse(step))
        elif step.after is None:
            if there is None and not move_if_there(self._bench, _del(index), parent, name):
                os.mkdir(name, 0o700, dir_fd=parent)
        elif not (alike(there, step.after) or (_is_directory(there) and _is_directory(step.after))):
            if there is None:
                move_if_there(self._bench, _old(index), parent, name)
        elif step.before is None:
            self._remove(_new(index))
            move(parent, name, self._bench, _new(index))
        elif _is_there(self._bench, _old(index)):
            self._remove(_new(index))
            move(parent, name, self._bench, _new(index))
            move(self._bench, _old(index), parent, name)
        elif self._came_out(_new(index), step.before):
            exchange(self._bench, _new(index), parent, name)

    # --- after a crash -------------------------------------------------------------------

    def _settle(self, index: int, step: Step) -> None:
        """Deal with what a cut-short step left in the reserved directory.

        What is known, from the plan, goes: the store has it. Anything else was somebody's
        work, caught by a swap before it could be looked at: it goes back.
        """
        self._remove(_part(index))
        for name in (_old(index), _del(index), _new(index)):
            found = describe(self._bench, name)
            if found is None:
                continue
            try:
                parent, home = self._directories.parent(step.path)
                there = describe(parent, home)
                if name == _old(index) and there is None and move(self._bench, name, parent, home):
                    continue
            except (FileNotFoundError, NotADirectoryError):
                parent, home, there = self._root, step.path.rpartition(b"/")[2], None
            if self._is_known(name, found, step) or (
                alike(there, step.after) and exchange(self._bench, name, parent, home)
            ):
                self._remove(name)
            else:
                self._put_back(name, parent, home, step)

    def _is_known(self, name: bytes, found: Entry, step: Step) -> bool:
        if _is_directory(found):
            return self._came_out(name, found)
        return alike(found, step.before) or alike(found, step.after)


class HalfRestored(StoreFailed):
    """A restore failed half-way and could not be taken back; its journal finishes it."""


def in_order(steps: dict[int, Step]) -> Iterable[tuple[int, Step]]:
    """Make way first (deepest first), then what comes (parents first), then deletions."""
    items = sorted(steps.items(), key=lambda item: item[1].path)
    replaced = tuple(
        step.path + b"/" for _, step in items
        if _is_directory(step.before) and step.after is not None and not _is_directory(step.after)
    )  # fmt: skip
    gone = [item for item in reversed(items) if item[1].after is None]
    way = [item for item in gone if item[1].path.startswith(replaced)] if replaced else []
    first = {index for index, _ in way}
    come = [item for item in items if item[1].after is not None]
    return [*way, *come, *(item for item in gone if item[0] not in first)]


def inverse(step: Step) -> Step:
    """The step that takes a step back."""
    return replace(
        step, before=step.after, after=step.before,
        action="chmod" if step.action == "chmod" else "write",
    )  # fmt: skip


def move_if_there(source: int, name: bytes, target: int, new: bytes) -> bool:
    """`move`, where there may be nothing to move."""
    return _is_there(source, name) and move(source, name, target, new)


def _conflict(step: Step, reason: str) -> Step:
    return replace(step, action="conflict", reason=reason)


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "directory"


def _is_there(fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _part(index: int) -> bytes:
    return b"%d.part" % index


def _new(index: int) -> bytes:
    return b"%d.new" % index


def _old(index: int) -> bytes:
    return b"%d.old" % index


def _del(index: int) -> bytes:
    return b"%d.del" % index


def _sync_all(files: list[tuple[int, int]]) -> None:
    """Sync and close files; together, because the disk then writes its journal once."""
    if len(files) > 2:
        with ThreadPoolExecutor(min(_SYNC_THREADS, len(files))) as pool:
            list(pool.map(os.fsync, [fd for _, fd in files]))
    else:
        for _, fd in files:
            os.fsync(fd)
    while files:
        os.close(files.pop()[1])
