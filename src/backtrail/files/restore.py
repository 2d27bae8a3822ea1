"""Restoring: a plan is applied so that a crash at any moment leaves it undone, done, or
finishable, and so that nothing is lost that the store does not have.

Order: build everything new beside its place; make way; swap in; delete; set the modes of
directories; sync. Every step is taken only if its path still is what the plan says it was.
Twice is the same as once: a step whose path is as it should be is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import StoreFailed
from .beneath import FILE, Directories, alike, build, describe, put_new, remove, swap
from .ignore import RESERVED
from .plan import Plan, Step
from .trees import Get, shown

Keep = Callable[[int, bytes], None]
"""Stores what is at a name before it is removed, whatever it is."""


@dataclass(slots=True)
class Restore:
    """One application of a plan, or the end of one that was cut short."""

    root: int
    id: str
    get: Get
    keep: Keep

    def apply(self, plan: Plan) -> Plan:
        """Do what the plan says; the plan as it went, with what turned into conflicts."""
        directories = Directories(self.root)
        steps = {index: step for index, step in enumerate(plan.steps) if step.acts}
        done: dict[int, Step] = {}
        at = b""
        try:
            for index, step in steps.items():
                at = step.path
                self._build(directories, index, step, steps)
            for index, step in self._order(steps):
                at = step.path
                done[index] = self._take(directories, index, step, steps)
            for index, step in reversed(list(steps.items())):
                at = step.path
                if done[index].acts:
                    self._set_mode(directories, step)
            directories.sync()
        except OSError as error:
            self._sweep(directories, steps)
            raise StoreFailed(
                f"cannot restore {shown(at)}: {error.strerror or error}", errno=error.errno
            ) from error
        finally:
            directories.close()
        return replace(plan, steps=[done.get(i, step) for i, step in enumerate(plan.steps)])

    def finish(self, plan: Plan) -> Plan:
        """Finish a plan that was cut short: look after what lies around, then apply it."""
        directories = Directories(self.root)
        try:
            for index, step in enumerate(plan.steps):
                if step.acts:
                    self._settle(directories, index, step)
        finally:
            directories.close()
        return self.apply(plan)

    # --- steps ---------------------------------------------------------------------------

    def _order(self, steps: dict[int, Step]) -> list[tuple[int, Step]]:
        """Make way first (deepest first), then what comes (parents first), then deletions."""
        replaced = {
            step.path
            for step in steps.values()
            if step.before and step.before.kind == "directory" and step.after
            and step.after.kind != "directory"
        }  # fmt: skip
        items = sorted(steps.items(), key=lambda item: item[1].path)
        gone = [item for item in reversed(items) if item[1].after is None]
        way = [item for item in gone if any(item[1].path.startswith(r + b"/") for r in replaced)]
        come = [item for item in items if item[1].after is not None]
        return [*way, *come, *(item for item in gone if item not in way)]

    def _name(self, index: int) -> bytes:
        return RESERVED + f"{self.id}-{index}".encode()

    def _home(self, directories: Directories, path: bytes) -> int:
        """The nearest directory above `path` that is there: new things are built in it."""
        above = path.rpartition(b"/")[0]
        while above:
            try:
                return directories.at(above)
            except OSError:
                above = above.rpartition(b"/")[0]
        return self.root

    def _build(
        self, directories: Directories, index: int, step: Step, steps: dict[int, Step]
    ) -> None:
        wanted = step.after
        if wanted is None or step.action == "chmod":
            return
        home = self._home(directories, step.path)
        if wanted.kind == "file":
            build(home, self._name(index), wanted, self.get(wanted.value))
        else:
            build(home, self._name(index), wanted, b"")

    def _take(
        self, directories: Directories, index: int, step: Step, steps: dict[int, Step]
    ) -> Step:
        """Take one step; the step as it went."""
        home = self._home(directories, step.path)
        built = self._name(index)
        try:
            parent, name = directories.parent(step.path)
            there = describe(parent, name)
        except (FileNotFoundError, NotADirectoryError) as error:
            remove(home, built)
            if step.after is None:
                return step
            return _conflict(step, f"its directory is gone: {error.strerror}")
        if alike(there, step.after):
            remove(home, built)
            return step
        if not alike(there, step.before):
            remove(home, built)
            return _conflict(step, "changed during the restore")
        if step.action == "chmod":
            return step if self._chmod(parent, name, step) else _conflict(step, "changed")
        if step.after is None:
            return self._delete(directories, parent, name, built, step)
        directories.forget(step.path)
        if step.before is None:
            if put_new(home, built, parent, name):
                return step
            remove(home, built)
            return _conflict(step, "appeared during the restore")
        out = swap(home, built, parent, name, built + b"-old")
        if alike(describe(home, out), step.before):
            remove(home, out)
            return step
        back = swap(home, out, parent, name, built + b"-new")
        remove(home, back)
        return _conflict(step, "changed during the restore")

    def _delete(
        self, directories: Directories, parent: int, name: bytes, aside: bytes, step: Step
    ) -> Step:
        if step.before is not None and step.before.kind == "directory":
            directories.forget(step.path)
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                return replace(step, action="skip", reason="not empty")
            return step
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
        if alike(describe(parent, aside), step.before):
            os.unlink(aside, dir_fd=parent)
            return step
        if not put_new(parent, aside, parent, name):
            self.keep(parent, aside)
            remove(parent, aside)
        return _conflict(step, "changed during the restore")

    def _chmod(self, parent: int, name: bytes, step: Step) -> bool:
        assert step.after is not None
        if step.after.kind == "directory":
            return True
        fd = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent
        )
        try:
            os.fchmod(fd, step.after.mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        return True

    def _set_mode(self, directories: Directories, step: Step) -> None:
        """Directories get their modes last: a read-only one could not be filled."""
        if step.after is None or step.after.kind != "directory":
            return
        fd = directories.at(step.path)
        os.fchmod(fd, step.after.mode)
        os.fsync(fd)

    # --- after a crash -------------------------------------------------------------------

    def _settle(self, directories: Directories, index: int, step: Step) -> None:
        """Deal with what a cut-short step left under its reserved names.

        What stands at the path decides: the old thing there means that the reserved name
        holds a new one, whole or not, which is built again. Anything else that the store
        does not have is stored before it goes.
        """
        home = self._home(directories, step.path)
        try:
            parent, name = directories.parent(step.path)
            there = describe(parent, name)
        except OSError:
            parent, name, there = home, b"", None
        for left in (self._name(index), self._name(index) + b"-old", self._name(index) + b"-new"):
            for place in {home, parent}:
                found = describe(place, left)
                if found is None:
                    continue
                known = alike(found, step.before) or alike(found, step.after)
                # It was taken out and is not what goes in: back to its place.
                taken_out = there is None and step.before is not None and name
                if taken_out and not alike(found, step.after) and put_new(place, left, parent, name):
                    continue
                if not known and not alike(there, step.before):
                    self.keep(place, left)
                remove(place, left)

    def _sweep(self, directories: Directories, steps: dict[int, Step]) -> None:
        """After an error: remove what was built and is not needed, as far as that works."""
        for index, step in steps.items():
            try:
                home = self._home(directories, step.path)
                if alike(describe(home, self._name(index)), step.after):
                    remove(home, self._name(index))
            except OSError:
                continue


def _conflict(step: Step, reason: str) -> Step:
    return replace(step, action="conflict", reason=reason)
