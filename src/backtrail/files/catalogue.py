"""What is known about workspaces beside their trees: one line of time for each.

Every scan that finds something new records a *transition* from the last known tree, with
the brackets (tool calls) that were open since the scan before. So it can be told later who
changed what, also between sessions and processes. The journal of a restore is here too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..events import Json, new_id, now
from ..stores.sqlite_connections import Database
from ..stores.sqlite_schema import Schema

_FIRST = """
CREATE TABLE workspaces(
  n INTEGER PRIMARY KEY AUTOINCREMENT, device INTEGER NOT NULL, inode INTEGER NOT NULL,
  path TEXT NOT NULL, tree BLOB, changes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX workspaces_path ON workspaces(path);
CREATE TABLE transitions(
  workspace INTEGER NOT NULL, n INTEGER NOT NULL, before BLOB, after BLOB NOT NULL,
  brackets TEXT NOT NULL, ts TEXT NOT NULL, PRIMARY KEY(workspace, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE brackets(
  id TEXT PRIMARY KEY, workspace INTEGER NOT NULL, owner TEXT NOT NULL, opened INTEGER NOT NULL,
  tree BLOB NOT NULL, paths TEXT, since REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE journals(
  workspace INTEGER PRIMARY KEY, id TEXT NOT NULL, content BLOB NOT NULL
) STRICT;
"""

SCHEMA = Schema(0x426B7477, (_FIRST,))


@dataclass(frozen=True, slots=True)
class Place:
    """A workspace's identity: the directory itself, and where it is."""

    n: int
    device: int
    inode: int
    path: str
    tree: bytes | None


@dataclass(frozen=True, slots=True)
class Bracket:
    """A tool call under way: whose it is, and what it said it would touch (None: anything)."""

    id: str
    owner: str
    opened: int
    tree: bytes
    paths: list[str] | None
    since: float


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of the workspace between two scans, and the brackets open meanwhile."""

    n: int
    before: bytes | None
    after: bytes
    brackets: list[Bracket]


_decode_brackets = msgspec.json.Decoder(list[Bracket]).decode


class Catalogue:
    """The line of time of every workspace that shares one blob store."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, synced=True, idle=lambda: None, schema=SCHEMA)

    def place(self, device: int, inode: int, path: str) -> Place:
        """The workspace at `path`, made if it is new."""
        with self._database.writing as execute:
            execute(
                "INSERT OR IGNORE INTO workspaces(device, inode, path) VALUES(?, ?, ?)",
                (device, inode, path),
            )
            row = execute(
                "SELECT n, device, inode, path, tree FROM workspaces WHERE path = ?", (path,)
            ).fetchone()
        return Place(*row)

    def rebind(self, n: int, device: int, inode: int, path: str) -> None:
        """The workspace is another directory now, or somewhere else."""
        with self._database.writing as execute:
            execute("DELETE FROM workspaces WHERE path = ? AND n <> ?", (path, n))
            execute(
                "UPDATE workspaces SET device = ?, inode = ?, path = ? WHERE n = ?",
                (device, inode, path, n),
            )

    def tree(self, workspace: int) -> bytes | None:
        """The last known tree."""
        with self._database.reading() as connection:
            found: bytes | None = connection.execute(
                "SELECT tree FROM workspaces WHERE n = ?", (workspace,)
            ).get
            return found

    # --- the line of time ----------------------------------------------------------------

    def record(self, workspace: int, tree: bytes) -> Transition | None:
        """A scan found `tree`: a transition, unless that is what was known."""
        with self._database.writing as execute:
            before, count = execute(
                "SELECT tree, changes FROM workspaces WHERE n = ?", (workspace,)
            ).fetchone()
            if before == tree:
                return None
            open_now = self._brackets(execute, workspace)
            transition = Transition(count + 1, before, tree, open_now)
            execute(
                "INSERT INTO transitions VALUES(?, ?, ?, ?, ?, ?)",
                (workspace, count + 1, before, tree, _encoded(open_now), now()),
            )
            execute(
                "UPDATE workspaces SET tree = ?, changes = ? WHERE n = ?",
                (tree, count + 1, workspace),
            )
        return transition

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
        self, workspace: int, owner: str, tree: bytes, paths: list[str] | None
    ) -> Bracket:
        """A call begins."""
        with self._database.writing as execute:
            opened: int = execute(
                "SELECT changes FROM workspaces WHERE n = ?", (workspace,)
            ).get
            bracket = Bracket(new_id(), owner, opened, tree, paths, time.time())
            execute(
                "INSERT INTO brackets VALUES(?, ?, ?, ?, ?, ?, ?)",
                (
                    *(bracket.id, workspace, owner, opened, tree),
                    *(None if paths is None else msgspec.json.encode(paths).decode(), bracket.since),
                ),
            )
        return bracket

    def close_bracket(self, bracket: Bracket) -> None:
        """The call is over."""
        with self._database.writing as execute:
            execute("DELETE FROM brackets WHERE id = ?", (bracket.id,))

    def brackets(self, workspace: int) -> list[Bracket]:
        """The calls under way."""
        with self._database.reading() as connection:
            return self._brackets(connection.execute, workspace)

    def _brackets(self, execute: Json, workspace: int) -> list[Bracket]:
        rows = execute(
            "SELECT id, owner, opened, tree, paths, since FROM brackets WHERE workspace = ?",
            (workspace,),
        ).fetchall()
        return [
            Bracket(id, owner, opened, tree, msgspec.json.decode(p) if p else None, since)
            for id, owner, opened, tree, p, since in rows
        ]

    # --- the journal ---------------------------------------------------------------------

    def write_journal(self, workspace: int, id: str, content: bytes) -> None:
        """A restore begins: its plan and its final event, on the disk when this returns."""
        with self._database.writing as execute:
            execute("INSERT INTO journals VALUES(?, ?, ?)", (workspace, id, content))
        self._database.flush()

    def journal(self, workspace: int) -> tuple[str, bytes] | None:
        """The restore that was cut short, if any."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT id, content FROM journals WHERE workspace = ?", (workspace,)
            ).fetchone()
        return (row[0], row[1]) if row else None

    def drop_journal(self, workspace: int) -> None:
        """The restore is finished."""
        with self._database.writing as execute:
            execute("DELETE FROM journals WHERE workspace = ?", (workspace,))
        self._database.flush()

    def trees(self) -> list[bytes]:
        """The present tree of every workspace."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT tree FROM workspaces WHERE tree IS NOT NULL")
            return [tree for (tree,) in rows.fetchall()]

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()


def _encoded(brackets: list[Bracket]) -> str:
    return msgspec.json.encode(brackets).decode()
