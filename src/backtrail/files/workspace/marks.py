"""Which thing it is that is not captured, so that it is known again under another name.

Opaque and left-out entries have an identity in the local index: inode and time of birth. An
inode alone is given again at once, so without a time of birth a listing must agree. What
moved is marked in trees by its reason, which names where it first was; the identity never is
in a tree.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from ..._startup.hashing import sha256
from ..beneath import Directories, descriptor
from ..names import control_in
from ..trees import MOVED_FROM, Entry
from .roots import identity_at

_LONGEST = 60_000
_NUMBERED = rb" \(\d+\)\Z"


class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing: its identity, where it first was, and why it was not captured there.

    `listing` is what is in it, kept only where its birth is not known. `control` says that it
    was seen at a name of version control. `number` distinguishes it from others that first were
    there, too: two or more, if there was another.
    """

    inode: int
    born: int
    listing: bytes
    origin: bytes
    reason: bytes
    control: bool = False
    number: int = 0

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
        return (
            self.reason
            + MOVED_FROM
            + self.origin
            + (b" (%d)" % self.number if self.number else b"")
        )


Marks = dict[bytes, dict[bytes, Mark]]
"""What is not captured, by directory and name."""

Sighting = tuple[bytes, Mark]
"""A thing, and the path at which it was seen."""


def plain(reason: bytes) -> bytes:
    """A reason without where the thing came from."""
    return reason.partition(MOVED_FROM)[0]


def thing_at(path: bytes, entry: Entry) -> bytes:
    """Which thing an entry is for: where it first was, and its number if it was not alone."""
    return entry.value.partition(MOVED_FROM)[2] or path


def origin_of(thing: bytes) -> bytes:
    """Where a thing first was."""
    return re.sub(_NUMBERED, b"", thing)


class Sightings:
    """The things known before a scan, and whether what it meets is one of them."""

    def __init__(self, marks: Mapping[bytes, Mapping[bytes, Mark]], root: int) -> None:
        self._root = root
        self._known: dict[int, list[Sighting]] = {}
        self._numbers: dict[bytes, int] = {}
        for where, names in marks.items():
            for name, mark in names.items():
                path = where + b"/" + name if where else name
                self._known.setdefault(mark.inode, []).append((path, mark))
                highest = self._numbers.get(mark.origin, 1)
                self._numbers[mark.origin] = max(highest, mark.number)

    def may_be(self, inode: int) -> bool:
        """Whether a thing of this number was known."""
        return inode in self._known

    def known(self, fd: int, name: bytes, path: bytes) -> Sighting | None:
        """The thing at a name of an open directory, if it was known here or is gone elsewhere.

        With it goes the path where it was seen last.
        """
        seen = _seen(fd, name, path, b"")
        return None if seen is None else self._recognized(seen, path)

    def mark(self, fd: int, name: bytes, path: bytes, reason: bytes) -> Mark | None:
        """The thing at a name, which is not captured; None if it is gone."""
        seen = _seen(fd, name, path, reason)
        old = None if seen is None else self._recognized(seen, path)
        if seen is None:
            return None
        if old is None:
            return replace(seen, number=self._next(path))
        first = old[1]
        why = reason if path == first.origin else first.reason
        return replace(
            first, listing=seen.listing, reason=why, control=seen.control or first.control
        )

    def _next(self, origin: bytes) -> int:
        """A number for a new thing; none for the first of a place."""
        if origin not in self._numbers:
            self._numbers[origin] = 1
            return 0
        self._numbers[origin] += 1
        return self._numbers[origin]

    def _recognized(self, seen: Mark, path: bytes) -> Sighting | None:
        for where, mark in self._known.get(seen.inode, ()):
            if mark.is_same(seen) and (where == path or self._is_gone(where, seen.inode)):
                return where, mark
        return None

    def _is_gone(self, path: bytes, inode: int) -> bool:
        """Whether a thing has left its path; a second name of a file does not mean that."""
        try:
            with Directories(self._root) as directories:
                parent, name = directories.parent(path)
                return os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino != inode
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False


def _seen(fd: int, name: bytes, path: bytes, reason: bytes) -> Mark | None:
    found = identity_at(fd, name)
    if found is None:
        return None
    listing = b"" if found.born else _listing(fd, name)
    return Mark(found.inode, found.born, listing, path, reason, control_in(path) is not None)


def _listing(fd: int, name: bytes) -> bytes:
    """What distinguishes a thing from another with its number; empty if nothing does."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            with descriptor(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd) as below:
                names: Iterable[str] = sorted(os.listdir(below))
            text = "/".join(names)
        else:
            text = f"{status.st_size} {status.st_mtime_ns}" if status.st_size else ""
    except OSError:
        return b""
    return sha256(os.fsencode(text)).digest() if text else b""
