"""Compaction: the view that is sent to a model shrinks, the log keeps everything.

When the conversation is nearly too long, the model is asked for a summary of its older part. How
long it is, the provider said with its last reply; only what came since is estimated.
A `compaction` event holds it, and up to which event it goes. The view is then the pinned
messages, the summary, and what came after. A rewind past the event takes it back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from ..events import MESSAGE_KINDS, Event, Format, Json, NewEvent
from ..events.calls import answers_in, calls_in, repair
from ..events.history import spent
from ..events.messages import page_of, speech_of, text_of
from ..formats.messages import convert
from ..session.liveturn import LiveTurn
from ..session.turns import Append, Ask
from ..session.views import conversation, is_pinned
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
_LAST = 256
"""How many events are looked at for the newest reply; one further back says little of now."""


@dataclass(slots=True)
class Compaction:
    """When to compact, and how much to keep. `window` is in tokens; None: never."""

    window: int | None = None
    at: float = 0.8
    keep: int = 6

    def before(self, loop: Loop, turn: LiveTurn) -> Generator[Ask | Append, object, None]:
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
        older = _view(events, loop.model.format, turn, until=cut)
        try:
            asked = loop.asked([*older, {"role": "user", "content": PROMPT}])
            reply = yield Ask(loop.model, asked, quiet=True)
        except ModelFailed:
            # The next request says what is wrong, if it is.
            return
        assert isinstance(reply, Reply)
        spent = cost(reply.model or loop.model.name, reply.usage)
        turn.count(reply.usage, spent)
        if not speech_of(reply.message).strip():
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

    def _tokens(self, loop: Loop, turn: LiveTurn) -> float:
        """How long the view is: as counted at the last reply, and an estimate of what came since.

        All of it is estimated where no reply since the last compaction says its tokens.
        """
        format = loop.model.format
        since: list[dict[str, Json]] = []
        for kind, data in islice(_newest_first(turn), _LAST):
            if kind == "compaction":
                break
            if kind == "assistant_message" and (counted := _counted(data, format)):
                return counted + _estimate(since)
            if kind in MESSAGE_KINDS and isinstance(data.get("message"), dict):
                since.append(data["message"])
        return _estimate(self.view(turn, format))

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
    events = turn.log.history()
    last = events[-1].seq if events else 0
    for number, new in enumerate(turn.log.unsaved, last + 1):
        events.append(Event(number, new.id or "", "", new.kind, dict(new.data)))
    return events


def _newest_first(turn: LiveTurn) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """The kinds and data of the history, read as far as they are taken."""
    yield from ((new.kind, new.data) for new in reversed(turn.log.unsaved))
    yield from ((event.kind, event.data) for event in turn.log.walk())


def _counted(data: Mapping[str, Json], format: Format) -> int:
    """How many tokens a conversation has up to a reply, as its provider said; 0 if it did not.

    The message does not say which provider made it: plain text is spelled alike by all.
    """
    usage = spent(data)
    tokens = usage.get("input_tokens", 0)
    if not tokens:
        return 0
    tokens += usage.get("output_tokens", 0)
    if format == "anthropic":
        # What is read from the cache, or written to it, is not in the count of the input.
        return tokens + usage.get("cache_read_tokens", 0) + usage.get("cache_write_tokens", 0)
    # Thoughts are in the count of the output, and are not sent back.
    return tokens - usage.get("reasoning_tokens", 0)


def _estimate(messages: Iterable[Mapping[str, Json]]) -> float:
    """About how many tokens the words of messages are; a picture has no words."""
    return sum(len(text_of(message).encode()) for message in messages) / _BYTES_PER_TOKEN


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
        text = speech_of(summaries[-1].data.get("summary")).strip()
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


def _size(value: Json) -> int:
    return len(msgspec.json.encode(value))
