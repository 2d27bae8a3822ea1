"""Roots of workspaces: which directories may be watched over, and which one a directory is.

A number of a device and an inode is given again once its directory is gone, so the time of
its birth counts too, where the system tells it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache

from ..._startup.frozen import NamedTuple
from ...errors import Unsafe
from ...stores.disk.fs import FOLDERS
from .storefolders import parts_in

_EMPTY_PATH = 0x1000
_NO_FOLLOW = 0x100
_BIRTH = 0x800
_Buffer = ctypes.c_char * 256


class Identity(NamedTuple):
    """Which directory it is, wherever it is. `born` is 0 where the system does not tell."""

    device: int
    inode: int
    born: int

    def is_same(self, other: Identity) -> bool:
        """Whether both are one directory.

        A device may get another number when the machine starts, so it counts only where
        the time of birth is not known.
        """
        if self.born and other.born:
            return self[1:] == other[1:]
        return self == other


def identity(fd: int) -> Identity:
    """The identity of an open directory."""
    status = os.fstat(fd)
    return Identity(status.st_dev, status.st_ino, _birth(fd))


@cache
def _statx() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "statx", None)


def _birth(fd: int, name: bytes = b"", flags: int = _EMPTY_PATH) -> int:
    """When a thing was made, in nanoseconds; 0 where the system does not tell."""
    call = _statx()
    if call is None:
        return 0
    buffer = _Buffer()
    if call(fd, name, flags, _BIRTH, buffer) != 0:
        return 0
    (mask,) = struct.unpack_from("I", buffer, 0)
    seconds, nanoseconds = struct.unpack_from("qI", buffer, 80)
    return int(seconds * 1_000_000_000 + nanoseconds) if mask & _BIRTH else 0


def identity_at(fd: int, name: bytes) -> Identity | None:
    """The identity of whatever is at a name in an open directory, no link followed."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None
    return Identity(status.st_dev, status.st_ino, _birth(fd, name, _NO_FOLLOW))


def birth_at(fd: int, name: bytes) -> int:
    """When what is at a name in an open directory was made; 0 where the system does not tell."""
    return _birth(fd, name, _NO_FOLLOW)


def refuse_broad(root: str) -> None:
    """Refuse to watch over a whole home or file system."""
    path = os.path.realpath(root)
    home = os.path.realpath(os.path.expanduser("~"))
    broad = {"/", home, *(os.path.join(home, n) for n in ("Desktop", "Documents", "Downloads"))}
    if path in broad or home.startswith(path + "/") or _is_file_system(path):
        raise Unsafe(
            f"{path} is too much to watch over: choose a project folder (a program may insist: "
            "files='force')"
        )


def refuse_store(root: str | os.PathLike[str]) -> None:
    """Refuse to watch over a part of a store: a restore would rewrite its sessions."""
    at, below = os.path.split(os.path.realpath(os.fspath(root)))
    while below:
        if below in FOLDERS and _is_part(at, below):
            raise Unsafe(
                f"{os.path.join(at, below)} belongs to a store: its files are not captured"
            )
        at, below = os.path.split(at)


def _is_part(folder: str, name: str) -> bool:
    try:
        names = set(map(os.fsencode, os.listdir(folder)))
    except OSError:
        return False
    return os.fsencode(name) in parts_in(os.fsencode(folder), names)


def _is_file_system(path: str) -> bool:
    """Whether a path is the root of a file system, and not a part of one mounted there."""
    if not os.path.ismount(path):
        return False
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            rows = [line.split() for line in mounts]
    except OSError:
        return True
    roots = [row[3] for row in rows if row[4] == path]
    return not roots or roots[-1] == "/"
