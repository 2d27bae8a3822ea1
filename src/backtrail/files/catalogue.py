"""What is known about workspaces beside their trees: one line of time for each.

Every scan that finds something new records a *transition* from the last known tree, with
the brackets (tool calls) that were open since the scan before. So it can be told later who
changed what, also between sessions and processes. Transitions are kept for as long as a
bracket is open that began before them. The journal of a restore is here too.

All this helps to tell who did what; the events in the logs carry the outcome. So only the
journal is synced to the disk.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ..events import Json, new_id
from ..stores.sqlite_connections import Database
from ..stores.sqlite_schema import Schema
from .brackets import Bracket, Place, Runner, Transition, own_birth
from .roots import Identity

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


_decode_bracket = msgspec.json.Decoder(Bracket).decode
_decode_brackets = msgspec.json.Decoder(list[Bracket]).decode


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


class Catalogue:
    """The line of time of every workspace that shares one blob store."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, synced=False, idle=lambda: None, schema=SCHEMA)

    def place(self, identity: Identity, path: bytes) -> Place:
        """The workspace at `path`, made if it is new."""
        with self._database.reading() as connection:
            row = connection.execute(_FIND, (path,)).fetchone()
        if row is None:
            with self._database.writing as execute:
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
            row = connection.execute(
                "SELECT n, device, inode, born, path FROM workspaces"
                " WHERE device = ? AND inode = ? AND born = ?",
                identity,
            ).fetchone()
        return _place(row) if row else None

    def rebind(self, n: int, identity: Identity, path: bytes) -> Place:
        """The workspace is another directory now, or somewhere else."""
        with self._database.writing as execute:
            execute("DELETE FROM workspaces WHERE path = ? AND n <> ?", (path, n))
            execute(
                "UPDATE workspaces SET device = ?, inode = ?, born = ?, path = ? WHERE n = ?",
                (*identity, path, n),
            )
        return Place(n, identity, path)

    def tree(self, workspace: int) -> bytes | None:
        """The last known tree."""
        with self._database.reading() as connection:
            found: bytes | None = connection.execute(
                "SELECT tree FROM workspaces WHERE n = ?", (workspace,)
            ).get
            return found

    # --- the line of time ----------------------------------------------------------------

    def record(self, workspace: int, tree: bytes) -> None:
        """A scan found `tree`: a transition, unless that is what was known."""
        if self.tree(workspace) != tree:
            with self._database.writing as execute:
                _record(execute, workspace, tree)

    def transitions(self, workspace: int, after: int) -> list[Transition]:
        """What changed since the transition number `after`."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT n, before, after, brackets FROM transitions WHERE workspace = ? AND n > ?"
                " ORDER BY n",
                (workspace, after),
            ).fetchall()
        return [Transition(n, b, a, _decode_brackets(who)) for n, b, a, who in rows]

    # --- brackets ------------------------------------------------------------------------

    def open_bracket(
        self, workspace: int, owner: str, tree: bytes | None, paths: list[bytes] | None,
        name: str, call: str | None, runner: Runner | None = None,
    ) -> Bracket:  # fmt: skip
        """A call begins with `tree`, which a scan found just now; None: the newest state known.

        `runner` is the process whose death ends it; this one by default.
        """
        pid = os.getpid()
        by = runner or Runner(pid, own_birth(pid))
        with self._database.writing as execute:
            if tree is None:
                tree, opened = _newest(execute, workspace)
            else:
                opened = _record(execute, workspace, tree)
            bracket = Bracket(new_id(), owner, opened, tree, paths, time.time(), name, call, *by)
            execute(
                "INSERT INTO brackets VALUES(?, ?, ?, ?)",
                (bracket.id, workspace, opened, _encoded(bracket)),
            )
        return bracket

    def end_bracket(self, bracket: Bracket) -> None:
        """The call is over, and what it did is about to be told, by this process."""
        pid = os.getpid()
        with self._database.writing as execute:
            body = _encoded(replace(bracket, ended=True, pid=pid, born=own_birth(pid)))
            execute("UPDATE brackets SET body = ? WHERE id = ?", (body, bracket.id))

    def go_on(self, workspace: int, bracket: Bracket) -> Bracket:
        """A call goes on in a second bracket, which begins with the newest state known."""
        with self._database.writing as execute:
            tree, opened = _newest(execute, workspace)
            later = replace(bracket, id=new_id(), opened=opened, tree=tree)
            execute(
                "INSERT INTO brackets VALUES(?, ?, ?, ?)",
                (later.id, workspace, opened, _encoded(later)),
            )
        return later

    def close_bracket(self, workspace: int, bracket: Bracket) -> None:
        """The call is over. Transitions that no open bracket needs are dropped."""
        with self._database.writing as execute:
            execute("DELETE FROM brackets WHERE id = ?", (bracket.id,))
            execute(
                "DELETE FROM transitions WHERE workspace = ?1 AND n <= coalesce("
                "(SELECT min(opened) FROM brackets WHERE workspace = ?1), n)",
                (workspace,),
            )

    def brackets(self, workspace: int) -> list[Bracket]:
        """The calls under way, and those that ended and are not told yet."""
        with self._database.reading() as connection:
            return _brackets(connection.execute, workspace)

    # --- the journal ---------------------------------------------------------------------

    def write_journal(self, place: Place, content: bytes) -> None:
        """A restore begins: its plan and its final event, on the disk when this returns."""
        with self._database.writing as execute:
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
        return (_place(row[:5]), row[5]) if row else None

    def drop_journal(self, workspace: int) -> None:
        """The restore is finished."""
        with self._database.writing as execute:
            execute("DELETE FROM journals WHERE workspace = ?", (workspace,))
        self._database.flush()

    # --- all of them ---------------------------------------------------------------------

    def trees(self) -> set[bytes]:
        """The trees that workspaces and open brackets rely on."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT tree FROM workspaces WHERE tree IS NOT NULL UNION "
                "SELECT before FROM transitions UNION SELECT after FROM transitions"
            ).fetchall()
            return {tree for (tree,) in rows}

    def places(self) -> list[Place]:
        """Every workspace known."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT n, device, inode, born, path FROM workspaces"
            ).fetchall()
            return [_place(row) for row in rows]

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()


_FIND = "SELECT n, device, inode, born, path FROM workspaces WHERE path = ?"


def _place(row: Json) -> Place:
    return Place(row[0], Identity(*row[1:4]), row[4])


def _record(execute: Json, workspace: int, tree: bytes) -> int:
    """Note a transition if the tree is another; the number of the last one."""
    before, count = _newest(execute, workspace)
    if before == tree:
        return count
    open_now = [bracket for bracket in _brackets(execute, workspace) if not bracket.ended]
    if before is not None and open_now:
        execute(
            "INSERT INTO transitions VALUES(?, ?, ?, ?, ?)",
            (workspace, count + 1, before, tree, _encoded(open_now)),
        )
    execute("UPDATE workspaces SET tree = ?, changes = ? WHERE n = ?", (tree, count + 1, workspace))
    return count + 1


def _newest(execute: Json, workspace: int) -> tuple[bytes, int]:
    """The newest state known, and the number of the transition to it."""
    row: tuple[bytes, int] = execute(
        "SELECT tree, changes FROM workspaces WHERE n = ?", (workspace,)
    ).fetchone()
    return row


def _brackets(execute: Json, workspace: int) -> list[Bracket]:
    rows = execute("SELECT body FROM brackets WHERE workspace = ?", (workspace,)).fetchall()
    return [_decode_bracket(body) for (body,) in rows]
