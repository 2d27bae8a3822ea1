"""Turns that a new process of Claude Code sends to the model again.

Its own rewind to before the first prompt starts the conversation over, but the first line then
names as its parent the last one of the conversation that was left. The process that went back
sends nothing from before. One that resumes the session follows the parents, and does. What it
sends is in the transcript, too: an `api-request` line without a `base` lists every message,
each by its hash. Where such a list has messages before the one that the list before it began
with, the left conversation is live again, with the later one behind it. So the head goes to
where the first was left, and the second is repeated there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ...events import Event, Json, NewEvent
from ...events.history import NOTED, REPEATS, repetition_of
from ..growing_log import SPOKEN, GrowingLog
from ..jsonlines import Line
from ..shapes import list_in, text_in
from ..transcript import all_lines
from . import format as cc


class Resent(msgspec.Struct):
    """Finds out what is sent again; `line` and `home` find lines and their events by uuid."""

    file: str
    log: GrowingLog
    line: Callable[[str | None], Line]
    home: Callable[[str], str | None]
    first: str | None = None

    def place(self, id: str | None) -> str | None:
        """Where an event's place in the conversation is: its own, or that of its repetition."""
        if not id or id == self.log.tip:
            return id
        again = repetition_of(id)
        return again if self.log.seq(again) is not None else id

    def take(self, line: Line) -> None:
        """Look at what a request sent, and repeat what it sent behind older turns."""
        tail = cc.sent_anew(line.value or {})
        if not tail:
            return
        before, self.first = self.first, tail[0]
        if not self._has_gone_back():
            return
        before = before or self._first_before()
        if before is None or before not in tail[1:]:
            return
        found = self._sent()
        if found is not None:
            self._repeat(line, *found)

    def _has_gone_back(self) -> bool:
        """Whether the program ever did: only then is there anything to be sent again."""
        log = self.log
        stored = log.store.read(log.session_id, until=log.head, kinds=("rewound",), reverse=True)
        events = [*log.coming(), *(stored if log.head else ())]
        return any(_line_of(event) is not None for event in events)

    def _first_before(self) -> str | None:
        """What the list of the request before this batch began with."""
        for kept in all_lines(self.log.store, self.log.session_id, reverse=True):
            tail = cc.sent_anew(kept.line.value or {})
            if tail and kept.file == self.file:
                return tail[0]
        return None

    def _sent(self) -> tuple[str, list[Event]] | None:
        """The end of the conversation that is live again, and what comes behind it, in order."""
        pending = self.log.pending
        base: str | None = None
        found: list[Event] = []
        tip = self.log.tip
        passed: set[str] = set()
        while tip is not None and tip not in passed:
            passed.add(tip)
            said, started = self._since_start(tip)
            if base is not None and started is None:
                return base, found
            if started is None:
                return None
            found[:0] = [e for e in said if e != pending or self.log.is_reported(e)]
            parent = cc.parent_of(self.line(started).value or {})
            base = tip = (self.home(parent) if parent is not None else None) or None
        return None

    def _since_start(self, tip: str) -> tuple[list[Event], str | None]:
        """What was said up to an event, in order, and the line that started the talk over."""
        said: list[Event] = []
        cut, started = 0, None
        for event in self.log.up_to(tip):
            if event.kind in SPOKEN:
                said.append(event)
                if event.kind != "system_message":
                    started = None
            elif event.kind == "rewound" and started is None:
                cut, started = len(said), _line_of(event)
        return said[:cut][::-1], started

    def _repeat(self, line: Line, base: str, said: list[Event]) -> None:
        """Go to where the one conversation was left, and say the other there again."""
        to = self.log.seq(base) or 0
        id = line.place_id
        source: dict[str, Json] = {"file": self.file, "lines": [id]}
        # The prompt that the request was made for may be there already. It comes behind the rest.
        own = said[-1] if said and said[-1].kind == "user_message" else None
        if not self.log.rewind(f"{id}-resent", line.ts, to, source, noted=own):
            return
        places: dict[int, int] = {}
        for event in said:
            data = _again(event, self.file, places)
            data[NOTED if event == own else REPEATS] = event.seq
            again = repetition_of(event.id)
            self.log.add(NewEvent(event.kind, data, id=again, ts=event.ts))
            places[event.seq] = self.log.seq(again) or 0


def _again(event: Event, file: str, places: Mapping[int, int]) -> dict[str, Json]:
    """An event's data in another place. What it used and did to files was counted already."""
    left_out = ("cost_usd", "files")
    data = {name: value for name, value in event.data.items() if name not in left_out}
    data.setdefault("source", {"file": file, "lines": []})
    if event.kind == "assistant_message":
        data["usage"] = {}
    until = data.get("until")
    if event.kind == "compaction" and isinstance(until, int):
        data["until"] = max((new for old, new in places.items() if old <= until), default=until)
    return data


def _line_of(rewound: Event) -> str | None:
    """The line that shows a rewind of the program's own."""
    return next(map(text_in, list_in(rewound.data, "source", "lines")), None)
