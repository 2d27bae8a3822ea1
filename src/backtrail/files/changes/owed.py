"""What a recorder owes its session's log: events that wait for the next append."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple

if TYPE_CHECKING:
    from ...errors import BacktrailError
    from ...events import Json, NewEvent
    from .brackets import Bracket

_CARRIED = frozenset({"files", "tree", "git", "workspace"})
"""What an event says about files; the rest says what happened."""


class Grab(NamedTuple):
    """A call that began before the first import was done: the paths it named, as they were."""

    before: bytes
    paths: list[bytes]


class Ended(NamedTuple):
    """A call that is over: its last bracket, and what its event says about the files.

    With `failure`, the files could not be looked at.
    """

    bracket: Bracket | None
    details: dict[str, Json]
    failure: BacktrailError | None = None

    @property
    def files(self) -> dict[str, Json] | None:
        """What the call did to the files, if anything."""
        return self.details.get("files")


class Owed(NamedTuple):
    """An event that is to be appended; then its bracket is not needed any more."""

    event: NewEvent
    bracket: Bracket | None


class Queue:
    """The events that are owed, in order.

    One waits until it is in the log, so no later append gets in front of it. Only a caller
    that keeps others from appending takes from the queue.
    """

    def __init__(self) -> None:
        self.waiting: list[Owed] = []
        self.lock = threading.Lock()

    def put(self, event: NewEvent, bracket: Bracket | None) -> None:
        """Have the next append take an event along."""
        with self.lock:
            self.waiting.append(Owed(event, bracket))

    def take(self, count: int | None = None) -> list[Owed]:
        """Take the first ones, or all."""
        with self.lock:
            count = len(self.waiting) if count is None else count
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def take_back(self, calls: Collection[str]) -> list[Ended]:
        """What calls did that is owed yet: their results say it after all.

        Only what is last of all, since changes are recorded in the order of time.
        """
        found: list[Ended] = []
        with self.lock:
            while self.waiting:
                event, bracket = self.waiting[-1]
                own = bracket is not None and bracket.call in calls and event.id is None
                if bracket is None or not own or "interrupted" not in event.data:
                    break
                self.waiting.pop()
                details = {name: event.data[name] for name in _CARRIED & event.data.keys()}
                found.insert(0, Ended(bracket, details))
        return found
