"""The file of a JSONL log as a reader sees it: opened anew for each page, and still the same."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ...errors import Damaged, NotFound
from ..disk.fs import open_file

# Fewer bytes than stand before the data of a first line, which a purge may change.
_IDENTITY = 64

# Opening a FIFO would wait for somebody to write.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class LogFile:
    """A log's file for one read, opened anew for each page.

    `replaced` says that it was opened first, or is another file since a purge.
    """

    def __init__(self, path: str | Path) -> None:
        self.replaced = True
        self._path = path
        self._inode = 0
        self._begin = b""

    def open(self) -> tuple[int, int]:
        """A descriptor and the size; `NotFound` if the log was deleted since the first time."""
        try:
            fd = open_file(self._path, _OPEN)
        except FileNotFoundError:
            if self._inode:
                raise self._gone() from None
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Damaged(f"{self._path} is not a file: remove it")
            # A log made anew may get the inode of the old one. How it begins tells them apart.
            begin = os.pread(fd, _IDENTITY, 0)
            if not begin.startswith(self._begin):
                raise self._gone()
        except BaseException:
            os.close(fd)
            raise
        self.replaced = status.st_ino != self._inode
        self._inode, self._begin = status.st_ino, begin
        return fd, status.st_size

    def again(self) -> int | None:
        """A descriptor of the file that was opened last; None if it is not there any more."""
        try:
            fd = open_file(self._path, _OPEN)
        except OSError:
            return None
        try:
            if os.fstat(fd).st_ino == self._inode:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def _gone(self) -> NotFound:
        return NotFound(f"the log {self._path} was deleted during the read")
