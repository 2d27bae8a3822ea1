"""Captured things that no call made: they came from where nothing is captured.

What is new in a workspace and older than the last look was moved there. If no captured thing
left with that number, it comes from an opaque folder, whose things nobody knows one by one, or
from outside. It is captured like others; but a way back must not leave it in the store alone,
so it is noted as a stranger. Where the system tells no times of birth, none is.
"""

from __future__ import annotations

import os
from collections import Counter

from .index import Index
from .known import KnownDirectory
from .roots import birth_at

_MOST = 10_000
"""How many strangers are remembered; the oldest are forgotten first."""


class Arrivals:
    """What came and what left in one scan."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._left: set[int] = set()
        self._came: dict[int, int] = {}

    def left(self, inode: int) -> None:
        """A captured file is not where it was."""
        self._left.add(inode)

    def left_all(self, known: KnownDirectory | None) -> None:
        """A captured directory is not where it was, with all in it."""
        todo = [known] if known is not None and self._index.looked else []
        while todo:
            one = todo.pop()
            self._left.add(one.inode)
            self._left.update(file.inode for file in one.files.values())
            todo += one.directories.values()

    def came(self, fd: int, name: bytes, status: os.stat_result) -> None:
        """A file is new at a name of an open directory.

        One with a second name is there, too, when this one goes.
        """
        born = birth_at(fd, name) if status.st_nlink == 1 else 0
        if 0 < born < self._index.looked:
            self._came[status.st_ino] = born

    def settle(self, *, partly: bool) -> None:
        """Note what came, and left no captured place.

        Where only some paths were looked at, what left is still known at its old place.
        """
        if partly and self._came:
            files = [file for one in self._index.directories() for file in one.files.values()]
            known = Counter(file.inode for file in files)
            self._left.update(inode for inode in self._came if known[inode] > 1)
        strangers = self._index.strangers
        for inode, born in self._came.items():
            if inode not in self._left and strangers.get(inode) != born:
                strangers[inode] = born
                self._index.changed = True
        while len(strangers) > _MOST:
            del strangers[next(iter(strangers))]
