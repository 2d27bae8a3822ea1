"""What a scan does not enter, and why.

Opaque directories are never stored and never touched by a restore: version control, caches
and installed packages, what is mounted there, and what git ignores if it is heavy. Other
ignored files are kept: agents destroy `.env` and `dev.db` too. `.backtrailignore`, in the
form of `.gitignore`, adds to this. What was captured once stays captured, whatever a rule
says later.

A store of ours is never captured, and is judged by what is there. A name alone proves nothing: an
agent can make a marker or a lock file in a moment, and a cloned project may bring one. So a store
is one by its marker and its layout, a database by what is written in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

from ..._startup.frozen import NamedTuple
from ...stores.disk import fs, identity
from ..beneath import DIRECTORY, descriptor
from ..trees import MARKER, is_control, is_marker

if TYPE_CHECKING:
    from pathspec import PathSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    Patterns = PathSpec[GitIgnoreSpecPattern]

FILE_LIMIT = 20_000_000
"""Bytes above which a file is skipped."""

HEAVY_FILES = 2000
HEAVY_BYTES = 50 * 1024 * 1024
"""Above either, a directory that git ignores is opaque."""

GIT_RULES = b".gitignore"
OUR_RULES = b".backtrailignore"
IGNORE_FILES = (GIT_RULES, OUR_RULES)

HEAVY = frozenset(
    {b"node_modules", b"bower_components", b".venv", b"__pycache__", b".tox", b".nox", b".eggs"}
    | {b".mypy_cache", b".pytest_cache", b".ruff_cache", b".hypothesis", b".gradle", b".next"}
    | {b".nuxt", b".svelte-kit", b".parcel-cache", b".turbo", b".terraform", b".direnv", b".cache"}
)

# A common word is heavy only where its tool is at home: name -> what must be beside or in it.
BESIDE: dict[bytes, tuple[bytes, ...]] = {
    b"target": (b"Cargo.toml", b"pom.xml", b"build.sbt"),
    b"vendor": (b"composer.json",),
    b"Pods": (b"Podfile",),
    b"_build": (b"mix.exs", b"dune-project"),
    b"deps": (b"mix.exs",),
}
INSIDE: dict[bytes, bytes] = {b"venv": b"pyvenv.cfg", b"env": b"pyvenv.cfg"}

VERSION_CONTROL = b"version control"
PACKAGES = b"cache or packages"
BUILD = b"build output"
OUR_STORE = b"a store of ours"
OUR_NAME = b"a name that restores use"
MOUNTED = b"mounted"
LEFT_OUT = b"left out by .backtrailignore"
LEFT_OUT_FILE = b"a file left out by .backtrailignore"
IGNORED = b"ignored by git, and heavy"
"""The reasons a tree gives."""

LASTING = frozenset({VERSION_CONTROL, PACKAGES, BUILD})
"""Reasons that hold as long as the directory is there, even if its tool is not at home now."""


Names = Callable[[bytes], bool]
"""Whether a name is in a directory."""


MOUNT_POINTS = frozenset({b".agents", b".aws", b".codex", b".git"})
"""Folders that Codex's sandbox mounts over in a workspace, and makes where there are none."""


def is_mount_point(folder: int, name: bytes) -> bool:
    """Whether a folder in an open one is there for a sandbox alone: empty, and gone with it.

    A folder of that name with something in it is as any other.
    """
    return name in MOUNT_POINTS and is_empty(folder, name)


def is_empty(folder: int, name: bytes) -> bool:
    """Whether a name in an open folder is that of a folder with nothing in it."""
    try:
        with descriptor(name, DIRECTORY, dir_fd=folder) as fd, os.scandir(fd) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def opaque_name(name: bytes, beside: Names, inside: Names) -> bytes:
    """Why a directory of this name is not entered; empty if it is."""
    if is_control(name):
        return VERSION_CONTROL
    if name in HEAVY:
        return PACKAGES
    if name in BESIDE and any(map(beside, BESIDE[name])):
        return BUILD
    if name in INSIDE and inside(INSIDE[name]):
        return PACKAGES
    return b""


Layers = tuple[tuple[int, "Patterns"], ...]


class Rules(NamedTuple):
    """The ignore files from the root down to one directory, nearest last.

    Each layer has the length of its directory's path: patterns are relative to it.
    """

    git: Layers = ()
    ours: Layers = ()

    def __bool__(self) -> bool:
        return bool(self.git or self.ours)

    def inside(self, prefix: str, files: Iterable[tuple[bytes, bytes]]) -> Rules:
        """The rules that hold in the directory `prefix`, which has these ignore files."""
        git, ours = self.git, self.ours
        for name, content in files:
            layer = (len(prefix), _parse(content))
            if name == GIT_RULES:
                git = (*git, layer)
            else:
                ours = (*ours, layer)
        return Rules(git, ours)

    def verdict(self, path: str, *, directory: bool) -> Literal["", "git", "ours"]:
        """Whose rules leave `path` out. Ours go first, and may take back what git's say."""
        if directory:
            path += "/"
        decided = _decide(self.ours, path)
        if decided is not None:
            return "ours" if decided else ""
        return "git" if _decide(self.git, path) else ""


def _decide(layers: Layers, path: str) -> bool | None:
    """What the nearest ignore file that says anything says."""
    for length, spec in reversed(layers):
        decided = spec.check_file(path[length:]).include
        if decided is not None:
            return decided
    return None


def _parse(content: bytes) -> Patterns:
    """The rules of an ignore file, the last that fits decides.

    A line that no matcher understands ignores nothing.
    """
    # Imported where needed: it costs more than a scan, and most directories have no rules.
    # `GitIgnoreSpec` orders patterns in its own way where directories are concerned; the
    # plain class goes by their order alone, as git does for one name at a time.
    from pathspec import PathSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    patterns = []
    for line in text.split("\n"):
        try:
            patterns.append(GitIgnoreSpecPattern(line.removesuffix("\r")))
        except ValueError:
            continue
    return PathSpec(patterns)


def read_rules(fd: int, name: bytes) -> bytes | None:
    """An ignore file of an open directory, up to a megabyte; None if there is none to read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with descriptor(name, flags, dir_fd=fd) as file:
            return os.read(file, 1 << 20) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except OSError:
        return None


def is_heavy(fd: int) -> bool:
    """Whether a directory holds too much to keep, looking no further than that."""
    files = directories = size = 0
    todo = [b"."]
    while todo:
        path = todo.pop()
        try:
            with descriptor(path, DIRECTORY, dir_fd=fd) as at, os.scandir(at) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories += 1
                        todo.append(path + b"/" + os.fsencode(entry.name))
                    else:
                        files += 1
                        size += entry.stat(follow_symlinks=False).st_size
                    if max(files, directories) > HEAVY_FILES or size > HEAVY_BYTES:
                        return True
        except OSError:
            continue
    return False


# --- stores of ours ----------------------------------------------------------------------


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
        with descriptor(folder, DIRECTORY) as fd:
            return stores_among(fd, names)
    except OSError:
        return set()


def entries_below(root: bytes) -> Iterator[tuple[os.DirEntry[bytes], bool]]:
    """Everything below a directory that a scan may enter, each with whether it is a directory."""
    todo = [root]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except OSError:
            continue
        names = {entry.name for entry in entries}
        ours = parts_in(folder, names)
        for entry in entries:
            if entry.name in ours:
                # A store is never captured.
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and opaque_name(entry.name, names.__contains__, partial(_has, entry.path)):
                continue
            if is_folder:
                todo.append(entry.path)
            yield entry, is_folder


def _has(folder: bytes, name: bytes) -> bool:
    return os.path.lexists(folder + b"/" + name)


def _has_sessions(fd: int) -> bool:
    """Whether the marker in an open directory has an id, and its folder of sessions has folders."""
    try:
        with descriptor(MARKER, _OPEN, dir_fd=fd) as marker:
            if not stat.S_ISREG(os.fstat(marker).st_mode) or not identity.has_id(marker):
                return False
        with (
            descriptor(b"sessions", DIRECTORY, dir_fd=fd) as sessions,
            os.scandir(sessions) as entries,
        ):
            return all(entry.is_dir(follow_symlinks=False) for entry in islice(entries, _LOOKS))
    except OSError:
        return False


def _is_database(fd: int, name: bytes) -> bool:
    """Whether a file is a database of ours, or an empty one that may be about to become one.

    Its mark is in the -wal until that is copied for the first time; by then the file has one
    page.
    """
    try:
        with descriptor(name, _OPEN, dir_fd=fd) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                return False
            head = os.pread(file, _HEADER, 0)
    except OSError:
        return False
    if not head:
        return True
    if head[: len(_MAGIC)] != _MAGIC:
        return False
    page = int.from_bytes(head[16:18])
    is_fresh = status.st_size <= page and head[_APPLICATION : _APPLICATION + 4] == bytes(4)
    return is_fresh or head[_APPLICATION : _APPLICATION + 3] == _OURS
