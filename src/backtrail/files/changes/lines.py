"""Where lines of time are kept: the newest in a tray, all in the database behind it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import apsw

from ...errors import SessionBusy, StoreFailed
from ...stores.disk.database import Database
from ...stores.disk.schema import Schema, failure
from .brackets import Transition
from .timeline import Line, LineTray, Older, store, stored_line, stored_spans


class Lines:
    """The lines of all workspaces of one catalogue.

    Every transaction on the database moves what is in the tray to the rows first.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self.database = Database(path, synced=False, schema=schema, first=self._empty_tray)
        self._tray = LineTray(path)
        # Calls that are over for everybody, and could not be taken from their line yet.
        self.over: set[str] = set()

    def line(self, workspace: int, *, locked: bool = False) -> Line:
        """Where a workspace stands; what is not in the tray is in the database."""
        self.database.check_open()
        line = self._tray.lines().get(workspace)
        if line is None:
            with self.database.reading(locked=locked) as connection:
                line = stored_line(connection.execute, workspace)
        for call in line.calls if self.over else ():
            if call.id in self.over:
                line = line.without(call.id)
        return line

    def all(self) -> list[Line]:
        """Where all workspaces stand; one that moves meanwhile may be there as it was, too."""
        # Rows that are not up to date would tell of calls that are over.
        self.settle()
        laid = list(self._tray.lines().values())
        with self.database.reading() as connection:
            rows = connection.execute("SELECT n FROM workspaces").fetchall()
            return laid + [stored_line(connection.execute, n) for (n,) in rows]

    def moving(self, workspace: int) -> Moving:
        """A context in which the line of a workspace may be moved, by nobody else."""
        return Moving(self, workspace)

    def since(self, line: Line, number: int) -> list[Transition]:
        """What changed since the transition of this number; only for who holds the lock."""
        return line.since(number, self._older(line, locked=True))

    def trees(self, line: Line) -> set[bytes]:
        """The trees that a workspace and its calls rely on."""
        return line.trees(self._older(line))

    def _older(self, line: Line, *, locked: bool = False) -> Older:
        def older(number: int) -> list[Transition]:
            with self.database.reading(locked=locked) as connection:
                return stored_spans(connection.execute, line.workspace, number)

        return older

    def keep(self, line: Line) -> None:
        """A workspace stands here now; only for who holds the lock."""
        tray = self._tray
        if line.is_long or not (tray.is_ready() and tray.lay(line)):
            try:
                self._empty_tray(self.database.writer(), line)
            except apsw.Error as error:
                raise failure(error, self.database.path) from error

    def _empty_tray(self, writer: apsw.Connection, newest: Line | None = None) -> None:
        """Move all that is in the tray to the rows; only for who holds the lock."""
        laid = self._tray.lines()
        lines = laid if newest is None else laid | {newest.workspace: newest}
        if lines:
            with writer:
                for line in lines.values():
                    store(writer.execute, line)
        if laid:
            self._tray.clear()

    def settle(self) -> None:
        """Let the rows tell all, if they can be written."""
        if self._tray.lines():
            with suppress(StoreFailed, SessionBusy), self.database.writing:
                pass

    def flush(self) -> None:
        """Return when all of it is on the disk."""
        self.database.flush()
        self._tray.flush()

    def close(self) -> None:
        """Let go of the files."""
        try:
            self._tray.close()
        finally:
            self.database.close()


class Moving:
    """The line of a workspace, while nobody else moves it. What `line` is set to is kept."""

    __slots__ = ("_before", "_lines", "_workspace", "line")

    def __init__(self, lines: Lines, workspace: int) -> None:
        self._lines = lines
        self._workspace = workspace

    def __enter__(self) -> Moving:
        database = self._lines.database
        database.enter()
        try:
            self.line = self._before = self._lines.line(self._workspace, locked=True)
        except BaseException:
            database.lock.release()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self.line is not self._before:
                self._lines.keep(self.line)
        finally:
            self._lines.database.lock.release()
