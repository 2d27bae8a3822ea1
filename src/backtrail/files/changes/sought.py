"""How a process finds the call that another one began."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..._startup.frozen import NamedTuple
from .brackets import Bracket


class Process(NamedTuple):
    """A process that runs a call, and since when, in seconds of the wall clock."""

    pid: int
    born: int
    since: float


Running = Callable[[Bracket], Process | None]
"""Finds the process that a call is still running in, if there is one."""


class Sought(NamedTuple):
    """A call as an agent's event describes it: by the id, else by what it was given.

    `given` and `gist` are digests of its whole input, and of its command or path alone.
    """

    name: str
    call: str | None
    agent: str
    given: str = ""
    gist: str = ""

    def among(self, brackets: Iterable[Bracket]) -> Bracket | None:
        """The call that is meant.

        Calls without an id may run at the same time, and of one tool: what they were given
        tells them apart. An input that the agent changed meanwhile is nobody's: then the
        newest of that tool counts.
        """
        mine = [bracket for bracket in brackets if bracket.agent == self.agent]
        if self.call:
            return next((b for b in reversed(mine) if b.call == self.call), None)
        named = [b for b in mine if b.name == self.name and (not b.call or b.gist == self.gist)]
        same = [b for b in named if self.given and b.given == self.given]
        same = same or [b for b in named if self.gist and b.gist == self.gist]
        if same:
            return same[0]
        return next((b for b in reversed(named) if not b.call), None)

    def alike(self, brackets: Iterable[Bracket]) -> Bracket | None:
        """A call that has this command or path, whatever its tool is called."""
        return next((b for b in brackets if self.gist and b.gist == self.gist), None)
