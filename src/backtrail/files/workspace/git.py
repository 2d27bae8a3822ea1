"""What git has checked out, read from its files and never written."""

from __future__ import annotations

import os

from ..beneath import DIRECTORY, FILE, Directories


def git_head(root: int) -> str | None:
    """The branch and commit of the repository whose top is the open directory `root`."""
    try:
        git = os.open(b".git", DIRECTORY, dir_fd=root)
    except OSError:
        return None
    below = Directories(git)
    try:
        said = _read(below, b"HEAD")
        if said is None or not said.startswith("ref: "):
            return said
        ref = said[5:]
        commit = _read(below, ref.encode("utf-8", "surrogateescape"))
        name = ref.removeprefix("refs/heads/")
        return f"{name} {commit}" if commit else name
    finally:
        below.close()
        os.close(git)


def _read(directories: Directories, path: bytes) -> str | None:
    try:
        parent, name = directories.parent(path)
        fd = os.open(name, FILE, dir_fd=parent)
    except (OSError, ValueError):
        return None
    try:
        return os.read(fd, 1000).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)
