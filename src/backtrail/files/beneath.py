"""Touching a workspace safely: every path is walked from the root's descriptor, no link is
followed, nothing is written in place.

New things are built under a reserved name and swapped in. What comes out is looked at
before it is removed: if it is not what was stored, it goes back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from hashlib import sha256

from ..errors import Unsafe
from .trees import Entry

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

NOREPLACE = 1
EXCHANGE = 2

Rename = Callable[[int, bytes, int, bytes, int], None]


def _find_renameat2() -> Rename | None:
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "renameat2", None)
    if call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

    def renameat2(source: int, name: bytes, target: int, new: bytes, flags: int) -> None:
        if call(source, name, target, new, flags) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), os.fsdecode(new))

    return renameat2


renameat2: Rename | None = _find_renameat2()
"""The system's atomic swap; None where there is none. Tests set it to None."""


class Directories:
    """Open directories below one root, each opened from its parent without following links."""

    def __init__(self, root: int) -> None:
        self._open: dict[bytes, int] = {b"": root}

    def parent(self, path: bytes) -> tuple[int, bytes]:
        """The open directory that holds `path`, and the name in it."""
        above, _, name = path.rpartition(b"/")
        if name in (b"", b".", b".."):
            raise Unsafe(f"{path!r} is not a path in the workspace")
        return self.at(above), name

    def at(self, path: bytes) -> int:
        """An open directory; `OSError` if it is not one, or a link."""
        fd = self._open.get(path)
        if fd is None:
            above, name = self.parent(path)
            fd = self._open[path] = os.open(name, DIRECTORY, dir_fd=above)
        return fd

    def forget(self, path: bytes) -> None:
        """Close a directory that is replaced or removed, and those below it."""
        for known in [p for p in self._open if p == path or p.startswith(path + b"/")]:
            if known:
                os.close(self._open.pop(known))

    def sync(self) -> None:
        """Make the names in every directory used survive a power cut."""
        for fd in self._open.values():
            os.fsync(fd)

    def close(self) -> None:
        """Close all but the root."""
        self.forget(b"")
        for path in [p for p in self._open if p]:
            os.close(self._open.pop(path))


def describe(fd: int, name: bytes) -> Entry | None:
    """What is at a name now, as a tree would say it; a directory without its content."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return Entry("directory", mode, 0, b"")
    if stat.S_ISLNK(status.st_mode):
        text = os.fsencode(os.readlink(name, dir_fd=fd))
        return Entry("link", 0o777, len(text), text)
    if not stat.S_ISREG(status.st_mode):
        return Entry("skipped", mode, 0, b"special file")
    file = os.open(name, FILE, dir_fd=fd)
    try:
        digest = sha256()
        size = 0
        while part := os.read(file, 1 << 20):
            digest.update(part)
            size += len(part)
        return Entry("file", stat.S_IMODE(os.fstat(file).st_mode), size, digest.digest())
    finally:
        os.close(file)


def alike(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries are the same thing; directories apart from their content."""
    if a is None or b is None:
        return a is b
    if a.kind == b.kind == "directory":
        return a.mode == b.mode
    return (a.kind, a.mode, a.value) == (b.kind, b.mode, b.value)


def build(fd: int, name: bytes, entry: Entry, content: bytes) -> None:
    """Make a new thing under a reserved name, private until it is whole, and synced."""
    if entry.kind == "link":
        os.symlink(entry.value, name, dir_fd=fd)
        return
    if entry.kind == "directory":
        os.mkdir(name, 0o700, dir_fd=fd)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=fd)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        os.fchmod(file, entry.mode)
        os.fsync(file)
    finally:
        os.close(file)


def remove(fd: int, name: bytes) -> None:
    """Remove a file, link or empty directory; nothing there is fine."""
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        os.rmdir(name, dir_fd=fd)


def put_new(fd: int, built: bytes, target: int, name: bytes) -> bool:
    """Move a built thing to a name that must be free; False if it is not."""
    try:
        if renameat2 is not None:
            try:
                renameat2(fd, built, target, name, NOREPLACE)
                return True
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS):
                    raise
        return _link_new(fd, built, target, name)
    except FileExistsError:
        return False


def _link_new(fd: int, built: bytes, target: int, name: bytes) -> bool:
    """The same where the system cannot refuse to replace: a hard link does refuse."""
    status = os.stat(built, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(name, 0o700, dir_fd=target)
        os.rmdir(built, dir_fd=fd)
        return True
    os.link(built, name, src_dir_fd=fd, dst_dir_fd=target, follow_symlinks=False)
    os.unlink(built, dir_fd=fd)
    return True


def swap(fd: int, built: bytes, target: int, name: bytes, aside: bytes) -> bytes:
    """Put a built thing at a taken name; the name, in `fd`, under which the old one is now."""
    if renameat2 is not None:
        try:
            renameat2(fd, built, target, name, EXCHANGE)
            return built
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
    os.rename(name, aside, src_dir_fd=target, dst_dir_fd=fd)
    if not put_new(fd, built, target, name):
        remove(fd, built)
    return aside
