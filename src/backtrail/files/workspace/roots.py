"""Roots of workspaces: which directories may be watched over, and which one a directory is.

A number of a device and an inode is given again once its directory is gone, so the time of
its birth counts too, where it is known. What git has checked out in a root is read from
its files, which are never written.

A project's root, for an agent that runs in one of its folders, is the nearest folder upwards that
version control or our own settings mark. The search ends at a mount, at a folder of another owner
and at the home folder, so that it never takes in what only happens to lie around. A root that is
too broad or too large is not taken, and the answer says so.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import Unsafe
from ...stores.disk.fs import FOLDERS
from ..beneath import DIRECTORY, FILE, Directories, descriptor
from .ignore import entries_below, parts_in

if TYPE_CHECKING:
    from ...events import Json
    from ...settings import Settings

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
    roots = [root for root, place in _mounts() if place == path]
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


# --- the project -----------------------------------------------------------------------


MARKS = (".git", ".hg", ".sl", ".jj", ".backtrail.toml")
"""What the root of a project has in it; `.git` may be a file, as in a linked worktree.

A name alone is none: a sandbox leaves an empty `.git` in the folder it ran in.
"""

MOST_FILES = 100_000
"""Files above which a project is too large to be captured for an agent in one of its folders."""


REFUSED = "root_refused"
"""The key in a session's metadata for a project's root that was not taken."""


class Root(NamedTuple):
    """A workspace's root. `wanted` is the project's root, if that was not taken, and `why`."""

    path: str
    wanted: str | None = None
    why: str = ""

    def refused(self) -> dict[str, Json]:
        """What a session's metadata say about a project's root that was not taken."""
        return {REFUSED: {"path": self.wanted, "why": self.why}} if self.wanted else {}


def project_root(cwd: str, *, most: int = MOST_FILES, seconds: float | None = None) -> Root:
    """The root of the workspace for an agent that runs in `cwd`.

    `seconds` limits the count of files; a project that takes longer to count is too large.
    """
    here = os.path.realpath(cwd)
    found = _marked(here)
    if found is None or found == here:
        return Root(here)
    try:
        refuse_broad(found)
    except Unsafe as error:
        return Root(here, found, str(error))
    deadline = None if seconds is None else time.monotonic() + seconds
    why = _too_large(os.fsencode(found), most, deadline)
    return Root(here, found, why) if why else Root(found)


def chosen_root(cwd: str, settings: Settings, *, seconds: float | None = None) -> Root:
    """The root of the workspace for an agent that runs in `cwd`, as the person has it set."""
    if settings.text("root") == "cwd":
        return Root(os.path.realpath(cwd))
    return project_root(cwd, most=settings.root_files, seconds=seconds)


def _marked(here: str) -> str | None:
    """The nearest folder with a mark, from `here` upwards; None if there is none."""
    home = os.path.realpath(os.path.expanduser("~"))
    try:
        status = os.stat(here)
    except OSError:
        return None
    owner, device, folder = status.st_uid, status.st_dev, here
    mounts: set[str] | None = None
    while folder != home:
        if is_marked(folder):
            return folder
        above = os.path.dirname(folder)
        mounts = {place for _, place in _mounts()} if mounts is None else mounts
        if above == folder or folder in mounts:
            return None
        try:
            status = os.stat(above)
        except OSError:
            return None
        if (status.st_uid, status.st_dev) != (owner, device):
            return None
        folder = above
    return None


def is_marked(folder: str) -> bool:
    """Whether a folder is the root of a project of its own."""
    return any(_is_mark(f"{folder}/{mark}", mark) for mark in MARKS)


def _is_mark(path: str, mark: str) -> bool:
    """Whether a path is what its name says: a repository, or settings."""
    try:
        mode = os.stat(path).st_mode
        if mark == ".backtrail.toml":
            return stat.S_ISREG(mode)
        if stat.S_ISREG(mode) and mark == ".git":
            with open(path, "rb") as file:
                return file.read(7) == b"gitdir:"
        if not stat.S_ISDIR(mode):
            return False
        if mark == ".git":
            return os.path.lexists(f"{path}/HEAD")
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        # What cannot be looked into may well be one, and what holds it is not left out.
        return os.path.isdir(path)


def _mounts() -> list[tuple[str, str]]:
    """What of a file system is mounted, and where; also a folder of the same file system."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(" ", 5) for line in file]
            return [(row[3], _unescaped(row[4])) for row in rows]
    except (OSError, IndexError):
        return []


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\134", "\\")


def _too_large(root: bytes, most: int, deadline: float | None) -> str:
    """Why a project cannot be taken whole; empty if it can."""
    count = 0
    for _, is_folder in entries_below(root):
        if deadline is not None and (is_folder or not count) and time.monotonic() > deadline:
            return f"more than {count:,} files, which took too long to count"
        count += not is_folder
        if count > most:
            return f"over {most:,} files"
    return ""
