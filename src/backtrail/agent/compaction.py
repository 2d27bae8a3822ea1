"""Compaction: the view that is sent to a model shrinks, the log keeps everything.

When the conversation is nearly too long, the model is asked for a summary of its older part.
A `compaction` event holds it, and up to which event it goes. The view is then the pinned
messages, the summary, and what came after. A rewind past the event takes it back.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ..calls import repair
from ..events import MESSAGE_KINDS, Event, Format, Json, NewEvent
from ..formats.messages import convert
from ..messages import format_of, text_of
from ..turns import Append, Ask, LiveTurn
from ..views import is_pinned
from .hooks import Veto
from .models.base import ModelFailed, Reply, Request

if TYPE_CHECKING:
    from .loop import Loop

PROMPT = (
    "Summarise the conversation so far for yourself, so that you can go on without it: what "
    "the user wants, what was done, which files and commands matter, what is left to do."
)

_BYTES_PER_TOKEN = 4


@dataclass(slots=True)
class Compaction:
    """When to compact, and how much to keep. `window` is in tokens; None: never."""

    window: int | None = None
    at: float = 0.8
    keep: int = 6

    def before(self, loop: Loop, turn: LiveTurn) -> Generator[Json, Json, None]:
        """Compact if the view is nearly too long for the model."""
        if self.window is None or self._tokens(loop, turn) < self.window * self.at:
            return
        events = _live(turn)
        cut = self._cut(events)
        if cut is None:
            return
        try:
            loop.hooks.call("before_compact", turn, until=cut)
        except Veto:
            return
        shown = _view(events, loop.model.format, until=cut)
        asked = [*shown, {"role": "user", "content": PROMPT}]
        try:
            reply: Reply = yield Ask(loop.model, Request(repair(asked)))
        except ModelFailed:
            # The next request says what is wrong, if it is.
            return
        data = {"summary": reply.message, "until": cut, "format": loop.model.format}
        turn.count(reply.usage, None)
        yield Append(NewEvent("compaction", {**data, "usage": reply.usage}))

    def view(self, turn: LiveTurn, format: Format) -> list[dict[str, Json]]:
        """The conversation as it is sent to a model."""
        return repair(_view(_live(turn), format))

    def _tokens(self, loop: Loop, turn: LiveTurn) -> int:
        view = self.view(turn, loop.model.format)
        return len(msgspec.json.encode(view)) // _BYTES_PER_TOKEN

    def _cut(self, events: list[Event]) -> int | None:
        """The last event to be summarised: the newest turns stay, and no call is cut in two."""
        said = [event for event in events if event.kind in MESSAGE_KINDS and not is_pinned(event)]
        users = [event for event in said[: -self.keep] if event.kind == "user_message"]
        if len(users) < 2:
            return None
        done = _until(events)
        cut = users[-1].seq - 1
        return cut if cut > done else None


def _live(turn: LiveTurn) -> list[Event]:
    return turn.session.history()


def _until(events: list[Event]) -> int:
    """Up to where the newest compaction goes."""
    found = [event for event in events if event.kind == "compaction"]
    return int(found[-1].data.get("until", 0)) if found else 0


def _view(events: list[Event], format: Format, until: int | None = None) -> list[dict[str, Json]]:
    """Pinned messages, the newest summary, and what came after it, up to `until`."""
    done = _until(events)
    summaries = [event for event in events if event.kind == "compaction"]
    kept: list[tuple[dict[str, Json], Format]] = []
    pins: list[tuple[dict[str, Json], Format]] = []
    for event in events:
        message = event.data.get("message")
        if event.kind not in MESSAGE_KINDS or not isinstance(message, dict):
            continue
        entry = (message, format_of(message))
        if event.data.get("pinned") is True:
            pins = [entry] if event.kind == "system_message" else [*pins, entry]
        elif event.seq > done and (until is None or event.seq <= until):
            kept.append(entry)
    if summaries:
        text = text_of(summaries[-1].data.get("summary"))
        note = {"role": "user", "content": f"[What was said before, in short]\n{text}"}
        kept.insert(0, (note, "openai"))
    return convert([*pins, *kept], format)
