"""Calls in a transcript that no hook saw, so that what they did to files was not captured.

A session that hooks record may have turns without them: from before they were installed, with
`BACKTRAIL_HOOKS=off`, or of the session that the agent itself made a fork of. The transcript
names the calls of such turns, and their results say that they were missed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...events import Event, Json
from ..growing_log import SEEN, GrowingLog
from ..jsonlines import Line
from ..shapes import text_in
from . import format as cc

WHY = "no hook saw the call"
"""Why what such a call did is not captured."""

_REFUSED = "User rejected tool use"
"""What the result of a call says that a person did not let run."""

LineOf = Callable[[str], Line]
"""The line that an event was made of, by its id."""


class Unseen(msgspec.Struct):
    """What some lines say of calls that no hook saw, while they become events.

    For each event, `since` has the time of the prompt of its turn; "" if a hook saw the turn.
    """

    log: GrowingLog
    line_of: LineOf
    since: dict[str, str] = {}
    actions: set[Json] | None = None
    calls: dict[str, tuple[str, Json]] = {}

    def said(self, id: str, line: Line, what: str, after: str | None) -> None:
        """Note an event that was made of a line, or was there in its place."""
        if what == "prompt" and line.get("type") == "user":
            event = self.log.known(id)
            self.since[id] = (line.ts or "?") if event is None or not _is_seen(event) else ""
        else:
            self.since[id] = self._turn(after)

    def of(self, line: Line, after: str | None) -> dict[str, Json]:
        """What the event of a result says of a call that was missed."""
        began = self._turn(after)
        refused = line.get("toolUseResult") == _REFUSED
        if not began or refused or self._is_in_between(began, line.ts or "?"):
            return {}
        for id, failed in cc.results_of(line.value or {}).items():
            name, given = self._call(id, after)
            field = cc.WRITERS.get(name)
            # An edit that fails has changed nothing.
            if field is None or (failed and field != "command") or id in self._captured():
                continue
            path = text_in(given, field)
            named = f": {path[:500]}" if path else ""
            return {"name": name, "files": {"missed": f"{WHY}{named}"}}
        return {}

    def _is_in_between(self, began: str, ts: str) -> bool:
        """Whether hooks came in the middle of a turn, and may have seen a call of it."""
        first = next(self.log.stored(), None)
        return first is not None and began < first.ts <= ts

    def _turn(self, id: str | None) -> str:
        """When the turn of an event began that no hook saw; "" where one did or may have."""
        if id is None:
            return ""
        if id not in self.since:
            self.since[id] = self._sought(id)
        return self.since[id]

    def _sought(self, id: str) -> str:
        for event in self.log.up_to(id):
            if event.kind == "action":
                return ""
            if event.kind == "user_message":
                line = self.line_of(event.id)
                # What is typed while the model is at work is of the turn under way.
                if _is_seen(event) or line.get("type") == "user":
                    return "" if _is_seen(event) else (line.ts or "?")
        return ""

    def _call(self, id: str, after: str | None) -> tuple[str, Json]:
        """The name and input of a call."""
        if id not in self.calls and after is not None:
            for event in self.log.up_to(after):
                if event.kind == "assistant_message":
                    self.calls |= cc.calls_of([event.data.get("message") or {}])
                if id in self.calls or event.kind == "user_message":
                    break
        return self.calls.get(id, ("", None))

    def _captured(self) -> set[Json]:
        """The calls that hooks recorded."""
        if self.actions is None:
            store, id = self.log.store, self.log.session_id
            found = store.read(id, until=self.log.head, kinds=("action",)) if self.log.head else ()
            self.actions = {event.data.get("call") for event in found}
        return self.actions


def _is_seen(event: Event) -> bool:
    """Whether a hook saw a prompt: it noted the event, or what it says of the files."""
    return event.data.get("source") is None or any(name in event.data for name in SEEN)
