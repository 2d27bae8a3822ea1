"""Touching a workspace safely: every path is walked from the root's descriptor, and no link
is followed on the way or at its end.

Names are moved, never written over: a thing goes to a free name, or two names swap what
they hold. So whatever others put there meanwhile is kept.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self

from .._startup.hashing import sha256
from ..errors import Unsafe
from .trees import Entry

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_NOREPLACE = 1
_EXCHANGE = 2
_KEPT_OPEN = 100
_LOOKS = 5

Rename = Callable[[int, bytes, int, bytes, int], None]


class _System:
    """Calls that `os` has not, each looked for when it is first wanted: ctypes is slow to load.

    One is None where the system has none, or in a test.
    """

    @cached_property
    def renameat2(self) -> Rename | None:
        """Moves or swaps names in one step, as flags say."""
        return _find_renameat2()

    @cached_property
    def syncfs(self) -> Callable[[int], None] | None:
        """One sync for all of the file system that an open file is on, which reports errors."""
        return _find_syncfs()


system = _System()


def _found(name: str, *types: str) -> Callable[..., int] | None:
    """A function of the C library that takes these types; it raises nothing."""
    import ctypes

    call: Any = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is not None:
        call.argtypes = [getattr(ctypes, type) for type in types]
    return call  # type: ignore[no-any-return]


def _failure(*words: str) -> OSError:
    """What went wrong in the last call."""
    import ctypes

    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), *words)


def _find_renameat2() -> Rename | None:
    call = _found("renameat2", "c_int", "c_char_p", "c_int", "c_char_p", "c_uint")
    if call is None:
        return None

    def renameat2(source: int, name: bytes, target: int, new: bytes, flags: int) -> None:
        if call(source, name, target, new, flags) != 0:
            raise _failure(os.fsdecode(new))

    return renameat2


def _find_syncfs() -> Callable[[int], None] | None:
    call = _found("syncfs", "c_int")
    # Before Linux 5.8 it returned without a word about what could not be written.
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if call is None or release is None or tuple(map(int, release.groups())) < (5, 8):
        return None

    def syncfs(fd: int) -> None:
        if call(fd) != 0:
            raise _failure()

    return syncfs


def renameat2_is_there() -> bool:
    """Whether names can be moved without replacing any, in one call."""
    return system.renameat2 is not None


@contextmanager
def descriptor(
    path: str | bytes | os.PathLike[str], flags: int, mode: int = 0, *, dir_fd: int | None = None
) -> Iterator[int]:
    """A file or directory, open for as long as the block lasts."""
    fd = os.open(path, flags, mode, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


class Directories:
    """Open directories below one root, each opened from its parent without following links."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: dict[bytes, int] = {}

    def parent(self, path: bytes) -> tuple[int, bytes]:
        """The open directory that holds `path`, and the name in it."""
        above, _, name = path.rpartition(b"/")
        if name in (b"", b".", b".."):
            raise Unsafe(f"{path!r} is not a path in the workspace")
        return self.at(above), name

    def at(self, path: bytes) -> int:
        """An open directory; `FileNotFoundError` or `NotADirectoryError` if it is none."""
        todo: list[bytes] = []
        at = path
        # No recursion: a directory may lie deeper than Python calls.
        while at and at not in self._open:
            todo.append(at)
            at = at.rpartition(b"/")[0]
        fd = self._open[at] if at else self._root
        for below in reversed(todo):
            fd = self._enter(fd, below)
        return fd

    def _enter(self, above: int, path: bytes) -> int:
        name = path.rpartition(b"/")[2]
        if name in (b"", b".", b".."):
            raise Unsafe(f"{path!r} is not a path in the workspace")
        try:
            fd = os.open(name, DIRECTORY, dir_fd=above)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotADirectoryError(errno.ENOTDIR, "a link") from error
            raise
        if len(self._open) >= _KEPT_OPEN:
            # The nearest stay open: in a deep tree the way from the root is long.
            for far in list(self._open)[: _KEPT_OPEN // 2]:
                os.close(self._open.pop(far))
        self._open[path] = fd
        return fd

    def forget(self, path: bytes) -> None:
        """Close a directory that is replaced or removed, and those below it."""
        below = path + b"/"
        for known in [p for p in self._open if p == path or p.startswith(below)]:
            os.close(self._open.pop(known))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all but the root."""
        while self._open:
            os.close(self._open.popitem()[1])


def describe(fd: int, name: bytes) -> Entry | None:
    """What is at a name now, as a tree would say it; a directory without its content."""
    for _ in range(_LOOKS):
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            return Entry("directory", mode, 0, b"")
        try:
            if stat.S_ISLNK(status.st_mode):
                text = os.fsencode(os.readlink(name, dir_fd=fd))
                return Entry("link", 0o777, len(text), text)
            if not stat.S_ISREG(status.st_mode):
                return Entry("skipped", mode, 0, b"special file")
            found = _describe_file(fd, name)
        except OSError as error:
            # Another thing is there by now.
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO):
                raise
            continue
        if found is not None:
            return found
    return Entry("skipped", 0, 0, b"changing")


def _describe_file(fd: int, name: bytes) -> Entry | None:
    with descriptor(name, FILE, dir_fd=fd) as file:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return None
        digest = sha256()
        size = 0
        while part := os.read(file, 1 << 20):
            digest.update(part)
            size += len(part)
        return Entry("file", stat.S_IMODE(status.st_mode), size, digest.digest())


def is_one_file(fd: int, name: bytes, other: int, its: bytes) -> bool:
    """Whether two names are those of one file."""
    try:
        a = os.stat(name, dir_fd=fd, follow_symlinks=False)
        b = os.stat(its, dir_fd=other, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def is_being_written(fd: int, name: bytes) -> bool:
    """Whether a program has a file open for writing, where the system says so.

    Linux grants a read lease only on a file that no program has open for writing. With a second
    name the content outlives this one, and a lease might be broken: then it is not asked for.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        file = os.open(name, FILE, dir_fd=fd)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return False
        import signal

        # A broken lease makes the system send a signal; this one is ignored by default.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(file)
    return False


def write_file(fd: int, name: bytes, content: bytes, mode: int) -> int:
    """Write a new file, private until it is whole; its descriptor, not synced yet."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=fd)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        os.fchmod(file, mode)
    except BaseException:
        os.close(file)
        raise
    return file


def remove(fd: int, name: bytes) -> None:
    """Remove a file, link or empty directory; nothing there is fine."""
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError) as error:
        try:
            os.rmdir(name, dir_fd=fd)
        except (NotADirectoryError, FileNotFoundError):
            raise error from None


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a directory that we made, with all in it, however deep; what cannot go stays."""
    # Flattened first: what lies deep is moved up, as a path may be longer than systems take.
    try:
        with descriptor(path, DIRECTORY) as top:
            os.fchmod(top, 0o700)
            count, mark = 0, f".gone-{os.urandom(8).hex()}"
            todo = os.listdir(top)
            while todo:
                name = todo.pop()
                try:
                    remove(top, os.fsencode(name))
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        return
                    for inner in _opened_up(top, name):
                        count += 1
                        todo.append(f"{mark}-{count}")
                        os.rename(f"{name}/{inner}", todo[-1], src_dir_fd=top, dst_dir_fd=top)
                    os.rmdir(name, dir_fd=top)
            os.rmdir(path)
    except OSError:
        return


def _opened_up(top: int, name: str) -> list[str]:
    """What is in a directory, which may be written in from now on."""
    with descriptor(name, DIRECTORY, dir_fd=top) as fd:
        os.fchmod(fd, 0o700)
        return os.listdir(fd)


def put_in(source: int, name: bytes, target: int, new: bytes) -> bool:
    """Move a thing of ours to a name that must be free; False if it is not."""
    try:
        if system.renameat2 is not None:
            try:
                system.renameat2(source, name, target, new, _NOREPLACE)
                return True
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS):
                    raise
        _put_in_by_link(source, name, target, new)
        return True
    except FileExistsError:
        return False


def _put_in_by_link(source: int, name: bytes, target: int, new: bytes) -> None:
    """The same where the system cannot refuse to replace: a hard link does refuse."""
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(new, 0o700, dir_fd=target)
        try:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
        except BaseException:
            os.rmdir(new, dir_fd=target)
            raise
        return
    os.link(name, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    try:
        os.unlink(name, dir_fd=source)
    except OSError:
        # It is where it belongs; its second name is in a directory that will be cleared.
        return


def take_out(source: int, name: bytes, target: int, new: bytes) -> None:
    """Move whatever is at a name to a free name of ours, in one go."""
    os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


def exchange(source: int, name: bytes, target: int, new: bytes) -> bool:
    """Swap what two names hold; False where the system cannot."""
    if system.renameat2 is None:
        return False
    try:
        system.renameat2(source, name, target, new, _EXCHANGE)
        return True
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return False
