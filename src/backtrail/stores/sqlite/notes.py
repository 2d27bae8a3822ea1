"""Project notes in SQLite: one row for each directory."""

from __future__ import annotations

import os

from ...events import now
from ..disk.database import Database
from ..notes import Memory, check_note


class Note(Memory):
    """The note of one directory."""

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
        with self._database.writing as execute:
            execute("INSERT OR REPLACE INTO notes VALUES(?, ?, ?, ?)", (*self._where, text, now()))
        self._database.flush()
