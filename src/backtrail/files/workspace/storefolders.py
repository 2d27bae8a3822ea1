"""Which names in a directory are a store's of ours, judged by what is there.

A name alone proves nothing: an agent can make a marker or a lock file in a moment, and a cloned
project may bring one. So a store is one by its marker and its layout, a database by what is
written in it. Whatever was captured before stays captured, a store or not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from itertools import islice

from ...stores.disk import fs, identity
from ..control import MARKER, is_marker

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_APPLICATION = 68
_OURS = b"Bkt"
"""How the application ids of our databases begin."""

_LOOKS = 64
"""How many sessions are looked at: a store may have very many."""

_FAMILY = ("", "-lock", "-wal", "-shm", "-leases", "-files", "-retention", "-retention.log")

Captured = Callable[[bytes], bool]
"""Whether a name in the directory was captured before."""


def stores_among(
    fd: int, names: Collection[bytes], captured: Captured = lambda name: False, *, own: bool = False
) -> set[bytes]:
    """Names in an open directory that belong to stores of ours and were never captured.

    With `own` the directory is known to be a store's, and all that it has of a store's names is
    left out. Else that takes a marker and the layout of a store. A database of ours with a lock
    file of its name beside it goes with all that lies beside it.
    """
    found: set[bytes] = set()
    if own or MARKER in names:
        texts = {*map(os.fsdecode, names)}
        is_store = "sessions" in texts and (own or _has_sessions(fd))
        is_depot = "blobs.db" in texts and (own or _is_database(fd, b"blobs.db"))
        parts = map(os.fsencode, fs.parts_among(texts, store=is_store, depot=is_depot))
        found.update(name for name in parts if own or is_marker(name) or not captured(name))
    for lock in names:
        base = lock.removesuffix(b"-lock")
        if base == lock or base not in names or captured(base) or not _is_database(fd, base):
            continue
        family = {base + end.encode() for end in _FAMILY}
        found.update(name for name in family.intersection(names) if not captured(name))
    return found


def is_store(ours: Collection[bytes], names: Collection[bytes]) -> bool:
    """Whether a directory with these names, of which some are a store's, is one and no more."""
    return len(ours) > 1 and MARKER in ours and len(ours) == len(names)


def parts_in(folder: bytes, names: Collection[bytes]) -> set[bytes]:
    """`stores_among`, for a directory by its path and a caller that knows of no capture."""
    if MARKER not in names and not any(name.endswith(b"-lock") for name in names):
        return set()
    try:
        fd = os.open(folder, os.O_DIRECTORY | _OPEN)
    except OSError:
        return set()
    try:
        return stores_among(fd, names)
    finally:
        os.close(fd)


def _has_sessions(fd: int) -> bool:
    """Whether the marker in an open directory has an id, and its folder of sessions has folders."""
    try:
        marker = os.open(MARKER, _OPEN, dir_fd=fd)
        try:
            if not stat.S_ISREG(os.fstat(marker).st_mode) or not identity.is_told(marker):
                return False
        finally:
            os.close(marker)
        sessions = os.open(b"sessions", os.O_DIRECTORY | _OPEN, dir_fd=fd)
        try:
            with os.scandir(sessions) as entries:
                return all(entry.is_dir(follow_symlinks=False) for entry in islice(entries, _LOOKS))
        finally:
            os.close(sessions)
    except OSError:
        return False


def _is_database(fd: int, name: bytes) -> bool:
    """Whether a file is a database of ours, or an empty one that may be about to become one.

    Its mark is in the -wal until that is copied for the first time; by then the file has one
    page.
    """
    try:
        file = os.open(name, _OPEN, dir_fd=fd)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return False
        head = os.pread(file, _HEADER, 0)
    except OSError:
        return False
    finally:
        os.close(file)
    if not head:
        return True
    if head[: len(_MAGIC)] != _MAGIC:
        return False
    page = int.from_bytes(head[16:18])
    is_fresh = status.st_size <= page and head[_APPLICATION : _APPLICATION + 4] == bytes(4)
    return is_fresh or head[_APPLICATION : _APPLICATION + 3] == _OURS
