"""A first look at a workspace: which directories are as they were, with all that is in them.

Most scans find nothing else, so it does as little as it can. It only says what is as it was;
the rest is left to the scan proper, which finds out what happened.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .known import KnownDirectory
from .trail import DIRECTORY

_DEPTH = 30


class Glance:
    """One look at the known directories of one device. `seen` hears of files, if anybody."""

    def __init__(self, device: int, seen: Callable[[int], None] | None) -> None:
        self._device = device
        self._seen = seen
        # By identity; as long as they are kept here, nothing else can have that.
        self._calm: dict[int, KnownDirectory] = {}
        self._stirred: dict[int, tuple[KnownDirectory, list[bytes]]] = {}

    def is_calm(self, known: KnownDirectory) -> bool:
        """Whether a directory that was looked at is as it was, and all below it."""
        return id(known) in self._calm

    def stirred(self, known: KnownDirectory, fd: int) -> list[bytes]:
        """The files of an open directory that are not as they were, if it has the same names."""
        looked = self._stirred.get(id(known))
        return looked[1] if looked is not None else known.packed().stirred_in(fd)

    def look(self, fd: int, known: KnownDirectory, depth: int = 0) -> bool:
        """Look at an open directory and all below it; whether nothing changed."""
        status = os.fstat(fd)
        calm = known.is_as(status) and status.st_dev == self._device
        if calm:
            stirred = known.packed().stirred_in(fd)
            self._stirred[id(known)] = known, stirred
            calm = not stirred and known.digest != b""
        if self._seen is not None:
            self._seen(len(known.packed()) if calm else 0)
        for name, child in known.directories.items():
            if depth == _DEPTH or name in known.opaque:
                # What could not be entered is tried again.
                calm = False
                continue
            try:
                below = os.open(name, DIRECTORY, dir_fd=fd)
            except OSError:
                calm = False
                continue
            try:
                calm = self.look(below, child, depth + 1) and calm
            finally:
                os.close(below)
        if calm:
            self._calm[id(known)] = known
        return calm
