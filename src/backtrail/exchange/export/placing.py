"""Files that are handed to people: private, whole or not there, never over another one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ...errors import AlreadyExists, BacktrailError
from ...stores.disk.fs import failed, sync_directory


@contextmanager
def placed(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which appears at `path` when the block ends, with mode 0600.

    If the block raises, nothing appears. Something that is there already is `AlreadyExists`,
    unless `force` is set; a folder always is. A pipe or a device, such as `/dev/null`, is written
    to and never replaced.
    """
    target = Path(path)
    try:
        if _is_special(target):
            with target.open("wb") as file:
                yield file
            return
        if target.is_dir() or (not force and os.path.lexists(target)):
            raise _taken(target)
        temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.{os.urandom(4).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _move(temporary, target, force)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        sync_directory(target.parent)
    except FileExistsError:
        raise _taken(target) from None
    except OSError as error:
        if isinstance(error, BacktrailError):
            raise
        raise failed(error, f"write {target}") from error


def _is_special(target: Path) -> bool:
    """Whether this is a pipe, a device, or a name of an open file such as `/dev/stdout`."""
    parent = str(target.parent.resolve())
    if parent == "/dev" or parent.startswith("/proc/"):
        return os.path.lexists(target)
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _move(temporary: Path, target: Path, force: bool) -> None:
    if not force:
        try:
            # Unlike a rename, a link never takes the place of another file.
            target.hardlink_to(temporary)
            return
        except OSError as error:
            # Some file systems have no links.
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            if os.path.lexists(target):
                raise _taken(target) from None
    temporary.rename(target)


def _taken(target: Path) -> AlreadyExists:
    if target.is_dir():
        return AlreadyExists(f"{target} is a folder: name a file in it")
    return AlreadyExists(f"{target} exists: choose another name, or overwrite it with --force")
