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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from ..errors import SessionBusy
from ..events import Json, new_id
from ..stores.sqlite_connections import Database
from ..stores.sqlite_schema import Schema
from ..stores.sqlite_transactions import Execute
from ..telemetry import logger
from .brackets import Bracket, Place, Runner, Split, Transition, own_birth
from .roots import Identity
from .timeline import Line, calls_of, drop, line_of

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
        self._database = Database(path, synced=False, idle=self._idle, schema=SCHEMA)
        # Ended brackets that are told, and their workspaces. They go with the next
        # transaction; killed before, whoever finds them sees in the log that they are told.
        self._told: dict[str, int] = {}
        # Workspaces with transitions that no bracket needs any more.
        self._untidy: set[int] = set()

    @contextmanager
    def _writing(self, *, briefly: bool = False) -> Iterator[Execute]:
        """A transaction. It drops what is told, too. What is known of lines is forgotten."""
        told, untidy = dict(self._told), set(self._untidy)
        database = self._database
        with database.briefly if briefly else database.writing as execute:
            drop(execute, told, untidy.union(told.values()))
            yield execute
        self._untidy -= untidy
        for id in told:
            self._told.pop(id, None)

    def _line(self, execute: Execute, workspace: int) -> Line:
        """Where a workspace stands, in a transaction."""
        known: Line | None = self._database.heads.get(workspace)
        return line_of(execute, workspace) if known is None else known

    def _stands(self, line: Line) -> None:
        """Where a workspace stands when the transaction is done, which changes nothing else.

        Without this word, the transaction makes all that is known of lines forgotten.
        """
        self._database.writing.moves(line.workspace, line)

    def _tidy(self, *, briefly: bool = False) -> None:
        """Drop what is told."""
        if self._told or self._untidy:
            with self._writing(briefly=briefly):
                pass

    def _idle(self) -> None:
        """In the background, after a sync: drop what is told, if no other call does."""
        try:
            self._tidy(briefly=True)
        except SessionBusy:
            self._come_by()
        except Exception:
            if not self._database.closed:
                # The thread serves other stores too and must go on.
                logger().exception("told calls stay in %s", self._database.path)

    def _come_by(self) -> None:
        """Let the background do what is done when idle, unless it comes by anyway."""
        sync = self._database.sync
        if sync is not None and not sync.dirty:
            sync.later()

    def place(self, identity: Identity, path: bytes) -> Place:
        """The workspace at `path`, made if it is new."""
        with self._database.reading() as connection:
            row = connection.execute(_FIND, (path,)).fetchone()
        if row is None:
            with self._writing() as execute:
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
        with self._writing() as execute:
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

    def record(self, workspace: int, tree: bytes, *, restored: bool = False) -> None:
        """A scan found `tree`: a transition, unless that is what was known.

        What a restore did is told by its own event, and is no call's, whichever are open.
        """
        if self.tree(workspace) != tree:
            with self._database.writing as execute:
                line = self._line(execute, workspace)
                self._stands(line.moved(execute, tree, restored=restored))

    # --- brackets ------------------------------------------------------------------------

    def open_bracket(
        self, workspace: int, owner: str, tree: bytes | None, paths: list[bytes] | None,
        name: str, call: str | None, runner: Runner | None = None,
    ) -> tuple[Bracket, list[Bracket]]:  # fmt: skip
        """A call begins with `tree`, which a scan found just now; None: the newest state known.

        `runner` is the process whose death ends it; this one by default. The calls that
        were there before it come with it.
        """
        pid = os.getpid()
        by = runner or Runner(pid, own_birth(pid))
        told = [id for id, where in list(self._told.items()) if where == workspace]
        with self._database.writing as execute:
            line = self._line(execute, workspace).without(execute, told)
            there = line.calls
            if tree is None:
                tree = line.newest()
            line = line.moved(execute, tree)
            now = time.time()
            bracket = Bracket(new_id(), owner, line.changes, tree, paths, now, name, call, *by)
            self._stands(line.opened(execute, bracket))
        if told:
            self._untidy.add(workspace)
            for id in told:
                self._told.pop(id, None)
        return bracket, list(there)

    def end_bracket(
        self, workspace: int, bracket: Bracket, tree: bytes, *, told: bool
    ) -> tuple[list[Transition], set[str]]:
        """A call is over, and a scan found `tree`: what changed meanwhile, and who is at work.

        Unless it is `told`, or there is nothing to tell, the bracket stays until
        `close_bracket`: this process is about to tell it.
        """
        pid = os.getpid()
        with self._database.writing as execute:
            line = self._line(execute, workspace).moved(execute, tree)
            spans = line.since(execute, bracket.opened)
            if told or not spans:
                line = line.without(execute, [bracket.id])
                if spans:
                    drop(execute, (), [workspace])
            else:
                ended = replace(bracket, ended=True, named=True, pid=pid, born=own_birth(pid))
                line = line.changed(execute, ended)
            self._stands(line)
        return spans, line.open_besides(bracket)

    def go_on(self, workspace: int, bracket: Bracket) -> Bracket:
        """A call goes on in a second bracket, which begins with the newest state known."""
        with self._writing() as execute:
            return self._line(execute, workspace).going_on(execute, bracket)

    def split(self, workspace: int, bracket: Bracket, *, over: bool) -> Split | None:
        """A call up to the newest state known; None if nothing changed in it.

        It goes on in a second bracket, unless it is `over`. The first one stays until
        `close_bracket` if there is something to tell: this process is about to do that.
        """
        with self._writing() as execute:
            line = self._line(execute, workspace)
            spans = line.since(execute, bracket.opened)
            if not spans:
                if over:
                    drop(execute, [bracket.id], [workspace])
                return None
            later = None if over else line.going_on(execute, bracket)
            line.changed(execute, replace(bracket, ended=True, named=True))
        return Split(line.newest(), spans, line.open_besides(bracket), later)

    def keep_bracket(
        self, workspace: int, bracket: Bracket, files: dict[str, Json], runner: Runner
    ) -> None:
        """What an ended call did is kept, and no transition is needed for it any more.

        `runner` is the process that is about to tell it.
        """
        pid, born, _ = runner
        ended = replace(bracket, ended=True, named=True, files=files, pid=pid, born=born)
        with self._writing() as execute:
            line = self._line(execute, workspace)
            line.changed(execute, replace(ended, opened=line.changes))

    def close_bracket(self, workspace: int, bracket: Bracket) -> None:
        """Forget a call. Transitions that no other bracket needs are dropped with it."""
        with self._writing() as execute:
            drop(execute, [bracket.id], [workspace])

    def tell_bracket(self, workspace: int, bracket: Bracket) -> None:
        """What an ended call did is told: forget it soon, together with what is done next."""
        self._told[bracket.id] = workspace
        self._come_by()

    def brackets(self, workspace: int) -> list[Bracket]:
        """The calls under way, and those that ended and are not told yet."""
        told = set(self._told)
        with self._database.reading() as connection:
            found = calls_of(connection.execute, workspace)
        return [bracket for bracket in found if bracket.id not in told]

    # --- the journal ---------------------------------------------------------------------

    def write_journal(self, place: Place, content: bytes) -> None:
        """A restore begins: its plan and its final event, on the disk when this returns."""
        with self._writing() as execute:
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
        with self._writing() as execute:
            execute("DELETE FROM journals WHERE workspace = ?", (workspace,))
        self._database.flush()

    # --- all of them ---------------------------------------------------------------------

    def trees(self) -> set[bytes]:
        """The trees that workspaces and open brackets rely on."""
        self._tidy()
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
        try:
            self._tidy()
        finally:
            self._database.close()


_FIND = "SELECT n, device, inode, born, path FROM workspaces WHERE path = ?"


def _place(row: Json) -> Place:
    return Place(row[0], Identity(*row[1:4]), row[4])
