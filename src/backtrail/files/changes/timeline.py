"""Where a workspace stands: its newest tree, its calls, and what changed since they began.

A line is read from its rows in the database of the catalogue, moved as a value, and written back
in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from ..._startup.frozen import NamedTuple
from ...stores.disk.checks import decoded, typed, whole_number
from ...stores.disk.database import Database
from ...stores.disk.schema import Schema
from ...stores.disk.transactions import Execute
from ..trays import move_tray
from .brackets import Bracket, Transition

_decode_bracket = msgspec.json.Decoder(Bracket).decode
_decode_brackets = msgspec.json.Decoder(list[Bracket]).decode

_MOST_PROCESSES = 1 << 31

Older = Callable[[int], list[Transition]]
"""What changed after the transition of a number, as far as the database knows."""


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

    def since(self, number: int, older: Older) -> list[Transition]:
        """What changed since the transition of this number."""
        before = older(number) if number < self.base else []
        # A record of an earlier version may have been moved already: then later ones are there.
        return [
            *(span for span in before if span.n <= self.base),
            *(span for span in self.spans if span.n > number),
        ]

    def trees(self, older: Older) -> set[bytes]:
        """The newest tree, and those that calls rely on."""
        found = set() if self.tree is None else {self.tree}
        if self.calls:
            for span in self.since(min(call.opened for call in self.calls), older):
                found.update((span.before, span.after))
        return found

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
    return [Transition(n, b, a, decoded(_decode_brackets, who, what)) for n, b, a, who in rows]


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
    spans = (Transition(n, b, a, [brackets[i] for i in who]) for n, b, a, who in written)
    return _checked(Line(workspace, tree, changes, tuple(brackets[:calls]), base, tuple(spans)))


def latest_lines(records: list[bytes]) -> dict[int, Line]:
    """The lines that records say, by workspace; of each the last record counts."""
    what = "a record before the catalogue"
    return {line.workspace: line for line in (decoded(_unpacked, r, what) for r in records)}


# --- the database ------------------------------------------------------------------------


class Lines:
    """The lines of all workspaces of one catalogue."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.database = Database(path, synced=False, schema=schema)
        # Calls that are over for everybody, and could not be taken from their line yet.
        self.over: set[str] = set()
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
        over = self.over.intersection(call.id for call in line.calls) if self.over else ()
        return line.without(*over) if over else line

    def all(self) -> list[Line]:
        """Where all workspaces stand; one that moves meanwhile may be there as it was, too."""
        with self.database.reading() as connection:
            rows = connection.execute("SELECT n FROM workspaces").fetchall()
            return [self._line(connection.execute, n) for (n,) in rows]

    @contextmanager
    def moving(self, workspace: int) -> Iterator[Moving]:
        """A context in which the line of a workspace may be moved by the caller alone."""
        with self.database.writing() as execute:
            now = Moving(execute, self._line(execute, workspace))
            before = now.line
            yield now
            if now.line is not before:
                store(execute, now.line)

    def since(self, line: Line, number: int) -> list[Transition]:
        """What changed since the transition of this number."""
        with self.database.reading() as connection:
            return _since(connection.execute, line, number)

    def trees(self, line: Line) -> set[bytes]:
        """The trees that a workspace and its calls rely on."""
        with self.database.reading() as connection:
            return line.trees(lambda n: stored_spans(connection.execute, line.workspace, n))

    def flush(self) -> None:
        """Return when all of it is on the disk."""
        self.database.flush()

    def close(self) -> None:
        """Let go of the files."""
        self.database.close()


class Moving:
    """The line of a workspace, while only its holder moves it. What `line` is set to is kept."""

    __slots__ = ("_execute", "line")

    def __init__(self, execute: Execute, line: Line) -> None:
        self._execute = execute
        self.line = line

    def since(self, line: Line, number: int) -> list[Transition]:
        """What changed since the transition of this number, `line` not being stored yet."""
        return _since(self._execute, line, number)


def _since(execute: Execute, line: Line, number: int) -> list[Transition]:
    return line.since(number, lambda after: stored_spans(execute, line.workspace, after))


def _take(writer: apsw.Connection, records: list[bytes]) -> None:
    for line in latest_lines(records).values():
        store(writer.execute, line)
