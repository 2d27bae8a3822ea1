"""What a scan does not enter, and why.

Opaque directories are never stored and never touched by a restore: version control, caches
and installed packages, what is mounted there, and what git ignores if it is heavy. Other
ignored files are kept: agents destroy `.env` and `dev.db` too. `.backtrailignore`, in the
form of `.gitignore`, adds to this. What was captured once stays captured, whatever a rule
says later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FILE_LIMIT = 20 * 1024 * 1024
"""Bytes above which a file is skipped."""

HEAVY_FILES = 2000
HEAVY_BYTES = 50 * 1024 * 1024
"""Above either, a directory that git ignores is opaque."""

RESERVED = b".backtrail-tmp-"
"""Names a restore builds new things under; scans do not see them."""

IGNORE_FILES = (b".gitignore", b".backtrailignore")

CONTROL = frozenset({b".git", b".hg", b".svn", b".jj", b".bzr", b".pijul", b".fslckout", b"_darcs"})

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


def opaque_name(name: bytes, siblings: Iterable[bytes], holds: Callable[[bytes], bool]) -> bytes:
    """Why a directory of this name is not entered; empty if it is.

    `siblings` are the names beside it, `holds` tells whether a name is in it.
    """
    if name in CONTROL:
        return b"version control"
    if name in HEAVY:
        return b"cache or packages"
    if name in BESIDE and not set(BESIDE[name]).isdisjoint(siblings):
        return b"build output"
    if name in INSIDE and holds(INSIDE[name]):
        return b"cache or packages"
    return b""


@dataclass(frozen=True, slots=True)
class Rules:
    """The ignore files from the root down to one directory, nearest last."""

    layers: tuple[tuple[str, str, GitIgnoreSpec], ...] = ()

    def inside(self, prefix: str, read: Callable[[bytes], bytes | None]) -> Rules:
        """The rules that hold in the directory `prefix`, whose ignore files `read` gives."""
        found = []
        for name in IGNORE_FILES:
            content = read(name)
            if content is not None:
                from pathspec import GitIgnoreSpec

                lines = content.decode("utf-8", "surrogateescape").splitlines()
                try:
                    spec = GitIgnoreSpec.from_lines(lines)
                except ValueError:
                    # A pattern no matcher understands ignores nothing.
                    continue
                found.append((name.decode(), prefix, spec))
        return Rules((*self.layers, *found)) if found else self

    def verdict(self, path: str, *, directory: bool) -> str:
        """The ignore file whose rules leave `path` out; empty if none does."""
        ignored = ""
        for source, prefix, spec in self.layers:
            inner = path[len(prefix) :] + ("/" if directory else "")
            decided = spec.check_file(inner).include
            if decided is not None:
                ignored = source if decided else ""
        return ignored


def is_heavy(fd: int) -> bool:
    """Whether a directory holds too much to keep, looking no further than that."""
    files = size = 0
    todo = [os.dup(fd)]
    try:
        while todo:
            at = todo.pop()
            try:
                with os.scandir(at) as entries:
                    for entry in entries:
                        files += 1
                        try:
                            if entry.is_dir(follow_symlinks=False):
                                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                                todo.append(os.open(entry.name, flags, dir_fd=at))
                            else:
                                size += entry.stat(follow_symlinks=False).st_size
                        except OSError:
                            continue
                        if files > HEAVY_FILES or size > HEAVY_BYTES or len(todo) > 200:
                            return True
            finally:
                os.close(at)
    finally:
        for at in todo:
            os.close(at)
    return False
