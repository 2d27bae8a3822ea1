"""Where the history of a session runs through its log: so that any of its events is one look away.

A log of a hundred thousand events has few places where its history jumps. With those, a page that
shows fifty events reads fifty.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from ..events import Event
from ..events.history import DEEDS, Mark, among, spans
from ..stores.base import Store

_KEPT = 16
_FEW = 500


@dataclass(frozen=True, slots=True)
class Outline:
    """The ranges of numbers that are live (`after < seq <= until`, in order), and the prompts."""

    head: int
    ranges: list[tuple[int, int]]
    prompts: list[int]

    def number_of(self, seq: int) -> int:
        """The number of the prompt whose turn an event is in; 0 before the first."""
        return bisect_right(self.prompts, seq)

    def place(self, seq: int) -> str:
        """Where an event is, as people count: in the turn of a prompt, or by its own number."""
        if not self.is_live(seq):
            return f"event {seq}"
        number = self.number_of(seq)
        return f"prompt {number}" if number else "the beginning"

    def turn(self, seq: int) -> tuple[int, int]:
        """The first and the last number of the turn that an event is in."""
        at = self.number_of(seq)
        first = self.prompts[at - 1] if at else 0
        following = self.prompts[at] - 1 if at < len(self.prompts) else self.head
        return first, following

    def prompts_between(self, first: int, last: int) -> list[int]:
        """The prompts from one number to another."""
        return self.prompts[bisect_left(self.prompts, first) : bisect_right(self.prompts, last)]

    def is_live(self, seq: int) -> bool:
        """Whether an event is in the history."""
        return among(seq, self.ranges[::-1])


class Outlines:
    """The outlines of sessions that were looked at lately. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[str, Outline]] = OrderedDict()

    def of(self, store: Store, session_id: str) -> Outline:
        """The outline of a session as it stands."""
        # Another session may come to have the id of one that was deleted.
        born = store.record(session_id).created_at
        with self._lock:
            known = self._known.get(session_id)
        found = None
        if known is not None and known[0] == born:
            found = _grown(store, session_id, known[1])
        if found is None:
            found = _read(store, session_id, head_of(store, session_id))
        with self._lock:
            self._known[session_id] = born, found
            self._known.move_to_end(session_id)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found


def _grown(store: Store, session_id: str, known: Outline) -> Outline | None:
    """The outline with what was appended since; None where that is much, or jumps."""
    new = list(store.read(session_id, after=known.head, limit=_FEW))
    if not new:
        return known
    if len(new) == _FEW or not known.ranges or any(event.follows is not None for event in new):
        return None
    head = new[-1].seq
    prompts = [event.seq for event in new if event.kind == "user_message"]
    ranges = [*known.ranges[:-1], (known.ranges[-1][0], head)]
    return Outline(head, ranges, known.prompts + prompts)


def head_of(store: Store, session_id: str) -> int:
    """The number of the last event."""
    newest = next(store.read(session_id, reverse=True, limit=1), None)
    return newest.seq if newest else 0


def _read(store: Store, session_id: str, head: int) -> Outline:
    marks = store.outline(session_id, kinds=("user_message",), until=head)

    def deeds(after: int, until: int) -> list[Mark]:
        return store.outline(session_id, kinds=DEEDS, after=after, until=until)

    ranges = spans(marks, head, deeds)[::-1]
    back = ranges[::-1]
    prompts = [m.seq for m in marks if m.kind == "user_message" and among(m.seq, back)]
    return Outline(head, ranges, prompts)


def live(
    store: Store, session_id: str, outline: Outline, after: int, until: int, limit: int
) -> Iterator[Event]:
    """Events of the history with `after < seq <= until`, in order."""
    left = limit
    for low, high in outline.ranges:
        first, last = max(low, after), min(high, until)
        if first >= last:
            continue
        for event in store.read(session_id, after=first, until=last, limit=left):
            yield event
            left -= 1
        if left <= 0:
            return
