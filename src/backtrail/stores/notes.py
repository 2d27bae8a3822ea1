"""Project notes: one Markdown text for each directory."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .._startup.hashing import sha256
from ..errors import AlreadyExists, InvalidData, NotFound
from ..events import NewEvent, SessionInfo, encode_data

if TYPE_CHECKING:
    from .base import Store


class Memory(ABC):
    """One Markdown note of a project."""

    @abstractmethod
    def read(self) -> str:
        """The note; empty when there is none."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Replace the note, durably and as a whole; `InvalidData` for what is no such text."""


class SessionMemory(Memory):
    """A note kept as the last event of a session of its own: works on any store."""

    def __init__(self, store: Store, cwd: str) -> None:
        self._store = store
        self._cwd = cwd
        self._id = f"memory-{note_name(cwd)}"

    def read(self) -> str:
        try:
            events = self._store.tail(self._id, 1)
        except NotFound:
            return ""
        return str(events[0].data.get("text", "")) if events else ""

    def write(self, text: str) -> None:
        check_note(text)
        try:
            self._store.create(SessionInfo(id=self._id, title=f"Notes for {self._cwd}"))
        except AlreadyExists:
            pass
        self._store.append(self._id, [NewEvent("note", {"text": text})])
        self._store.flush()


def check_note(text: object) -> str:
    """Return `text` if it can be a note: Unicode, and no longer than an event."""
    if not isinstance(text, str):
        raise InvalidData(f"a note is text, not {type(text).__name__}")
    encode_data({"text": text})
    return text


def note_name(cwd: str) -> str:
    """A short name for a directory that two directories never share."""
    return sha256(os.fsencode(cwd)).hexdigest()[:32]
