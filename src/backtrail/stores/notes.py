"""Project notes: one Markdown text for each directory, and where each kind of store keeps it."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .._startup.hashing import sha256
from ..errors import AlreadyExists, Damaged, InvalidData, NotFound
from ..events import NewEvent, SessionInfo, encode_data, now
from .disk.fs import failed, failing, make_directory, read_file, refuse_links, replace_file

if TYPE_CHECKING:
    from .base import Store
    from .disk.database import Database


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


class FileMemory(Memory):
    """A note as a Markdown file of its own, while its store is open."""

    def __init__(self, check_open: Callable[[], None], folder: Path, cwd: str) -> None:
        self._check_open = check_open
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", os.path.basename(cwd))[:40] or "root"
        self._path = folder / f"{stem}-{note_name(cwd)[:16]}.md"

    def read(self) -> str:
        self._check_open()
        refuse_links(self._path.parent)
        try:
            return read_file(self._path).decode()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise Damaged(f"the note {self._path} is not UTF-8: {error}") from error
        except OSError as error:
            raise failed(error, "read the project's note") from error

    def write(self, text: str) -> None:
        self._check_open()
        content = check_note(text).encode()
        refuse_links(self._path.parent)
        with failing("write the project's note"):
            make_directory(self._path.parent)
            replace_file(self._path, content)


class DatabaseMemory(Memory):
    """A note as a row of a database."""

    def __init__(self, database: Database, scope: str, cwd: str) -> None:
        self._database = database
        self._where = (scope, os.fsencode(cwd).decode(errors="backslashreplace"))

    def read(self) -> str:
        with self._database.reading() as connection:
            query = "SELECT text FROM notes WHERE scope = ? AND cwd = ?"
            text = connection.execute(query, self._where).get
        return text or ""

    def write(self, text: str) -> None:
        check_note(text)
        with self._database.writing() as execute:
            execute("INSERT OR REPLACE INTO notes VALUES(?, ?, ?, ?)", (*self._where, text, now()))
        self._database.flush()
