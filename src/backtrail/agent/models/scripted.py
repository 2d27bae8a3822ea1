"""A model that says what was written down before: for tests without a network.

`ScriptedModel.from_session` takes its answers from a recorded session, so that any session
becomes a test of the agent around it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ...errors import Conflict, InvalidData, Unsupported
from ...events import Event, Format, Json
from ...events.calls import calls_in
from ...events.history import spent
from ...events.messages import format_of, text_of
from ...formats.messages import convert
from ...formats.parts import mappings
from ...stores import Store, open_store
from .base import Delta, Model, Reply, Request, StopReason

Answer = str | Mapping[str, Json] | Reply | BaseException
"""What is said: words, a message, a whole reply, or an error to raise."""

Scripted = Answer | Callable[[Request], Answer]
"""An answer, or what makes one from the request."""

PIECE = 8
"""Characters a delta has."""


class ScriptedModel(Model):
    """Answers requests in order, and keeps them in `requests`.

    `delay` is how many seconds pass before each piece. Where it is asked asynchronously,
    `sleep` is how to wait, such as `anyio.sleep`.
    """

    provider = "scripted"

    def __init__(
        self,
        replies: Sequence[Scripted] = (),
        format: Format = "openai",
        delay: float = 0,
        *,
        name: str = "scripted",
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.format = format
        self.replies = list(replies)
        self.requests: list[Request] = []
        self._delay = delay
        self._sleep = sleep
        self._recorded: _Recorded | None = None

    @classmethod
    def from_session(
        cls, store: Store | str, session_id: str, *, format: Format | None = None, delay: float = 0
    ) -> ScriptedModel:
        """A model that says what the assistant said in a session's history, in order.

        Asked for more than that, it raises `Conflict` and names where the run left the record.
        """
        opened = open_store(store) if isinstance(store, str) else store
        try:
            events = opened.history(session_id)
            name = opened.info(session_id).model
        finally:
            if opened is not store:
                opened.close()
        events = [event for event in events if isinstance(event.data.get("message"), dict)]
        said = [event for event in events if event.kind == "assistant_message"]
        format = format or (_format(said[0]) if said else "openai")
        model = cls(
            [_recorded_reply(event, format) for event in said],
            format,
            delay,
            name=name or "scripted",
        )
        model._recorded = _Recorded(session_id, _messages(events, format))
        return model

    @property
    def left(self) -> int:
        """How many answers have not been asked for."""
        return max(0, len(self.replies) - len(self.requests))

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        reply = self._next(request)
        for delta in _pieces(reply.message):
            if self._delay:
                time.sleep(self._delay)
            yield delta
        yield reply

    async def astream(self, request: Request) -> AsyncIterator[Delta | Reply]:
        if self._delay and self._sleep is None:
            raise Unsupported("a delay in an event loop needs `sleep`, such as anyio.sleep")
        reply = self._next(request)
        for delta in _pieces(reply.message):
            if self._delay and self._sleep:
                await self._sleep(self._delay)
            yield delta
        yield reply

    def _next(self, request: Request) -> Reply:
        self.requests.append(replace(request, messages=list(request.messages)))
        at = len(self.requests)
        if at > len(self.replies):
            raise self._exhausted(request)
        answer = self.replies[at - 1]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, BaseException):
            raise answer
        return self._reply(answer)

    def _reply(self, answer: str | Mapping[str, Json] | Reply) -> Reply:
        if isinstance(answer, Reply):
            return answer if answer.model else replace(answer, model=self.name)
        if isinstance(answer, str):
            blocks = [{"type": "text", "text": answer}]
            content: Json = blocks if self.format == "anthropic" else answer
            answer = {"role": "assistant", "content": content}
        if not isinstance(answer, Mapping):
            raise InvalidData(f"a scripted reply is text, a message or a Reply, not {answer!r}")
        message = dict(answer)
        return Reply(message, {}, "tool_use" if calls_in(message) else "end_turn", self.name)

    def _exhausted(self, request: Request) -> Conflict:
        count = len(self.replies)
        asked = f"was asked for reply {len(self.requests)}, but there are {count}"
        if self._recorded is None:
            return Conflict(f"the scripted model `{self.name}` {asked}")
        return Conflict(
            f"the replay of session `{self._recorded.session_id}` {asked} in the record: "
            f"{self._recorded.difference(request.messages)}"
        )


# --- a session as a script ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The conversation of the session that is replayed."""

    session_id: str
    messages: list[dict[str, Json]]

    def difference(self, messages: Sequence[Mapping[str, Json]]) -> str:
        """Where a conversation leaves the recorded one."""
        now = [message for message in messages if message.get("role") != "system"]
        for at, (then, here) in enumerate(zip(self.messages, now, strict=False), 1):
            if then != here:
                return f"message {at} was {_shown(then)} and is now {_shown(here)}"
        if len(now) > len(self.messages):
            return f"message {len(now)} is not in it: {_shown(now[len(self.messages)])}"
        return f"the conversation is the recorded one up to message {len(now)}"


def _shown(message: Mapping[str, Json]) -> str:
    text = text_of(message).replace("\n", " ") or str(message.get("tool_calls", "nothing"))
    return f"{message.get('role')} {text if len(text) <= 80 else text[:77] + '...'!r}"


def _format(event: Event) -> Format:
    return cast(Format, event.data.get("format") or format_of(event.data["message"]))


def _messages(events: Sequence[Event], format: Format) -> list[dict[str, Json]]:
    kinds = ("user_message", "assistant_message", "tool_result")
    said = [event for event in events if event.kind in kinds]
    return convert([(event.data["message"], _format(event)) for event in said], format)


def _recorded_reply(event: Event, format: Format) -> Reply:
    own = _format(event)
    message: dict[str, Json] = event.data["message"]
    if own != format:
        converted = [m for m in convert([(message, own)], format) if m.get("role") == "assistant"]
        message = converted[0] if converted else {"role": "assistant", "content": ""}
    model = event.data.get("model")
    reason: StopReason = "tool_use" if calls_in(message) else "end_turn"
    return Reply(message, spent(event.data), reason, model if isinstance(model, str) else "")


# --- a message as deltas -----------------------------------------------------------------


def _pieces(message: Mapping[str, Json]) -> Iterator[Delta]:
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str):
        yield from (Delta("thinking_delta", piece) for piece in _cut(thought))
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else mappings(content)
    for block in blocks:
        if isinstance(text := block.get("thinking"), str):
            yield from (Delta("thinking_delta", piece) for piece in _cut(text))
        elif isinstance(text := block.get("text"), str):
            yield from (Delta("text_delta", piece) for piece in _cut(text))


def _cut(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))
