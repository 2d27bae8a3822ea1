"""Trays: files in front of a database, which earlier versions wrote and this one only empties.

Earlier versions laid what one edit changed into `DATABASE-tray` and moved it to the rows with
the next transaction. A process that was killed, or simply ended, left records there. They are
moved when the database is opened.

    header   "BtrlTray", generation, checksum
    record   "BTRC", generation, length, checksum, body

A record counts if its generation is the header's and its checksum is right. If the header is
damaged, the generation of the first record counts: to move records a second time does no harm.
The file is emptied in place and stays, since a process of an earlier version may have it open.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import TypeVar
from zlib import crc32

import apsw

from ..errors import SessionBusy, StoreFailed
from ..stores.disk.database import Database
from ..stores.disk.fs import NO_ROOM, failed
from ..telemetry import logger

_HEADER = struct.Struct("<8sQI")
_HEAD = struct.Struct("<4sQII")
_MARK = struct.Struct("<4sQ")
_NAME, _RECORD = b"BtrlTray", b"BTRC"
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC

_K = TypeVar("_K")
_V = TypeVar("_V")


def move_tray(
    database: Database,
    read: Callable[[list[bytes]], dict[_K, _V]],
    take: Callable[[apsw.Connection, list[bytes]], None],
) -> dict[_K, _V]:
    """Move what lies in the tray of a database to its rows; return what cannot be moved now.

    `read` decodes the bodies of the records, oldest first; `take` writes them to the rows, and
    twice is the same as once. What is returned is moved, and taken from the dictionary, before
    the first transaction that finds the disk writable. A record of a foreign shape is `Damaged`,
    and stays.
    """
    path = f"{database.path}-tray"
    try:
        if os.stat(path, follow_symlinks=False).st_size <= _HEADER.size:
            return {}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise failed(error, f"look at {path}") from error
    left = read(_read(path))

    def move(writer: apsw.Connection) -> None:
        _move(database, writer, path, take)
        database.first = None
        left.clear()

    database.first = move
    try:
        with database.writing():
            pass
    except (StoreFailed, SessionBusy):
        logger().warning("records stay in %s for now", path, exc_info=True)
    return left


def _read(path: str) -> list[bytes]:
    try:
        fd = os.open(path, os.O_RDONLY | _FLAGS)
        with open(fd, "rb") as file:
            return list(_records(file.read()))
    except OSError as error:
        raise failed(error, f"read {path}") from error


def _move(
    database: Database,
    writer: apsw.Connection,
    path: str,
    take: Callable[[apsw.Connection, list[bytes]], None],
) -> None:
    """Move all records; the caller holds the lock of the database, as those that write them do."""
    records = _read(path)
    try:
        fd = os.open(path, os.O_RDWR | _FLAGS)
    except OSError as error:
        if not records and error.errno in NO_ROOM:
            return
        raise failed(error, f"open {path}") from error
    try:
        if records:
            with writer:
                take(writer, records)
            # On the disk there before it is gone here.
            assert database.sync is not None
            database.writing.ticket = database.sync.note()
            database.sync.flush()
        _empty(fd, path)
    finally:
        try:
            os.close(fd)
        except OSError as error:
            raise failed(error, f"close {path}") from error


def _empty(fd: int, path: str) -> None:
    """Leave a header alone, on the disk: an old record must not come back over newer rows."""
    header = _HEADER.pack(_NAME, int.from_bytes(os.urandom(8)) | 1, 0)[:-4]
    try:
        os.pwrite(fd, header + struct.pack("<I", crc32(header)), 0)
        os.ftruncate(fd, _HEADER.size)
        os.fsync(fd)
    except OSError as error:
        raise failed(error, f"empty {path}") from error


def _records(data: bytes) -> Iterator[bytes]:
    """The bodies of the records that count; what is damaged between them is passed over."""
    mark = _MARK.pack(_RECORD, _generation(data))
    at = 0
    while (at := data.find(mark, at)) >= 0 and at + _HEAD.size <= len(data):
        _, _, length, check = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(body) == length and crc32(body, crc32(mark)) == check:
            at += _HEAD.size + length
            yield body
        else:
            at += 1


def _generation(data: bytes) -> int:
    """The generation that counts."""
    if len(data) >= _HEADER.size:
        name, generation, check = _HEADER.unpack_from(data)
        if name == _NAME and check == crc32(data[: _HEADER.size - 4]):
            return int(generation)
        if data.startswith(_RECORD, _HEADER.size) and len(data) >= _HEADER.size + _HEAD.size:
            return int(_MARK.unpack_from(data, _HEADER.size)[1])
    return 0
