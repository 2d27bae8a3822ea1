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

from ..agents import LiveTurn
from ..calls import answers_in, calls_in, repair
from ..events import MESSAGE_KINDS, Event, Format, Json, NewEvent
from ..formats.messages import convert
from ..messages import page_of, text_of
from ..turns import Append, Ask
from ..views import conversation, is_pinned
from .hooks import Veto
from .models.base import ModelFailed, Reply
from .models.prices import cost

if TYPE_CHECKING:
    from .loop import Loop

PROMPT = (
    "Summarise the conversation so far for yourself, so that you can go on without it: what "
    "the user wants, what was done, which files and commands matter, what is left to do. "
    "Answer with the summary alone, and call no tools."
)

_BYTES_PER_TOKEN = 4
_WORTH = 0.25


@dataclass(slots=True)
class Compaction:
    """When to compact, and how much to keep. `window` is in tokens; None: never."""

    window: int | None = None
    at: float = 0.8
    keep: int = 6

    def before(self, loop: Loop, turn: LiveTurn) -> Generator[Json, Json, None]:
        """Compact if the view is nearly too long for the model."""
        if self.window is None or _size(self.view(turn, loop.model.format)) < self._most():
            return
        events = _live(turn)
        cut = self._cut(events)
        if cut is None:
            return
        try:
            loop.hooks.call("before_compact", turn, until=cut)
        except Veto:
            return
        older = _view(events, loop.model.format, turn, until=cut)
        try:
            asked = loop.asked([*older, {"role": "user", "content": PROMPT}])
            reply: Reply = yield Ask(loop.model, asked, quiet=True)
        except ModelFailed:
            # The next request says what is wrong, if it is.
            return
        spent = cost(reply.model or loop.model.name, reply.usage)
        turn.count(reply.usage, spent)
        if not _words(reply.message):
            return
        data = {"summary": reply.message, "until": cut, "format": loop.model.format}
        data |= {"usage": reply.usage} | ({} if spent is None else {"cost_usd": spent})
        turn.is_compacted = True
        yield Append(NewEvent("compaction", data))

    def view(self, turn: LiveTurn, format: Format) -> list[dict[str, Json]]:
        """The conversation as it is sent to a model."""
        if not _was_compacted(turn):
            return turn.recalled(format)
        return _view(_live(turn), format, turn)

    def _most(self) -> float:
        return (self.window or 0) * self.at * _BYTES_PER_TOKEN

    def _cut(self, events: list[Event]) -> int | None:
        """The last event to be summarised: the newest stay, and no call is cut in two."""
        done = _until(events)
        said = [e for e in events if e.seq > done and _message(e) and not is_pinned(e)]
        open_calls: set[str] = set()
        cut = 0
        for at, event in enumerate(said[: max(0, len(said) - self.keep + 1)]):
            message = event.data["message"]
            if at and not open_calls and event.kind in ("user_message", "assistant_message"):
                cut = at
            open_calls |= {call.id for call in calls_in(message)}
            open_calls -= answers_in(message)
        # What is hardly shorter than before is not worth asking for.
        sizes = [_size(event.data["message"]) for event in said]
        if cut < 2 or sum(sizes[:cut]) < _WORTH * sum(sizes):
            return None
        return said[cut - 1].seq


def _was_compacted(turn: LiveTurn) -> bool:
    """Whether there is a compaction; that is looked up once in a turn."""
    if turn.is_compacted is None:
        turn.is_compacted = turn.recall.was_compacted()
    return turn.is_compacted


def _live(turn: LiveTurn) -> list[Event]:
    """The history, with what is not stored yet, under numbers to come."""
    session = turn.session
    events = session.history()
    last = events[-1].seq if events else 0
    for number, new in enumerate(session._unsaved, last + 1):
        events.append(Event(number, new.id or "", "", new.kind, dict(new.data)))
    return events


def _until(events: list[Event]) -> int:
    """Up to where the newest compaction goes."""
    found = [event for event in events if event.kind == "compaction"]
    return int(found[-1].data.get("until", 0)) if found else 0


def _message(event: Event) -> dict[str, Json] | None:
    message = event.data.get("message")
    known = event.kind in MESSAGE_KINDS and isinstance(message, dict)
    return message if known else None


def _view(
    events: list[Event], format: Format, turn: LiveTurn, until: int | None = None
) -> list[dict[str, Json]]:
    """Pinned messages, the newest summary, and what came after it, up to `until`."""
    done = _until(events)
    summaries = [event for event in events if event.kind == "compaction"]
    kept = [event for event in events if is_pinned(event)]
    if summaries:
        text = _words(summaries[-1].data.get("summary"))
        note = {"role": "user", "content": f"[What was said before, in short]\n{text}"}
        kept.append(Event(0, "", "", "user_message", {"message": note, "format": "openai"}))
    for event in events:
        if event.seq > done and (until is None or event.seq <= until):
            kept += [] if is_pinned(event) else [event]
        elif event.seq <= done and _stays(event, turn):
            kept.append(event)
    shown = convert(conversation([page_of(kept)]), format)
    return repair(shown)


def _stays(event: Event, turn: LiveTurn) -> bool:
    """Whether a message is shown though it is summarised: pinned ones, and the prompt."""
    message = _message(event)
    if message is None or is_pinned(event) or calls_in(message) or answers_in(message):
        return False
    return event.data.get("pinned") is True or event.id == turn.event.id


def _words(message: Json) -> str:
    """What a message says in words, without calls and thoughts."""
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, list):
        texts = [b.get("text") for b in content if isinstance(b, dict) and b.get("type") == "text"]
        return "\n".join(text for text in texts if isinstance(text, str)).strip()
    return text_of(content).strip()


def _size(value: Json) -> int:
    return len(msgspec.json.encode(value))
