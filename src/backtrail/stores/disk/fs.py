"""Files as every store makes them: private, replaced as a whole, on a local file system."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ...errors import BacktrailError, StoreFailed, Unsafe, Unsupported

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "ncpfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.goofys", "afpfs", "webdav"}
)
"""File systems whose locks and appends do not hold between machines."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
"""Errors that keep from writing, and need not keep from reading."""

ALLOW_NETWORK = "BACKTRAIL_ALLOW_NETWORK_FS"

_O_PATH: int | None = getattr(os, "O_PATH", None)

_local: set[str] = set()


def failed(error: OSError, doing: str) -> StoreFailed:
    """The library's error for one of the operating system's."""
    reason = error.strerror or str(error)
    hint = {
        errno.ENOSPC: "free some space and try again",
        errno.EDQUOT: "the quota is used up: free some space and try again",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EACCES: "check who owns the folder and its mode",
        errno.EMFILE: "raise the limit with `ulimit -n`, or close other files",
        errno.ENFILE: "the machine has no file handles left",
        errno.ELOOP: "a part of a store is never reached by a link: remove it",
    }.get(error.errno or 0)
    message = f"cannot {doing}: {reason}" + (f"; {hint}" if hint else "")
    return StoreFailed(message, errno=error.errno)


@contextmanager
def failing(doing: str) -> Iterator[None]:
    """Turn errors of the operating system into the library's."""
    try:
        yield
    except BacktrailError:
        raise
    except OSError as error:
        raise failed(error, doing) from error


def real_path(path: str) -> str:
    """`os.path.realpath`; where the kernel names what is there, in a third of the time."""
    if _O_PATH is not None:
        try:
            fd = os.open(path, _O_PATH | os.O_CLOEXEC)
        except (OSError, ValueError):
            return os.path.realpath(path)
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            name = ""
        finally:
            os.close(fd)
        # Something removed just now, or outside of our root, has no name but a remark.
        if name.startswith("/") and not name.endswith(" (deleted)"):
            return name
    return os.path.realpath(path)


def refuse_links(*parts: str | os.PathLike[str]) -> None:
    """`Unsafe` if a part of a store is a link: it may have come with a stranger's project.

    The way to the store itself is the person's choice, and may lead over links.
    """
    for part in parts:
        try:
            mode = os.lstat(part).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISLNK(mode):
            raise Unsafe(
                f"{os.fspath(part)} is a link, and a part of a store is never reached by one: "
                "remove it, or name the store where it really is"
            )


def has_folder(part: str | os.PathLike[str]) -> bool:
    """Whether a part of a store is there, as a folder; `Unsafe` if it is a link."""
    try:
        mode = os.lstat(part).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISLNK(mode):
        refuse_links(part)
    return stat.S_ISDIR(mode)


def make_store_folder(path: Path) -> None:
    """`make_directory` for the folder of a store that a URL names: what is made is reported."""
    made = make_directory(path)
    if made:
        from ...telemetry import emit, logger

        logger().info("made %s for a store", path)
        emit("store.folder", {"count": len(made)}, {"folder": str(path)})


def make_directory(path: Path) -> list[Path]:
    """Make `path` and the directories above it that are missing, each 0700, names synced.

    Returns those that this process found missing.
    """
    missing: list[Path] = []
    if os.path.isdir(path):
        return missing
    at = path
    while not at.exists():
        missing.append(at)
        if at.parent == at:
            break
        at = at.parent
    for directory in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        # Also if another process has just made it, and not come so far yet.
        sync_directory(directory.parent)
    return missing


def refuse_network(folder: str) -> None:
    """Raise `Unsupported` where file locks cannot be trusted; a process asks once a folder."""
    if folder in _local:
        return
    kind = _file_system(os.stat(folder).st_dev)
    if kind not in NETWORK:
        _local.add(folder)
    elif not os.environ.get(ALLOW_NETWORK):
        raise Unsupported(
            f"{folder} is on a network file system ({kind}), where locks do not hold: use a local "
            f"folder, or set {ALLOW_NETWORK}=1 if only one machine uses it"
        )


@cache
def _file_system(device: int) -> str:
    """The type of the file system with this device number; empty where it is not known."""
    if sys.platform != "linux":
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                before, _, after = line.partition(" - ")
                if before.split()[2] == number:
                    return after.split()[0]
    except (OSError, IndexError):
        return ""
    return ""


def open_file(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """`os.open`, for a `try` on the next line that closes it: no interrupt comes in between.

    One may come after a call of C code, before its result is stored. So the call is made by
    unpacking, and what Python code returns is stored before the next.
    """
    opening = map(os.open, (path,), (flags,), (mode,))
    (fd,) = opening
    return fd


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    fd = open_file(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary(path: Path) -> Path:
    """A name beside a file, for what is to take its place."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def replace_file(
    path: Path,
    content: bytes,
    mode: int = 0o600,
    like: os.stat_result | None = None,
    *,
    synced: bool = True,
) -> None:
    """Put `content` at `path`, whole or not at all.

    If `synced`, it survives a power cut; else what is there then may be empty. Owner and mode
    are those of the file that it is to be `like`, as far as the system lets us.
    """
    beside = temporary(path)
    fd = open_file(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    try:
        try:
            if like is not None:
                new, mode = os.fstat(fd), stat.S_IMODE(like.st_mode)
                if (like.st_uid, like.st_gid) != (new.st_uid, new.st_gid):
                    # Refused where we may not: a file that is not ours stays its owner's.
                    os.fchown(fd, like.st_uid, like.st_gid)
            if mode != 0o600:
                os.fchmod(fd, mode)
            write_all(fd, content)
            if synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
    if synced:
        sync_directory(path.parent)


def write_all(fd: int, content: bytes) -> None:
    """Write every byte; a disk that fills up in the middle raises."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def read_file(path: Path) -> bytes:
    """The whole content, through `os.read` so that faults can be injected in tests."""
    fd = open_file(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


MARKER = ".backtrail-store"
"""The file that marks the folder of a store; see `identity` for what is in it."""

FOLDERS = frozenset({"sessions", "memory", "scopes", "blobs"})
"""The folders of a store of JSONL files."""

_TEMPORARY = r"\.[0-9]+\.[0-9a-f]{8}"
_CACHES = r"(index|retention)\.json"
_STORE = rf"{'|'.join(sorted(FOLDERS))}|lock|retention\.log|{_CACHES}|\.{_CACHES}{_TEMPORARY}"
_DEPOT = (
    r"(blobs|catalogue)\.db(-.+)?|hooks|purged|(index|lock)-[0-9]+|roots|root-ids|upkeep(-lock)?"
    r"|unfinished"
    rf"|\.index-[0-9]+{_TEMPORARY}"
)


def parts_among(names: Collection[str], *, store: bool, depot: bool) -> set[str]:
    """Which names in a directory are a store's; a user may keep files beside them.

    `store` says that it has sessions, `depot` that it has contents of files.
    """
    layouts = [_STORE] if store else []
    layouts += [_DEPOT] if depot else []
    found = {name for name in names for layout in layouts if re.fullmatch(layout, name)}
    return found | {MARKER}.intersection(names)


def mark(folder: Path) -> None:
    """Say that a folder is a store's. One that may only be read stays as it is."""
    name = f"{folder}/{MARKER}"
    if os.path.lexists(name):
        return
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise failed(error, f"mark {folder}") from error
