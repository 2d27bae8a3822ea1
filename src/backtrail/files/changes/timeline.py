"""Where a workspace stands: its newest tree, its calls, and what changed since they began.

Every scan that finds something new records a *transition* from the last known tree, with
the brackets (tool calls) that were open since the scan before. So it is known later which call
changed what, also between sessions and processes. Transitions are kept for as long as a
bracket is open that began before them.

A line is read from its rows in the database of the catalogue, moved as a value, and written back
in one transaction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec
from msgspec.structs import replace

from ..._startup.frozen import NamedTuple
from ...errors import BacktrailError
from ...events import Json, new_id
from ...stores.disk.checks import decoded, typed, whole_number
from ...stores.disk.database import Database
from ...stores.disk.schema import Execute, Schema
from ...telemetry import logger
from ..trays import move_tray
from .brackets import Bracket, Met, Opening, Runner, Split, Transition, own_birth

_decode_bracket = msgspec.json.Decoder(Bracket).decode
_decode_brackets = msgspec.json.Decoder(list[Bracket]).decode

_MOST_PROCESSES = 1 << 31


class Line(NamedTuple):
    """The newest tree, the number of changes so far, and the calls.

    Calls are under way, or ended and not forgotten yet. The database knows what changed up
    to the number `base`; what came after that, and some call may need, is in `spans`.
    """

    workspace: int
    tree: bytes | None
    changes: int
    calls: tuple[Bracket, ...]
    base: int
    spans: tuple[Transition, ...] = ()

    def moved(self, tree: bytes, *, restored: bool = False) -> Line:
        """A scan found `tree`: a transition, if it is new, and not what a restore made of it."""
        if tree == self.tree:
            return self
        number, spans = self.changes + 1, self.spans
        if self.tree is not None and self.calls and not restored:
            open_now = [call for call in self.calls if not call.ended]
            if open_now:
                spans = (*spans, Transition(number, self.tree, tree, open_now))
        return Line(self.workspace, tree, number, self.calls, self.base, spans)

    def opened(self, bracket: Bracket) -> Line:
        """A call more."""
        calls = (*self.calls, bracket)
        return Line(self.workspace, self.tree, self.changes, calls, self.base, self.spans)

    def changed(self, bracket: Bracket) -> Line:
        """A call about which something else is to be said."""
        return self._with(tuple(bracket if c.id == bracket.id else c for c in self.calls))

    def without(self, *ids: str) -> Line:
        """Some calls less."""
        return self._with(tuple(call for call in self.calls if call.id not in ids))

    def _with(self, calls: tuple[Bracket, ...]) -> Line:
        """These calls, and what changed since the first of them began."""
        first = min((call.opened for call in calls), default=self.changes)
        spans = tuple(span for span in self.spans if span.n > first)
        return Line(self.workspace, self.tree, self.changes, calls, self.base, spans)

    def open_besides(self, bracket: Bracket) -> set[str]:
        """The other calls under way."""
        return {call.id for call in self.calls if not call.ended} - {bracket.id}

    @property
    def newest(self) -> bytes:
        """The newest tree, where a scan has been."""
        assert self.tree is not None
        return self.tree


# --- the rows ----------------------------------------------------------------------------


def stored_line(execute: Execute, workspace: int) -> Line:
    """Where a workspace stands in the database."""
    row = execute("SELECT tree, changes FROM workspaces WHERE n = ?", (workspace,)).fetchone()
    # It may have been given up just now.
    what = f"the record of workspace {workspace}"
    tree, changes = typed(row or (None, 0), what, bytes | None, int)
    calls = execute(
        "SELECT body FROM brackets WHERE workspace = ? ORDER BY id", (workspace,)
    ).fetchall()
    found = (
        decoded(_decode_bracket, body, f"a call of workspace {workspace}") for (body,) in calls
    )
    return _checked(Line(workspace, tree, changes, tuple(found), changes))


def _checked(line: Line) -> Line:
    """The line, if its numbers can be those of one; `Damaged` if not."""
    for number in (line.workspace, line.changes, line.base):
        whole_number(number, "a number of a workspace")
    for call in line.calls:
        whole_number(call.opened, "the beginning of a call")
        whole_number(call.pid, "the process of a call", _MOST_PROCESSES)
    for span in line.spans:
        whole_number(span.n, "the number of a change")
    return line


def stored_spans(execute: Execute, workspace: int, after: int) -> list[Transition]:
    """What changed after the transition of a number, in the database."""
    rows = execute(
        "SELECT n, before, after, brackets FROM transitions WHERE workspace = ? AND n > ?"
        " ORDER BY n",
        (workspace, after),
    ).fetchall()
    what = f"a change of workspace {workspace}"
    for row in rows:
        typed(row, what, int, bytes, bytes, str)
    return [Transition(n, b, a, decoded(_decode_brackets, calls, what)) for n, b, a, calls in rows]


def store(execute: Execute, line: Line) -> None:
    """Bring the rows of a workspace up to date; doing it twice does no harm."""
    n = line.workspace
    if not execute("SELECT 1 FROM workspaces WHERE n = ?", (n,)).get:
        # It was given up.
        return
    execute(
        # A power cut may have brought back an old record: numbers are not used again.
        "UPDATE workspaces SET tree = ?, changes = max(changes, ?) WHERE n = ?",
        (line.tree, line.changes, n),
    )
    rows = execute("SELECT id, body FROM brackets WHERE workspace = ?", (n,)).fetchall()
    # Only what differs: calls that crashes left may be many, and they stay as they are.
    left = dict(rows)
    for call in line.calls:
        body = _encoded(call)
        if left.pop(call.id, None) != body:
            execute("INSERT OR REPLACE INTO brackets VALUES(?, ?, ?, ?)",
                    (call.id, n, call.opened, body))  # fmt: skip
    for id in left:
        execute("DELETE FROM brackets WHERE id = ?", (id,))
    # What was never acknowledged may be there, with numbers that are used now.
    execute("DELETE FROM transitions WHERE workspace = ? AND n > ?", (n, line.base))
    for span in line.spans:
        execute(
            "INSERT OR REPLACE INTO transitions VALUES(?, ?, ?, ?, ?)",
            (n, span.n, span.before, span.after, _encoded(span.brackets)),
        )
    execute(
        "DELETE FROM transitions WHERE workspace = ?1 AND n <= coalesce("
        "(SELECT min(opened) FROM brackets WHERE workspace = ?1), n)",
        (n,),
    )


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- records of earlier versions -----------------------------------------------------------


class _Record(NamedTuple):
    """A line as it is written: each bracket once, and where else it is meant, its place.

    The first brackets are the calls.
    """

    workspace: int
    tree: bytes | None
    changes: int
    calls: int
    brackets: list[Bracket]
    base: int
    spans: list[tuple[int, bytes, bytes, list[int]]]


_decode_record = msgspec.msgpack.Decoder(_Record).decode


def _unpacked(body: bytes) -> Line:
    workspace, tree, changes, calls, brackets, base, written = _decode_record(body)
    spans = (Transition(n, b, a, [brackets[i] for i in at]) for n, b, a, at in written)
    return _checked(Line(workspace, tree, changes, tuple(brackets[:calls]), base, tuple(spans)))


def latest_lines(records: list[bytes]) -> dict[int, Line]:
    """The lines that records say, by workspace; of each the last record counts."""
    what = "a record before the catalogue"
    return {line.workspace: line for line in (decoded(_unpacked, r, what) for r in records)}


# --- the database ------------------------------------------------------------------------


class Moving:
    """The line of a workspace beside the database. What `line` is set to is kept, by its holder."""

    __slots__ = ("_execute", "line")

    def __init__(self, execute: Execute, line: Line) -> None:
        self._execute = execute
        self.line = line

    def since(self, number: int, line: Line | None = None) -> list[Transition]:
        """What changed since the transition of this number, also in a `line` not stored yet."""
        line = line or self.line
        before = stored_spans(self._execute, line.workspace, number) if number < line.base else []
        # A record of an earlier version may have been moved already: then later ones are there.
        return [
            *(span for span in before if span.n <= line.base),
            *(span for span in line.spans if span.n > number),
        ]

    def trees(self) -> set[bytes]:
        """The newest tree, and those that calls rely on."""
        line = self.line
        found = set() if line.tree is None else {line.tree}
        if line.calls:
            for span in self.since(min(call.opened for call in line.calls)):
                found.update((span.before, span.after))
        return found


class Lines:
    """The lines of all workspaces of one catalogue."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.database = Database(path, synced=False, schema=schema)
        # Calls that are over for everybody, and could not be taken from their line yet.
        self._over: set[str] = set()
        try:
            # Lines that an earlier version left in front of the database, and that cannot be
            # moved there now.
            self._left = move_tray(self.database, latest_lines, _take)
        except BaseException:
            self.database.close()
            raise

    def line(self, workspace: int) -> Line:
        """Where a workspace stands."""
        with self.database.reading() as connection:
            return self._line(connection.execute, workspace)

    def _line(self, execute: Execute, workspace: int) -> Line:
        line = self._left.get(workspace) or stored_line(execute, workspace)
        over = self._over.intersection(call.id for call in line.calls) if self._over else ()
        return line.without(*over) if over else line

    def all(self) -> list[Line]:
        """Where all workspaces stand; one that moves meanwhile may be there as it was, too."""
        with self.database.reading() as connection:
            return self._all(connection.execute)

    def _all(self, execute: Execute) -> list[Line]:
        rows = execute("SELECT n FROM workspaces").fetchall()
        return [self._line(execute, n) for (n,) in rows]

    @contextmanager
    def _moving(self, workspace: int) -> Iterator[Moving]:
        """A context in which the line of a workspace may be moved by the caller alone."""
        with self.database.writing() as execute:
            now = Moving(execute, self._line(execute, workspace))
            before = now.line
            yield now
            if now.line is not before:
                store(execute, now.line)

    # --- moving it -----------------------------------------------------------------------

    def tree(self, workspace: int) -> bytes | None:
        """The last known tree."""
        return self.line(workspace).tree

    def record(self, workspace: int, tree: bytes, *, restored: bool = False) -> None:
        """A scan found `tree`: a transition, unless that is what was known.

        What a restore did is recorded by its own event, and is no call's, whichever are open.
        """
        if self.tree(workspace) != tree:
            with self._moving(workspace) as now:
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
        with self._moving(workspace) as now:
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
        self, workspace: int, bracket: Bracket, tree: bytes, *, met: Collection[Met] = ()
    ) -> tuple[list[Transition], set[str]]:
        """A call is over, and a scan found `tree`: what changed meanwhile, and which others are at
        work.

        Unless there is nothing to record, the bracket stays until `close_bracket`: this process
        is about to record it. `met` are all the calls elsewhere that it met.
        """
        with self._moving(workspace) as now:
            line = now.line.moved(tree)
            spans = now.since(bracket.opened, line)
            if spans:
                now.line = line.changed(replace(_to_record(bracket), met=list(met)))
            else:
                now.line = line.without(bracket.id)
        return spans, line.open_besides(bracket)

    def seen_by(self, workspace: int, bracket: Bracket) -> tuple[list[Transition], set[str]]:
        """What changed since a call began, and which others are at work, up to the last scan."""
        with self.database.reading() as connection:
            now = Moving(connection.execute, self._line(connection.execute, workspace))
            return now.since(bracket.opened), now.line.open_besides(bracket)

    def ask(self, workspace: int, bracket: Bracket, at: float) -> None:
        """A person is asked whether an open call may run; the first time counts."""
        with self._moving(workspace) as now:
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
        with self._moving(workspace) as now:
            line = now.line
            if not any(call.id == bracket.id and not call.ended for call in line.calls):
                # Another process of the session was quicker.
                return None
            spans = now.since(bracket.opened, line)
            goes_on = bracket
            if left_to is not None:
                goes_on = replace(bracket, pid=left_to.pid, born=left_to.born, left=True)
            if not spans:
                if over:
                    now.line = line.without(bracket.id)
                elif goes_on is not bracket:
                    now.line = line.changed(goes_on)
                return None
            # Where it goes on, from the newest state known.
            later = replace(goes_on, id=new_id(), opened=line.changes, tree=line.newest)
            ended = line.changed(_to_record(bracket))
            now.line = ended if over else ended.opened(later)
        return Split(line.newest, spans, line.open_besides(bracket), None if over else later)

    def keep_bracket(
        self, workspace: int, bracket: Bracket, files: dict[str, Json], runner: Runner
    ) -> None:
        """What an ended call did is kept, and no transition is needed for it any more.

        `runner` is the process that is about to record it.
        """
        pid, born = runner[:2]
        ended = replace(bracket, ended=True, named=True, files=files, pid=pid, born=born)
        with self._moving(workspace) as now:
            now.line = now.line.changed(replace(ended, opened=now.line.changes))

    def close_bracket(self, workspace: int, bracket: Bracket) -> None:
        """Forget a call. Transitions that no other bracket needs are dropped with it."""
        with self._moving(workspace) as now:
            now.line = now.line.without(bracket.id)

    def settle_bracket(self, workspace: int, bracket: Bracket) -> None:
        """What an ended call did is recorded: forget it. If that fails, the next process does.

        Killed in between, its session finds it, and sees in its log that it is recorded.
        """
        try:
            self.close_bracket(workspace, bracket)
        except BacktrailError:
            self._over.add(bracket.id)
            logger().warning("a recorded call stays in %s", self.database.path, exc_info=True)

    def brackets(self, workspace: int) -> list[Bracket]:
        """The calls under way, and those that ended and are not recorded yet."""
        return list(self.line(workspace).calls)

    # --- all of them ---------------------------------------------------------------------

    def trees(self, *besides: str) -> set[bytes]:
        """The trees that workspaces and calls rely on, but for the calls with these ids."""
        found: set[bytes] = set()
        with self.database.reading() as connection:
            for line in self._all(connection.execute):
                found |= Moving(connection.execute, line.without(*besides)).trees()
        return found

    def calls(self) -> list[Bracket]:
        """The calls of all workspaces, as `brackets` has them."""
        return [call for line in self.all() for call in line.calls]

    def give_up(self, ids: Collection[str]) -> None:
        """Forget calls that will not be recorded any more."""
        for line in self.all():
            if any(call.id in ids for call in line.calls):
                with self._moving(line.workspace) as now:
                    now.line = now.line.without(*ids)


def _take(writer: apsw.Connection, records: list[bytes]) -> None:
    for line in latest_lines(records).values():
        store(writer.execute, line)


def _to_record(bracket: Bracket) -> Bracket:
    """A call that is over, and that this process is about to record."""
    pid = os.getpid()
    return replace(bracket, ended=True, named=True, pid=pid, born=own_birth(pid))
