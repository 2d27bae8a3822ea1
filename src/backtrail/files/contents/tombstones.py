"""Tombstones: the digests of contents that were erased on purpose, kept beside the blobs."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ...stores.disk.fs import failed, sync_directory, write_all

_NAME = "purged"


def read(folder: Path) -> set[bytes]:
    """What was erased on purpose."""
    found: set[bytes] = set()
    try:
        lines = (folder / _NAME).read_bytes().split(b"\n")
    except FileNotFoundError:
        return found
    except OSError as error:
        raise failed(error, f"read {folder / _NAME}") from error
    for line in lines:
        try:
            found.add(bytes.fromhex(line.decode()))
        except ValueError:
            # Half a line, left by a power cut.
            continue
    return found


def add(folder: Path, digests: Collection[bytes]) -> None:
    """Remember that these are erased; on the disk when this returns."""
    new = sorted(set(digests) - read(folder))
    if not new:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(folder / _NAME, flags, 0o600)
        try:
            # An empty line first: the last one may be half.
            write_all(fd, b"".join(b"\n" + digest.hex().encode() for digest in new) + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(folder)
    except OSError as error:
        raise failed(error, f"write {folder / _NAME}") from error
