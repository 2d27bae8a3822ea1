"""What is known about workspaces beside their trees: one line of time for each.

Every scan that finds something new records a *transition* from the last known tree, with
the brackets (tool calls) that were open since the scan before. So it is known later which call
changed what, also between sessions and processes. Transitions are kept for as long as a
bracket is open that began before them. The journal of a restore is here too.

All this serves to attribute changes; the events in the logs carry the outcome. So only the writer
of a journal waits for the disk here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ...errors import BacktrailError, Damaged
from ...events import Json, new_id
from ...stores.disk.checks import decoded, typed
from ...stores.disk.schema import Schema
from ...stores.disk.transactions import Execute
from ...telemetry import logger
from ..workspace.roots import Identity
from .brackets import Bracket, Met, Opening, Place, Runner, Split, Transition, own_birth
from .timeline import Line, Lines

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
        self._lines = Lines(path, SCHEMA)
        self._database = self._lines.database

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

    # --- the line of time ----------------------------------------------------------------

    def tree(self, workspace: int) -> bytes | None:
        """The last known tree."""
        return self._lines.line(workspace).tree

    def record(self, workspace: int, tree: bytes, *, restored: bool = False) -> None:
        """A scan found `tree`: a transition, unless that is what was known.

        What a restore did is recorded by its own event, and is no call's, whichever are open.
        """
        if self.tree(workspace) != tree:
            with self._lines.moving(workspace) as now:
                now.line = now.line.moved(tree, restored=restored)

    # --- brackets ------------------------------------------------------------------------

    def open_bracket(
        self, workspace: int, owner: str, tree: bytes | None, paths: list[bytes] | None,
        name: str, call: str | None, runner: Runner | None = None, opening: Opening | None = None,
    ) -> tuple[Bracket, list[Bracket]]:  # fmt: skip
        """A call begins with `tree`, which a scan found just now; None: the newest state known.

        `runner` is the process whose death ends it; this one by default. `opening` is what
        the machine knows of it. The calls that were there before it come with it.
        """
        pid = os.getpid()
        pid, birth, agent, program, given, gist = runner or Runner(pid, own_birth(pid))
        id, since, store, mark, met = opening or Opening(new_id(), time.time())
        with self._lines.moving(workspace) as now:
            there = now.line.calls
            tree = now.line.newest if tree is None else tree
            line = now.line.moved(tree)
            bracket = Bracket(
                id, owner, line.changes, tree, paths, since, name, call, pid, birth, agent,
                store=store, program=program, mark=mark, met=list(met), given=given, gist=gist,
            )  # fmt: skip
            now.line = line.opened(bracket)
        return bracket, list(there)

    def end_bracket(
        self, workspace: int, bracket: Bracket, tree: bytes, *, recorded: bool,
        met: Collection[Met] = (),
    ) -> tuple[list[Transition], set[str]]:  # fmt: skip
        """A call is over, and a scan found `tree`: what changed meanwhile, and which others are at
        work.

        Unless it is `recorded`, or there is nothing to record, the bracket stays until
        `close_bracket`: this process is about to record it. `met` are all the calls elsewhere
        that it met.
        """
        pid = os.getpid()
        with self._lines.moving(workspace) as now:
            line = now.line.moved(tree)
            spans = now.since(line, bracket.opened)
            if recorded or not spans:
                now.line = line.without(bracket.id)
            else:
                ended = replace(
                    bracket,
                    ended=True,
                    named=True,
                    pid=pid,
                    born=own_birth(pid),
                    met=list(met),
                )
                now.line = line.changed(ended)
        return spans, line.open_besides(bracket)

    def seen_by(self, workspace: int, bracket: Bracket) -> tuple[list[Transition], set[str]]:
        """What changed since a call began, and which others are at work, up to the last scan."""
        line = self._lines.line(workspace)
        return self._lines.since(line, bracket.opened), line.open_besides(bracket)

    def ask(self, workspace: int, bracket: Bracket, at: float) -> None:
        """A person is asked whether an open call may run; the first time counts."""
        with self._lines.moving(workspace) as now:
            for call in now.line.calls:
                if call.id == bracket.id and not (call.ended or call.question):
                    now.line = now.line.changed(replace(call, question=at))

    def split(
        self, workspace: int, bracket: Bracket, *, over: bool, left_to: Runner | None = None
    ) -> Split | None:
        """A call up to the newest state known; None if nothing changed in it, or it is over.

        It goes on in a second bracket, unless it is `over`; with `left_to`, as a call of that
        process that its agent gave up. The first one stays until `close_bracket` if there is
        something to record: this process is about to do that.
        """
        pid = os.getpid()
        with self._lines.moving(workspace) as now:
            line = now.line
            if not any(call.id == bracket.id and not call.ended for call in line.calls):
                # Another process of the session was quicker.
                return None
            spans = now.since(line, bracket.opened)
            goes_on = bracket
            if left_to is not None:
                goes_on = replace(bracket, pid=left_to.pid, born=left_to.born, left=True)
            if not spans:
                if over:
                    now.line = line.without(bracket.id)
                elif goes_on is not bracket:
                    now.line = line.changed(goes_on)
                return None
            later = None if over else _later(line, goes_on)
            recorded_by = replace(bracket, ended=True, named=True, pid=pid, born=own_birth(pid))
            ended = line.changed(recorded_by)
            now.line = ended if later is None else ended.opened(later)
        return Split(line.newest, spans, line.open_besides(bracket), later)

    def keep_bracket(
        self, workspace: int, bracket: Bracket, files: dict[str, Json], runner: Runner
    ) -> None:
        """What an ended call did is kept, and no transition is needed for it any more.

        `runner` is the process that is about to record it.
        """
        pid, born = runner[:2]
        ended = replace(bracket, ended=True, named=True, files=files, pid=pid, born=born)
        with self._lines.moving(workspace) as now:
            now.line = now.line.changed(replace(ended, opened=now.line.changes))

    def close_bracket(self, workspace: int, bracket: Bracket) -> None:
        """Forget a call. Transitions that no other bracket needs are dropped with it."""
        with self._lines.moving(workspace) as now:
            now.line = now.line.without(bracket.id)

    def settle_bracket(self, workspace: int, bracket: Bracket) -> None:
        """What an ended call did is recorded: forget it. If that fails, the next process does.

        Killed in between, its session finds it, and sees in its log that it is recorded.
        """
        try:
            self.close_bracket(workspace, bracket)
        except BacktrailError:
            self._lines.over.add(bracket.id)
            logger().warning("a recorded call stays in %s", self._database.path, exc_info=True)

    def brackets(self, workspace: int) -> list[Bracket]:
        """The calls under way, and those that ended and are not recorded yet."""
        return list(self._lines.line(workspace).calls)

    # --- the journal ---------------------------------------------------------------------

    def write_journal(self, place: Place, content: bytes) -> None:
        """A restore begins: its plan and its final event, on the disk when this returns."""
        with self._database.writing() as execute:
            # In the transaction, so that no process takes the mark away that has seen no journal.
            from ..restore.unfinished import put_mark

            put_mark(self._folder)
            execute(
                "INSERT INTO journals VALUES(?, ?, ?, ?, ?, ?)",
                (place.n, *place.identity, place.path, content),
            )
        self._lines.flush()

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
        self._lines.flush()

    def unfinished(self) -> list[Place]:
        """The directories whose restore was cut short, or is under way."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT workspace, device, inode, born, path FROM journals WHERE workspace > 0"
            ).fetchall()
        return [_place(row) for row in rows]

    def _unmark(self, execute: Execute) -> None:
        if execute("SELECT 1 FROM journals WHERE workspace > 0").fetchone() is None:
            from ..restore.unfinished import take_mark

            take_mark(self._folder)

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
        self._lines.flush()

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

    def trees(self, *besides: str) -> set[bytes]:
        """The trees that workspaces and calls rely on, but for the calls with these ids."""
        found: set[bytes] = set()
        for line in self._lines.all():
            found |= self._lines.trees(line.without(*besides))
        return found

    def calls(self) -> list[Bracket]:
        """The calls of all workspaces, as `brackets` has them."""
        return [call for line in self._lines.all() for call in line.calls]

    def give_up(self, ids: Collection[str]) -> None:
        """Forget calls that will not be recorded any more."""
        for line in self._lines.all():
            if any(call.id in ids for call in line.calls):
                with self._lines.moving(line.workspace) as now:
                    now.line = now.line.without(*ids)

    def places(self) -> list[Place]:
        """Every workspace known."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT n, device, inode, born, path FROM workspaces"
            ).fetchall()
            return [_place(row) for row in rows]

    def close(self) -> None:
        """Let go of the files."""
        self._lines.close()


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


def _later(line: Line, bracket: Bracket) -> Bracket:
    """A second bracket of a call, from the newest state known on."""
    return replace(bracket, id=new_id(), opened=line.changes, tree=line.newest)
