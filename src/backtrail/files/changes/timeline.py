"""Where a workspace stands: its newest tree, its calls, and what changed since they began.

A line is one record in a tray. Its rows in the database are brought up to date when the
tray is emptied, so what changed is in part here and in part there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..._startup.frozen import NamedTuple
from ...stores.disk.checks import decoded, typed, whole_number
from ...stores.disk.transactions import Execute
from .brackets import Bracket, Transition
from .tray import Tray

_decode_bracket = msgspec.json.Decoder(Bracket).decode
_decode_brackets = msgspec.json.Decoder(list[Bracket]).decode

# Whoever opens the catalogue reads all of the tray: a hook does so for every call.
_SIZE = 64 << 10
_MANY = 16
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
        # Killed before the tray was emptied, somebody left later ones there, too.
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

    @property
    def is_long(self) -> bool:
        """Whether it is time that the database takes what changed."""
        return len(self.spans) > _MANY


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


# --- the records -------------------------------------------------------------------------


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
_encode = msgspec.msgpack.Encoder().encode


def _packed(line: Line) -> bytes:
    workspace, tree, changes, calls, base, spans = line
    brackets = list(calls)
    if not spans:
        return _encode((workspace, tree, changes, len(calls), brackets, base, ()))
    places = {id(bracket): place for place, bracket in enumerate(brackets)}
    written = []
    for span in spans:
        for bracket in span.brackets:
            if id(bracket) not in places:
                places[id(bracket)] = len(brackets)
                brackets.append(bracket)
        who = [places[id(bracket)] for bracket in span.brackets]
        written.append((span.n, span.before, span.after, who))
    return _encode((workspace, tree, changes, len(calls), brackets, base, written))


def _unpacked(body: bytes) -> Line:
    workspace, tree, changes, calls, brackets, base, written = _decode_record(body)
    spans = (Transition(n, b, a, [brackets[i] for i in who]) for n, b, a, who in written)
    return _checked(Line(workspace, tree, changes, tuple(brackets[:calls]), base, tuple(spans)))


class LineTray(Tray):
    """The newest lines; of a workspace the last record counts, whatever the rows say."""

    def __init__(self, database: Path) -> None:
        super().__init__(database, _SIZE)

    def _emptied(self) -> None:
        self._lines: dict[int, Line] = {}

    def _take_in(self, body: bytes) -> None:
        line = _unpacked(body)
        self._lines[line.workspace] = line

    def lines(self) -> dict[int, Line]:
        """What is in it now, by workspace; not to be changed."""
        with self._mutex:
            self._look()
            return self._lines

    def lay(self, line: Line) -> bool:
        """Append a record, for who has looked; False if the tray has to be emptied first."""
        with self._mutex:
            end = self._write(_packed(line))
            if end:
                self._lines[line.workspace] = line
                self._wrote(end)
            return end > 0
