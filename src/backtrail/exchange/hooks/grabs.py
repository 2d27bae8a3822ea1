"""Calls that began before the first import was done, from the hook before to the hook after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..._startup.hashing import sha256
from ...files.changes.owed import Grab
from .places import folder_of

if TYPE_CHECKING:
    from ...stores.base import Store


class _Kept(msgspec.Struct, frozen=True):
    before: str
    paths: list[str]


def keep(store: Store, session_id: str, call: str, grab: Grab) -> None:
    """Keep what a call of this id, or else of this name, found."""
    path = _path(store, session_id, call)
    path.parent.mkdir(0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        kept = _Kept(grab.before.hex(), [os.fsdecode(path) for path in grab.paths])
        file.write(msgspec.json.encode(kept))


def take(store: Store, session_id: str, call: str) -> Grab | None:
    """What was kept for a call, and keep it no longer."""
    path = _path(store, session_id, call)
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        return Grab(bytes.fromhex(kept.before), [os.fsencode(path) for path in kept.paths])
    except (OSError, ValueError):
        return None
    finally:
        path.unlink(missing_ok=True)


def _path(store: Store, session_id: str, call: str) -> Path:
    name = sha256(f"{session_id} {call}".encode("utf-8", "replace")).hexdigest()[:32]
    return folder_of(store) / "grabs" / name
