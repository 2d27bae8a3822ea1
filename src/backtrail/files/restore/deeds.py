"""What a restore did to the workspace, change by change, and how to take it back.

Names move back and modes are set again; nothing is written. What somebody else changed
since is left to them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..beneath import FILE, Directories, alike, describe, exchange, put_in, take_out
from ..trees import Entry
from .plan import Step
from .workbench import Workbench

ABSENT = (FileNotFoundError, NotADirectoryError)
"""The errors of a path whose directory is not there."""

NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
"""How systems say that a directory has something in it."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One change. `put` and `took` moved a thing from or to `name` on the workbench,
    `swapped` did both; `removed` and `mode` tell the mode that was there; `moved` brought
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
        """Take out what was put in, unless somebody changed it since."""
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
