"""Which thing it is that is not captured, so that it is known again under another name.

Opaque and left-out entries have an identity in the local index: inode and time of birth. An
inode alone is given again at once, so without a time of birth a listing must agree. What
moved is told in trees by its reason, which names where it first was; the identity never is
in a tree.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

import msgspec

from ..hashing import sha256
from .beneath import Directories
from .roots import identity_at
from .trees import Entry

_FROM = b", moved from "
_LONGEST = 60_000


class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing: its identity, where it first was, and why it is not captured.

    `listing` is what is in it, kept only where its birth is not known.
    """

    inode: int
    born: int
    listing: bytes
    origin: bytes
    reason: bytes

    def is_same(self, other: Mark) -> bool:
        """Whether both are one thing; False in doubt."""
        if self.inode != other.inode:
            return False
        if self.born and other.born:
            return self.born == other.born
        return self.listing != b"" and self.listing == other.listing

    def reason_at(self, path: bytes) -> bytes:
        """The reason a tree gives for it at a path."""
        if path == self.origin or len(self.origin) > _LONGEST:
            return self.reason
        return self.reason + _FROM + self.origin


Marks = dict[bytes, dict[bytes, Mark]]
"""What is not captured, by directory and name."""


def plain(reason: bytes) -> bytes:
    """A reason without where the thing came from."""
    return reason.partition(_FROM)[0]


def thing_at(path: bytes, entry: Entry) -> bytes:
    """Where the thing that an entry tells of first was."""
    return entry.value.partition(_FROM)[2] or path


class Sightings:
    """The things known before a scan, and whether what it meets is one of them."""

    def __init__(self, marks: Mapping[bytes, Mapping[bytes, Mark]], root: int) -> None:
        self._root = root
        self._known: dict[int, list[tuple[bytes, Mark]]] = {}
        for where, names in marks.items():
            for name, mark in names.items():
                path = where + b"/" + name if where else name
                self._known.setdefault(mark.inode, []).append((path, mark))

    def may_be(self, inode: int) -> bool:
        """Whether a thing of this number was known."""
        return inode in self._known

    def known(self, fd: int, name: bytes, path: bytes) -> Mark | None:
        """The thing at a name of an open directory, if it was known here or is gone elsewhere."""
        seen = _seen(fd, name, path, b"")
        return None if seen is None else self._recognized(seen, path)

    def mark(self, fd: int, name: bytes, path: bytes, reason: bytes) -> Mark | None:
        """The thing at a name, which is not captured; None if it is gone."""
        seen = _seen(fd, name, path, reason)
        old = None if seen is None else self._recognized(seen, path)
        if seen is None or old is None:
            return seen
        return Mark(seen.inode, seen.born, seen.listing, old.origin, reason)

    def _recognized(self, seen: Mark, path: bytes) -> Mark | None:
        for where, mark in self._known.get(seen.inode, ()):
            if mark.is_same(seen) and (where == path or self._is_gone(where, seen.inode)):
                return mark
        return None

    def _is_gone(self, path: bytes, inode: int) -> bool:
        """Whether a thing has left its path; a second name of a file does not mean that."""
        directories = Directories(self._root)
        try:
            parent, name = directories.parent(path)
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino != inode
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        finally:
            directories.close()


def _seen(fd: int, name: bytes, path: bytes, reason: bytes) -> Mark | None:
    found = identity_at(fd, name)
    if found is None:
        return None
    listing = b"" if found.born else _listing(fd, name)
    return Mark(found.inode, found.born, listing, path, reason)


def _listing(fd: int, name: bytes) -> bytes:
    """What tells a thing from another with its number; empty if nothing does."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            try:
                names: Iterable[str] = sorted(os.listdir(below))
            finally:
                os.close(below)
            text = "/".join(names)
        else:
            text = f"{status.st_size} {status.st_mtime_ns}" if status.st_size else ""
    except OSError:
        return b""
    return sha256(os.fsencode(text)).digest() if text else b""
