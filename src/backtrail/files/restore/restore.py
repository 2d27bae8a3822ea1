"""Restoring: a plan is applied so that a crash at any moment leaves it undone, done, or
finishable, and so that nothing is lost that the store does not have.

Everything new is built first, on the workbench. Then the steps are taken: make way, swap
in, delete, set the modes of directories, sync. A step is taken only if its path is what
the plan says it was; one whose path is already as it shall be is done. So twice is the
same as once. What was swapped out stays on the workbench until all is done: after an error
it goes back, which needs no space. At the end it is looked at once more, as a program may have
been writing to it: what the store does not have is given back to its place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ...errors import StoreFailed, Unsafe
from ..beneath import (
    Directories,
    describe,
    exchange,
    is_one_file,
    put_in,
)
from ..names import shown
from ..trees import Get, alike, control_in
from .plan import Plan, Step
from .steps import CHANGED, UNAVAILABLE, Steps, StepTaker, Transfers, number
from .workbench import (
    ABSENT,
    Deeds,
    Unsynced,
    Workbench,
    is_directory,
    read_name,
    same,
)

_CONTROL = "version control's, which is never written"


class Restore:
    """One application of a plan, or the end of one that was cut short."""

    def __init__(self, root: int, id: str, get: Get) -> None:
        self._root = root
        self._directories = Directories(root)
        self._bench = Workbench(root, id)
        self._deeds = Deeds(self._directories, self._bench)
        self._steps = StepTaker(self._directories, self._bench, self._deeds, get)
        self._transfers = Transfers(self._directories, self._bench, self._deeds, finishing=False)
        self._checked: set[bytes] = set()

    def apply(self, plan: Plan) -> Plan:
        """Do what the plan says; the plan as it went, with what turned into conflicts.

        After an error what was done is taken back, and `StoreFailed` names the path. If
        that fails too, the error is a `HalfRestored`: the journal must stay. A path of version
        control is `Unsafe`, before anything is touched.
        """
        steps = {index: step for index, step in enumerate(plan.steps) if step.acts}
        for step in steps.values():
            if _is_refused(step):
                raise Unsafe(f"{shown(step.path)} is version control's: nothing was changed")
        try:
            try:
                self._begin(plan)
                if lacking := self._steps.built(steps):
                    raise self._unavailable(steps[lacking[0]])
                self._take_all(plan, steps)
                self._sync(steps)
            except OSError as error:
                self._take_back(plan, steps, error)
            except (ValueError, OverflowError) as error:
                # The system takes no such name, text or number.
                self._take_back(plan, steps, OSError(errno.EINVAL, str(error)))
            self._clear(plan)
        except OSError as error:
            if isinstance(error, StoreFailed):
                raise
            raise self._failed(error, HalfRestored) from error
        finally:
            self._close()
        return self._as_it_went(plan)

    def finish(self, plan: Plan) -> Plan:
        """Finish a plan that was cut short; any error is a `HalfRestored`.

        Where a content cannot be had any more, the path stays as it is; so does one of
        version control, whatever wrote the journal.
        """
        self._transfers = Transfers(self._directories, self._bench, self._deeds, finishing=True)
        steps = {index: step for index, step in enumerate(plan.steps) if step.acts}
        for index in [i for i, step in steps.items() if _is_refused(step)]:
            self._steps.note(index, steps.pop(index), _CONTROL)
        try:
            self._begin(plan)
            for name in self._bench.names():
                self._settle(plan, name)
            # Where something is to be moved away, what is there is not what shall come.
            left = {step.source for step in steps.values() if step.source}
            todo = {i: s for i, s in steps.items() if s.path in left or not self._is_done(s)}
            for index in self._steps.built(todo):
                self._steps.note(index, steps.pop(index), UNAVAILABLE)
            self._take_all(plan, steps)
            self._sync(steps)
            self._clear(plan)
        except OSError as error:
            raise self._failed(error, HalfRestored) from error
        finally:
            self._close()
        return self._as_it_went(plan)

    def give_up(self, plan: Plan) -> None:
        """Put back what a restore that is never finished took out of its place.

        What it had built goes; what it had put in place stays, as it may be in use.
        """
        try:
            self._bench.open()
            for name in self._bench.names():
                self._return(plan, name)
            self._bench.remove()
        except OSError as error:
            raise self._failed(error, HalfRestored) from error
        finally:
            self._close()

    def _return(self, plan: Plan, name: bytes) -> None:
        """Give back one thing, or remove it if it is one of ours, or its place is taken."""
        index, what = read_name(name)
        step = plan.steps[index] if 0 <= index < len(plan.steps) else None
        if step is not None and what == b"mov" and self._transfers.give_back(index, step):
            return
        built = step is not None and what == b"new" and self._bench.holds(name, step.after)
        if step is not None and what != b"part" and not built and not _is_refused(step):
            try:
                if put_in(self._bench.fd, name, *self._directories.parent(step.path)):
                    self._bench.drop(name)
                    return
            except ABSENT:
                pass
        self._drop(plan, name)

    def _close(self) -> None:
        self._directories.close()
        self._bench.close()

    def _failed(self, error: OSError, kind: type[StoreFailed]) -> StoreFailed:
        what = error.strerror or str(error)
        half = "; the next use of the workspace finishes it" if kind is HalfRestored else ""
        return kind(
            f"cannot restore {shown(self._steps.at) or 'the root'}: {what}{half}", errno=error.errno
        )

    def _unavailable(self, step: Step) -> StoreFailed:
        self._steps.at = step.path
        return StoreFailed(f"the content of {shown(step.path)} cannot be had", errno=errno.EIO)

    def _as_it_went(self, plan: Plan) -> Plan:
        return replace(
            plan, steps=[self._steps.went.get(i, step) for i, step in enumerate(plan.steps)]
        )

    # --- before and after ----------------------------------------------------------------

    def _begin(self, plan: Plan) -> None:
        """Open the workbench, and the directories that may not be written in."""
        self._bench.open()
        for path, mode in plan.opened:
            self._steps.set_mode(path, mode | 0o700)

    def _sync(self, steps: Steps) -> None:
        """Sync every directory in which a name changed."""
        names = {name for step in steps.values() for name in (step.path, step.source) if name}
        paths = sorted({name.rpartition(b"/")[0] for name in names})
        unsynced = Unsynced(self._root, len(paths))
        try:
            for path in paths:
                self._steps.at = path
                try:
                    unsynced.add(os.dup(self._directories.at(path)))
                except ABSENT:
                    continue
            unsynced.sync()
        finally:
            unsynced.close()

    def _clear(self, plan: Plan) -> None:
        """Remove the workbench. From here on nothing can be taken back."""
        for name in self._bench.names():
            self._drop(plan, name)
        self._bench.remove()

    def _drop(self, plan: Plan, name: bytes) -> None:
        """Remove what the store has; anything else goes back, or beside its place."""
        index, what = read_name(name)
        step = plan.steps[index] if 0 <= index < len(plan.steps) else None
        step = None if step is not None and _is_refused(step) else step
        self._steps.at = step.path if step is not None else name
        known = what == b"part" or name in self._checked
        known = known or (what != b"mov" and step is not None and self._bench.knows(name, step))
        if known and self._bench.drop(name):
            return
        parent, home = self._root, b"kept"
        if step is not None:
            home = step.path.rpartition(b"/")[2]
            try:
                parent = self._directories.parent(step.path)[0]
            except ABSENT:
                pass
        if is_one_file(self._bench.fd, name, parent, home):
            self._bench.drop(name)
            return
        place = self._put_beside(name, parent, home)
        if step is not None:
            there = "" if place == home else f": what was there is now {shown(place)}"
            self._steps.note(index, step, CHANGED + there)

    def _put_beside(self, name: bytes, parent: int, home: bytes) -> bytes:
        """Put something to its place or, if that is taken, beside it; the name it got."""
        beside = home[:200] + b".kept-" + self._bench.id[-12:]
        for place in (home, beside, *(b"%b-%d" % (beside, n) for n in range(2, 100))):
            if put_in(self._bench.fd, name, parent, place):
                return place
        raise FileExistsError(errno.EEXIST, "files are in the way", shown(beside))

    # --- moving what is not captured -----------------------------------------------------

    def _move_out(self, moves: Steps, steps: Steps) -> None:
        """Let everything leave that is moved, before anything else comes or goes."""
        made = {step.path: (index, step) for index, step in steps.items()}
        left = {step.source for step in moves.values()}
        for index, step in sorted(moves.items(), key=lambda item: item[1].path):
            if step.source:
                ready = self._is_ready(step, made, left)
                self._steps.at = step.source
                if reason := self._transfers.leave(index, step, ready=ready):
                    self._steps.note(index, step, reason)

    def _is_ready(self, move: Step, made: dict[bytes, tuple[int, Step]], left: set[bytes]) -> bool:
        """Whether the directories above a thing's new place are there, and stay; makes them."""
        parts = move.path.split(b"/")
        above = [b"/".join(parts[:depth]) for depth in range(1, len(parts))]
        steps = [made[path] for path in above if path in made and made[path][1].acts]
        for _, step in steps:
            from_directory = step.before is None or is_directory(step.before)
            if step.path in left or not (from_directory and is_directory(step.after)):
                return False
        for index, step in steps:
            self._steps.at = step.path
            if self._steps.take(index, step).action == "conflict":
                return False
        return True

    def _move_in(self, moves: Steps) -> None:
        """Give everything its name that had to wait for its place."""
        for index, step in sorted(moves.items(), key=lambda item: item[1].path):
            if step.source and index not in self._steps.went:
                self._steps.at = step.path
                make_way = partial(self._steps.make_way, index, step)
                if reason := self._transfers.arrive(index, step, make_way):
                    self._steps.note(index, step, reason)
        # Below a thing that came, a name is that thing's own, whatever left the place before.
        came = [s.path for n, s in moves.items() if s.source and n not in self._steps.went]
        for index, step in moves.items():
            is_new = any(step.path.startswith(path + b"/") for path in came)
            if not (step.source or is_new or self._transfers.is_left(step)):
                self._steps.note(index, step, "could not be moved")

    # --- taking steps --------------------------------------------------------------------

    def _take_all(self, plan: Plan, steps: Steps) -> None:
        moves = {index: step for index, step in steps.items() if step.action == "move"}
        self._move_out(moves, steps)
        for index, step in in_order(steps):
            if index not in moves:
                self._steps.at = step.path
                self._steps.went[index] = self._steps.take(index, step)
        self._move_in(moves)
        self._look_again(steps)
        for _, step in sorted(steps.items(), key=lambda item: item[1].path, reverse=True):
            if is_directory(step.after):
                assert step.after is not None
                self._steps.set_mode(step.path, step.after.mode)
        final = {step.path for step in steps.values() if is_directory(step.after)}
        for path, mode in plan.opened:
            if path not in final:
                self._steps.set_mode(path, mode)

    def _look_again(self, steps: Steps) -> None:
        """Give back what was written to after it was swapped out, or still writes to.

        In the place of a file there may be a directory by now, with things in it. Then the
        file stays on the workbench, and goes beside it in the end.
        """
        for deed in self._deeds.taken_out():
            step = steps[deed.index]
            self._steps.at = step.path
            if self._bench.knows(deed.name, step):
                self._checked.add(deed.name)
            elif not is_directory(step.after):
                self._steps.give_back(deed.index, step)

    # --- taking back ---------------------------------------------------------------------

    def _take_back(self, plan: Plan, steps: Steps, error: OSError) -> None:
        """Undo all that was done, and say which path failed."""
        failed = self._failed(error, StoreFailed)
        try:
            self._checked.clear()
            self._deeds.undo_all(steps)
            if self._bench.fd >= 0:
                self._sync(steps)
                self._clear(plan)
            else:
                self._bench.remove()
        except OSError as second:
            raise HalfRestored(
                f"{failed}; taking back what was done failed too ({second.strerror or second}): "
                "the next use of the workspace finishes it",
                errno=error.errno,
            ) from error
        raise failed from error

    # --- after a crash -------------------------------------------------------------------

    def _settle(self, plan: Plan, name: bytes) -> None:
        """Deal with what a restore that was cut short left on the workbench.

        What made way for nothing yet goes back. What a program was saving, caught by a swap
        before it could be looked at, changes places again with what is there now.
        """
        index, what = read_name(name)
        known = what != b"part" and 0 <= index < len(plan.steps)
        if known and what == b"mov":
            # It goes on to its place.
            return
        if known and not _is_refused(plan.steps[index]):
            step = plan.steps[index]
            self._steps.at = step.path
            try:
                parent, home = self._directories.parent(step.path)
                there = describe(parent, home)
                if what == b"old" and there is None:
                    if put_in(self._bench.fd, name, parent, home):
                        # Without the system's call it may still have its second name.
                        self._bench.drop(name)
                        return
                elif (
                    alike(there, step.after)
                    and not is_directory(there)
                    and not self._bench.knows(name, step)
                ):
                    exchange(self._bench.fd, name, parent, home)
            except ABSENT:
                pass
        self._drop(plan, name)

    def _is_done(self, step: Step) -> bool:
        self._steps.at = step.path
        if step.action == "move":
            return False
        try:
            parent, name = self._directories.parent(step.path)
        except ABSENT:
            return step.after is None
        return same(describe(parent, name), step.after)


def _is_refused(step: Step) -> bool:
    """Whether a step would write or remove what is version control's."""
    kept = any(entry is not None and entry.kept for entry in (step.before, step.after))
    return kept and control_in(step.path) is not None


class HalfRestored(StoreFailed):
    """A restore failed half-way and could not be taken back; its journal finishes it."""


def in_order(steps: Steps) -> Iterable[tuple[int, Step]]:
    """Make way first (deepest first), then what comes (parents first), then deletions."""
    items = sorted(steps.items(), key=lambda item: item[1].path)
    replaced = tuple(
        step.path + b"/" for _, step in items
        if is_directory(step.before) and step.after is not None and not is_directory(step.after)
    )  # fmt: skip
    gone = [item for item in reversed(items) if item[1].after is None]
    way = [item for item in gone if item[1].path.startswith(replaced)] if replaced else []
    first = {index for index, _ in way}
    come = [item for item in items if item[1].after is not None]
    return [*way, *come, *(item for item in gone if item[0] not in first)]


def identified(root: int, plan: Plan) -> Plan:
    """The plan with the numbers of what it moves: a recovery knows by them what has moved."""
    if not any(step.source for step in plan.steps):
        return plan
    with Directories(root) as directories:
        steps = [
            replace(step, inode=_number_at(directories, step.source)) if step.source else step
            for step in plan.steps
        ]
    return replace(plan, steps=steps)


def _number_at(directories: Directories, path: bytes) -> int:
    """The inode of what is at a path; one that nothing has where it is gone."""
    try:
        return number(*directories.parent(path)) or -1
    except ABSENT:
        return -1
