"""The first import of a workspace, in the background: most calls go on without it.

Until it is done, the baseline is *partial*: a tool that declares its paths is captured all
the same, by a tree of these paths alone; a shell call waits a while and then goes on, and says
that it was not captured.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable

from ...errors import BacktrailError
from ..beneath import FILE, Directories, descriptor
from ..trees import Entry, Tree, control_in, digest_of, encode_tree, is_marker
from .ignore import FILE_LIMIT
from .scan import Stopped

PARTIAL = "the first import of the workspace is not done yet"
"""What events say that were not captured for that reason."""

WAIT = 10.0
"""Seconds a call that may touch anything waits for the first import."""


class Baseline:
    """A scan in a thread of its own."""

    def __init__(self, scan: Callable[[Callable[[], bool]], object]) -> None:
        self.error: BacktrailError | None = None
        self._scan = scan
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backtrail-baseline", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._scan(self._stop.is_set)
        except Stopped:
            return
        except BacktrailError as error:
            # The next scan meets the same and raises it where a caller hears of it.
            self.error = error

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is done, after that many seconds at most."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End it early; the next scan goes on from where it was."""
        self._stop.set()
        self._thread.join()


# --- a tree of a few paths, for a call that cannot wait ----------------------------------


_Folder = dict[bytes, "Entry | _Folder"]


def grab(root: int, paths: list[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """The digest of the tree, and every content that it needs."""
    contents: dict[bytes, bytes] = {}
    top: _Folder = {}
    with Directories(root) as directories:
        for path in paths:
            _place(directories, top, path, contents)
        return _encoded(directories, b"", top, contents), contents


def _place(
    directories: Directories, top: _Folder, path: bytes, contents: dict[bytes, bytes]
) -> None:
    """Put what is at a path into the tree, if anything is and a tree may bring it."""
    if control_in(path) is not None or any(map(is_marker, path.split(b"/"))):
        return
    try:
        parent, name = directories.parent(path)
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        entry = _entry(parent, name, status, contents)
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


def _entry(parent: int, name: bytes, status: os.stat_result, contents: dict[bytes, bytes]) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        text = os.fsencode(os.readlink(name, dir_fd=parent))
        return Entry("link", 0o777, len(text), text)
    if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_LIMIT:
        return Entry("opaque", 0, 0, b"not looked into yet")
    with descriptor(name, FILE, dir_fd=parent) as fd:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
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
