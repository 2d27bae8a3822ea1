"""The rows of a workspace's line of time: its newest tree, its calls, and what changed.

Each function is for a transaction; `execute` is its cursor's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..events import new_id
from ..stores.sqlite_transactions import Execute
from .brackets import Bracket, Transition

_decode_bracket = msgspec.json.Decoder(Bracket).decode
_decode_brackets = msgspec.json.Decoder(list[Bracket]).decode


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


class Line(NamedTuple):
    """Where a workspace stands: the newest tree, the number of changes so far, the calls.

    Calls are under way, or ended and not forgotten yet. `last` is the newest change, if it
    was recorded here.
    """

    workspace: int
    tree: bytes | None
    changes: int
    calls: tuple[Bracket, ...]
    last: Transition | None = None

    def moved(self, execute: Execute, tree: bytes, *, restored: bool = False) -> Line:
        """A scan found `tree`: a transition, if it is new, and not what a restore made of it."""
        if tree == self.tree:
            return self
        open_now = [call for call in self.calls if not (call.ended or restored)]
        number = self.changes + 1
        last = None
        if self.tree is not None and open_now:
            last = Transition(number, self.tree, tree, open_now)
            execute(
                "INSERT INTO transitions VALUES(?, ?, ?, ?, ?)",
                (self.workspace, number, self.tree, tree, _encoded(open_now)),
            )
        execute(
            "UPDATE workspaces SET tree = ?, changes = ? WHERE n = ?",
            (tree, number, self.workspace),
        )
        return Line(self.workspace, tree, number, self.calls, last)

    def opened(self, execute: Execute, bracket: Bracket) -> Line:
        """A call more."""
        execute(
            "INSERT INTO brackets VALUES(?, ?, ?, ?)",
            (bracket.id, self.workspace, bracket.opened, _encoded(bracket)),
        )
        return Line(self.workspace, self.tree, self.changes, (*self.calls, bracket), self.last)

    def changed(self, execute: Execute, bracket: Bracket) -> Line:
        """A call about which something else is to be said."""
        execute(
            "UPDATE brackets SET opened = ?, body = ? WHERE id = ?",
            (bracket.opened, _encoded(bracket), bracket.id),
        )
        calls = (bracket if call.id == bracket.id else call for call in self.calls)
        return self._replace(calls=tuple(calls))

    def without(self, execute: Execute, ids: Collection[str]) -> Line:
        """Without some calls. What changed meanwhile stays until somebody drops it, too."""
        if not ids:
            return self
        drop(execute, ids, ())
        return self._replace(calls=tuple(call for call in self.calls if call.id not in ids))

    def since(self, execute: Execute, number: int) -> list[Transition]:
        """What changed since the transition of this number."""
        if number == self.changes:
            return []
        if self.last is not None and number == self.changes - 1:
            return [self.last]
        rows = execute(
            "SELECT n, before, after, brackets FROM transitions WHERE workspace = ? AND n > ?"
            " ORDER BY n",
            (self.workspace, number),
        ).fetchall()
        return [Transition(n, b, a, _decode_brackets(who)) for n, b, a, who in rows]

    def open_besides(self, bracket: Bracket) -> set[str]:
        """The other calls under way."""
        return {call.id for call in self.calls if not call.ended} - {bracket.id}

    def newest(self) -> bytes:
        """The newest tree, where a scan has been."""
        assert self.tree is not None
        return self.tree

    def going_on(self, execute: Execute, bracket: Bracket) -> Bracket:
        """A second bracket of a call, from the newest state known on."""
        later = replace(bracket, id=new_id(), opened=self.changes, tree=self.newest())
        self.opened(execute, later)
        return later


def line_of(execute: Execute, workspace: int) -> Line:
    """Where a workspace stands."""
    row = execute("SELECT tree, changes FROM workspaces WHERE n = ?", (workspace,)).fetchone()
    tree, changes = row
    return Line(workspace, tree, changes, tuple(calls_of(execute, workspace)))


def calls_of(execute: Execute, workspace: int) -> list[Bracket]:
    """The calls under way, and those that ended and are not forgotten yet."""
    rows = execute("SELECT body FROM brackets WHERE workspace = ?", (workspace,)).fetchall()
    return [_decode_bracket(body) for (body,) in rows]


def drop(execute: Execute, ids: Iterable[str], workspaces: Iterable[int]) -> None:
    """Drop brackets, and in some workspaces the transitions that none of the others needs."""
    for id in ids:
        execute("DELETE FROM brackets WHERE id = ?", (id,))
    for workspace in workspaces:
        execute(
            "DELETE FROM transitions WHERE workspace = ?1 AND n <= coalesce("
            "(SELECT min(opened) FROM brackets WHERE workspace = ?1), n)",
            (workspace,),
        )
