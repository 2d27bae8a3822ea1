"""Roots of workspaces: which directories may be watched over, and which one a directory is.

A number of a device and an inode is given again once its directory is gone, so the time of
its birth counts too, where it is known. What git has checked out in a root is read from
its files, which are never written.
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
from ..beneath import DIRECTORY, FILE, Directories, descriptor
from .ignore import parts_in

_EMPTY_PATH = 0x1000
_NO_FOLLOW = 0x100
_BIRTH = 0x800
_Buffer = ctypes.c_char * 256


class Identity(NamedTuple):
    """Which directory it is, wherever it is. `born` is 0 where it is not known."""

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
    return Identity(status.st_dev, status.st_ino, birth_at(fd))


@cache
def _statx() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "statx", None)


def birth_at(fd: int, name: bytes = b"") -> int:
    """When an open thing, or one at a name in it, was made, in nanoseconds; 0 if unknown."""
    call = _statx()
    if call is None:
        return 0
    buffer = _Buffer()
    if call(fd, name, _NO_FOLLOW if name else _EMPTY_PATH, _BIRTH, buffer) != 0:
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
    return Identity(status.st_dev, status.st_ino, birth_at(fd, name))


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


# --- git ---------------------------------------------------------------------------------


def git_head(root: int) -> str | None:
    """The branch and commit of the repository whose top is the open directory `root`."""
    try:
        with descriptor(b".git", DIRECTORY, dir_fd=root) as git, Directories(git) as below:
            said = _read(below, b"HEAD")
            if said is None or not said.startswith("ref: "):
                return said
            ref = said[5:]
            commit = _read(below, ref.encode("utf-8", "surrogateescape"))
            name = ref.removeprefix("refs/heads/")
            return f"{name} {commit}" if commit else name
    except OSError:
        return None


def _read(directories: Directories, path: bytes) -> str | None:
    try:
        parent, name = directories.parent(path)
        with descriptor(name, FILE, dir_fd=parent) as fd:
            return os.read(fd, 1000).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None
