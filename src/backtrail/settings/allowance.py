"""Folders in which a person lets strangers' data act.

A session from a bundle, or a store that a project brings, may put files into a folder that run
by themselves: `.envrc`, `.mcp.json`, an agent's settings. So each folder is allowed once, by
the person. That is kept in the person's own state folder, never in the project or in a store,
and holds for the directory itself (device and inode) at its real path: another one that comes
in its place is asked about anew.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .._startup.folders import state_folder
from ..errors import NotFound, StoreFailed

ORIGIN = "imported_from"
"""The metadata that marks a session which came from elsewhere: `bundle` or `transcript`.

Whatever takes a session in sets it, over what the data says of itself; forks and copies carry
it on.
"""


def allow(folder: str | os.PathLike[str]) -> str:
    """Let strangers' data act in a folder from now on; the folder by its real path."""
    path, identity = _known(folder)
    if identity is None:
        raise NotFound(f"{path} is not a directory, so it cannot be allowed")
    import json

    place = _place(path)
    content = json.dumps({"path": path, "device": identity[0], "inode": identity[1]})
    part = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, content.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(place)
    except OSError as error:
        raise StoreFailed(
            f"cannot note in {place} that {path} is allowed: {error.strerror}", errno=error.errno
        ) from error
    return path


def is_allowed(folder: str | os.PathLike[str]) -> bool:
    """Whether the person has allowed this very directory."""
    path, identity = _known(folder)
    return identity is not None and _read(_place(path)) == (path, *identity)


def forbid(folder: str | os.PathLike[str]) -> bool:
    """Take an allowance back; whether there was one."""
    path, _ = _known(folder)
    try:
        _place(path).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreFailed(
            f"cannot remove {_place(path)}: {error.strerror}", errno=error.errno
        ) from error
    return True


def allowed() -> list[str]:
    """The folders that are allowed and still there, sorted."""
    try:
        found = [_read(place) for place in _folder().iterdir()]
    except OSError:
        return []
    return sorted(one[0] for one in found if one is not None and is_allowed(one[0]))


def _folder() -> Path:
    return Path(state_folder(), "allowed")


def _place(path: str) -> Path:
    import hashlib

    return _folder() / hashlib.sha256(os.fsencode(path)).hexdigest()[:40]


def _known(folder: str | os.PathLike[str]) -> tuple[str, tuple[int, int] | None]:
    """A folder's real path, and what is there: device and inode."""
    path = os.path.realpath(folder)
    try:
        status = Path(path).stat()
    except OSError:
        return path, None
    return path, (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _read(place: Path) -> tuple[str, int, int] | None:
    import json

    try:
        found = json.loads(place.read_bytes())
        return str(found["path"]), int(found["device"]), int(found["inode"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
