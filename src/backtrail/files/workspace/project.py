"""The project that a folder belongs to: what an agent started there may change.

A project's root is the nearest folder upwards that version control or our own settings mark.
The search ends at a mount, at a folder of another owner and at the home folder, so that it
never takes in what only happens to lie around. A root that is too broad or too large is not
taken, and the answer says so.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import Unsafe
from .ignore import entries_below
from .roots import refuse_broad

if TYPE_CHECKING:
    from ...events import Json
    from ...settings import Settings

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
    mounts: frozenset[str] | None = None
    while folder != home:
        if is_marked(folder):
            return folder
        above = os.path.dirname(folder)
        mounts = _mounts() if mounts is None else mounts
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


def _mounts() -> frozenset[str]:
    """Where something is mounted, also a folder of the same file system."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(" ", 5)[4] for line in file]
    except (OSError, IndexError):
        return frozenset()
    return frozenset(row.replace("\\040", " ").replace("\\134", "\\") for row in rows)


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
