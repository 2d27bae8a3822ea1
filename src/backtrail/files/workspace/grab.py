"""A tree of a few paths alone, for a call that cannot wait for the first import.

It holds the named paths and the directories above them, and nothing else: two of these
around a call tell what happened to these paths.
"""

from __future__ import annotations

import os
import stat

from ..beneath import FILE, Directories
from ..control import control_in, is_marker
from ..trees import Entry, Tree, digest_of, encode_tree
from .ignore import FILE_LIMIT

_Folder = dict[bytes, "Entry | _Folder"]


def grab(
    root: int, paths: list[bytes], limit: int = FILE_LIMIT
) -> tuple[bytes, dict[bytes, bytes]]:
    """The digest of the tree, and every content that it needs."""
    contents: dict[bytes, bytes] = {}
    top: _Folder = {}
    directories = Directories(root)
    try:
        for path in paths:
            _place(directories, top, path, limit, contents)
        return _encoded(directories, b"", top, contents), contents
    finally:
        directories.close()


def _place(
    directories: Directories, top: _Folder, path: bytes, limit: int, contents: dict[bytes, bytes]
) -> None:
    """Put what is at a path into the tree, if anything is and a tree may bring it."""
    if control_in(path) is not None or any(map(is_marker, path.split(b"/"))):
        return
    try:
        parent, name = directories.parent(path)
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        entry = _entry(parent, name, status, limit, contents)
    except OSError:
        entry = None
    folder = top
    above = path.split(b"/")[:-1]
    for depth, part in enumerate(above):
        if entry is None and not _is_there(directories, b"/".join(above[: depth + 1])):
            return
        below = folder.setdefault(part, {})
        if isinstance(below, Entry):
            return
        folder = below
    if entry is not None:
        folder[path.rpartition(b"/")[2]] = entry


def _entry(
    parent: int, name: bytes, status: os.stat_result, limit: int, contents: dict[bytes, bytes]
) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        text = os.fsencode(os.readlink(name, dir_fd=parent))
        return Entry("link", 0o777, len(text), text)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        return Entry("opaque", 0, 0, b"not looked into yet")
    fd = os.open(name, FILE, dir_fd=parent)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
    finally:
        os.close(fd)
    content = b"".join(parts)
    digest = digest_of(content)
    contents[digest] = content
    return Entry("file", mode, len(content), digest)


def _is_there(directories: Directories, path: bytes) -> bool:
    try:
        directories.at(path)
    except OSError:
        return False
    return True


def _encoded(
    directories: Directories, prefix: bytes, folder: _Folder, contents: dict[bytes, bytes]
) -> bytes:
    tree: Tree = {}
    for name, entry in folder.items():
        if isinstance(entry, Entry):
            tree[name] = entry
            continue
        path = prefix + name
        digest = _encoded(directories, path + b"/", entry, contents)
        mode = stat.S_IMODE(os.fstat(directories.at(path)).st_mode)
        tree[name] = Entry("directory", mode, 0, digest)
    encoded = encode_tree(tree)
    digest = digest_of(encoded)
    contents[digest] = encoded
    return digest
