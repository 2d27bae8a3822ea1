"""The random id of a store, kept in it: its name for references and journals, wherever it is.

A database has a table for it. A folder of files has it in its marker, `.backtrail-store`: a line
with the id, and one with the URL that references named the store by before it had one.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .fs import MARKER, NO_ROOM

if TYPE_CHECKING:
    from .database import Database

_MARKER = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def identity_of(database: Database, url: str) -> tuple[str, str]:
    """A database's id and the URL that references may name it by; that is noted once."""
    import apsw

    try:
        with database.reading() as connection:
            found = connection.execute("SELECT id, was FROM identity").fetchone()
        if found is None:
            return "", ""
        id, was = str(found[0]), found[1]
        if was == "":
            with database.writing() as execute:
                execute("UPDATE identity SET was = ? WHERE was = ''", (url,))
        return id, url if was == "" else str(was or "")
    except (apsw.SQLError, apsw.ReadOnlyError, OSError):
        # An older database that cannot be written to has none.
        return "", ""


def file_identity(folder: Path, url: str) -> tuple[str, str]:
    """The same for a folder of files; one that has none yet was known by its URL."""
    try:
        fd = os.open(folder / MARKER, os.O_RDONLY | _MARKER)
    except OSError:
        return "", ""
    try:
        found = _read(fd)
    finally:
        os.close(fd)
    return found or make_identity(folder, url)


def make_identity(folder: Path, was: str = "") -> tuple[str, str]:
    """Give a folder an id, unless it has one; empty where it cannot be written."""
    try:
        fd = os.open(folder / MARKER, os.O_RDWR | _MARKER)
    except OSError:
        return "", ""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        found = _read(fd)
        if found is None:
            found = os.urandom(16).hex(), was
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{found[0]}\n{found[1]}\n".encode(), 0)
            os.fsync(fd)
        return found
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return "", ""
    finally:
        os.close(fd)


def has_id(marker: int) -> bool:
    """Whether an open marker has an id."""
    return _read(marker) is not None


def _read(fd: int) -> tuple[str, str] | None:
    """What a marker says; None if it is empty, or was cut short."""
    lines = os.pread(fd, 8192, 0).decode("utf-8", "replace").split("\n")
    return (lines[0], lines[1]) if len(lines) == 3 and _ID.fullmatch(lines[0]) else None
