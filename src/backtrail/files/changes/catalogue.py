"""What is known about workspaces beside their trees: where they are, and restores under way.

Their lines of time are in `timeline`. All this serves to attribute changes; the events in the logs
carry the outcome. So only the writer of a journal waits for the disk here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import Damaged
from ...events import Json
from ...stores.disk.checks import decoded, typed
from ...stores.disk.fs import failed, sync_directory
from ...stores.disk.schema import Execute, Schema
from ..names import RESTORING
from ..workspace.roots import Identity
from .brackets import Place
from .timeline import Lines

_FIRST = """
CREATE TABLE workspaces(
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  device INTEGER NOT NULL, inode INTEGER NOT NULL, born INTEGER NOT NULL,
  path BLOB NOT NULL UNIQUE, tree BLOB, changes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE transitions(
  workspace INTEGER NOT NULL, n INTEGER NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL,
  brackets TEXT NOT NULL, PRIMARY KEY(workspace, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE brackets(
  id TEXT PRIMARY KEY, workspace INTEGER NOT NULL, opened INTEGER NOT NULL, body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE journals(
  workspace INTEGER PRIMARY KEY,
  device INTEGER NOT NULL, inode INTEGER NOT NULL, born INTEGER NOT NULL,
  path BLOB NOT NULL, content BLOB NOT NULL
) STRICT;
"""

SCHEMA = Schema(0x426B7477, (_FIRST,), "PRAGMA page_size = 4096")


class Catalogue:
    """The line of time of every workspace that shares one blob store."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self.lines = Lines(path, SCHEMA)
        self._database = self.lines.database

    # --- places --------------------------------------------------------------------------

    def place(self, identity: Identity, path: bytes) -> Place:
        """The workspace at `path`, made if it is new."""
        with self._database.reading() as connection:
            row = connection.execute(_FIND, (path,)).fetchone()
        if row is None:
            with self._database.writing() as execute:
                execute(
                    "INSERT OR IGNORE INTO workspaces(device, inode, born, path)"
                    " VALUES(?, ?, ?, ?)",
                    (*identity, path),
                )
                row = execute(_FIND, (path,)).fetchone()
        return _place(row)

    def moved_from(self, identity: Identity) -> Place | None:
        """The workspace that was this very directory, wherever it was."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT n, device, inode, born, path FROM workspaces WHERE inode = ? AND born = ?",
                identity[1:],
            ).fetchall()
        found = [place for place in map(_place, rows) if place.identity.is_same(identity)]
        # One directory may be mounted at several places.
        found.sort(key=lambda place: (place.gone, place.identity != identity))
        return found[0] if found else None

    def renew(self, identity: Identity, path: bytes) -> Place:
        """Another directory is at `path` now, and is a workspace of its own."""
        with self._database.writing() as execute:
            execute(_GIVE_WAY, (path, -1))
            execute(
                "INSERT INTO workspaces(device, inode, born, path) VALUES(?, ?, ?, ?)",
                (*identity, path),
            )
            return _place(execute(_FIND, (path,)).fetchone())

    def rebind(self, n: int, identity: Identity, path: bytes) -> Place:
        """The workspace is another directory now, or somewhere else."""
        with self._database.writing() as execute:
            execute(_GIVE_WAY, (path, n))
            execute(
                "UPDATE workspaces SET device = ?, inode = ?, born = ?, path = ? WHERE n = ?",
                (*identity, path, n),
            )
        return Place(n, identity, path)

    # --- the journal ---------------------------------------------------------------------

    def write_journal(self, place: Place, content: bytes) -> None:
        """A restore begins: its plan and its final event, on the disk when this returns."""
        with self._database.writing() as execute:
            # In the transaction, so that no process takes the mark away that has seen no journal.
            _put_mark(self._folder)
            execute(
                "INSERT INTO journals VALUES(?, ?, ?, ?, ?, ?)",
                (place.n, *place.identity, place.path, content),
            )
        self._database.flush()

    def journal(self, workspace: int) -> tuple[Place, bytes] | None:
        """The restore that was cut short, if any, and for which directory it was meant."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT workspace, device, inode, born, path, content FROM journals"
                " WHERE workspace = ?",
                (workspace,),
            ).fetchone()
        if row is None:
            return None
        # One that is no bytes can be set aside as any other that cannot be read.
        return _place(row[:5]), row[5] if isinstance(row[5], bytes) else b""

    def drop_journal(self, workspace: int) -> None:
        """The restore is finished."""
        with self._database.writing() as execute:
            execute("DELETE FROM journals WHERE workspace = ?", (workspace,))
            self._unmark(execute)
        self._database.flush()

    def unfinished(self) -> list[Place]:
        """The directories whose restore was cut short, or is under way."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT workspace, device, inode, born, path FROM journals WHERE workspace > 0"
            ).fetchall()
        return [_place(row) for row in rows]

    def _unmark(self, execute: Execute) -> None:
        if execute("SELECT 1 FROM journals WHERE workspace > 0").fetchone() is None:
            _take_mark(self._folder)

    def set_aside(self, workspace: int, why: str) -> None:
        """The restore that was cut short can never be finished: keep it, out of the way."""
        found = self.journal(workspace)
        if found is None:
            return
        place, content = found
        kept = msgspec.msgpack.encode((why, content))
        with self._database.writing() as execute:
            # No workspace has a number below one.
            execute(
                "INSERT OR REPLACE INTO journals VALUES(?, ?, ?, ?, ?, ?)",
                (-workspace, *place.identity, place.path, kept),
            )
            execute("DELETE FROM journals WHERE workspace = ?", (workspace,))
            self._unmark(execute)
        self._database.flush()

    def set_aside_of(self, workspace: int) -> tuple[str, bytes] | None:
        """Why a restore was set aside, and its journal; None if none was."""
        found = self.journal(-workspace)
        if found is None:
            return None
        try:
            return decoded(_decode_aside, found[1], "the journal that was set aside")
        except Damaged as error:
            return str(error), b""

    def drop_set_aside(self, workspace: int) -> None:
        """The restore that was set aside is finished, or given up."""
        self.drop_journal(-workspace)

    # --- all of them ---------------------------------------------------------------------

    def places(self) -> list[Place]:
        """Every workspace known."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT n, device, inode, born, path FROM workspaces"
            ).fetchall()
            return [_place(row) for row in rows]

    def close(self) -> None:
        """Let go of the files."""
        self._database.close()


_decode_aside = msgspec.msgpack.Decoder(tuple[str, bytes]).decode

_FIND = "SELECT n, device, inode, born, path FROM workspaces WHERE path = ?"

# No path holds a zero, and each has one workspace: one that is gone keeps its path before it.
# What sessions need of it, they rely on themselves.
_GIVE_WAY = (
    "UPDATE workspaces SET path = CAST(path || x'00' || n AS BLOB), tree = NULL"
    " WHERE path = ? AND n <> ?"
)


def _place(row: Json) -> Place:
    typed(row, "the record of a workspace", int, int, int, int, bytes)
    path, _, gone = row[4].partition(b"\0")
    return Place(row[0], Identity(*row[1:4]), path, bool(gone))


def _put_mark(folder: Path) -> None:
    """Say that a restore begins. It is on the disk when this returns."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        os.close(os.open(folder / RESTORING, flags, 0o600))
        sync_directory(folder)
    except OSError as error:
        raise failed(error, f"write {folder / RESTORING}") from error


def _take_mark(folder: Path) -> None:
    """Say that no restore is unfinished. One that stays costs each opening of a session a look."""
    with suppress(OSError):
        (folder / RESTORING).unlink()
