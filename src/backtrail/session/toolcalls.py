"""Tool calls as a session records them: the call under way, and the event that ends it."""

from __future__ import annotations

import msgspec

from ..errors import InvalidData
from ..events import Event, Json, NewEvent
from ..events.calls import ToolCall, answer_to, calls_in, error_text, is_shown
from ..events.messages import message_event


class Call:
    """A call under way. Set `result`; it goes into the event that ends the call.

    With `only_files`, a call that leaves the files as they were leaves no event. `of` is the id of
    a model's call that this carries out, where the answer is appended by the caller: without an
    `id` it is an action all the same.
    """

    def __init__(self, name: str, input: Json, id: str | None) -> None:
        self.name = name
        self.input = input
        self.id = id
        self.result: object = None
        self.of: str | None = None
        self.only_files = False
        self.event: Event | None = None
        self.outside: list[str] = []


def asks(event: Event, call_id: str) -> bool:
    """Whether an event's message asks for a call."""
    message = event.data.get("message")
    return isinstance(message, dict) and any(c.id == call_id for c in calls_in(message))


def ending_event(
    call: Call, asking: dict[str, Json], carried: dict[str, Json], error: BaseException | None
) -> NewEvent:
    """The event that ends a call: a result for the message `asking`, or an action without one."""
    details: dict[str, Json] = {"name": call.name, **carried}
    if error is not None:
        details["error"] = True
    result = _as_json(call.result) if error is None else error_text(error)
    if call.id is None:
        about = details if call.of is None else {**details, "call": call.of}
        return NewEvent("action", {**about, "input": _as_json(call.input), "result": result})
    return result_event(call.id, asking, result, details)


def settling_event(
    messages: list[dict[str, Json]], call: ToolCall, result: object, *, failed: bool
) -> NewEvent:
    """The event that settles a call of these messages."""
    asking = (m for m in reversed(messages) if any(c.id == call.id for c in calls_in(m)))
    details: dict[str, Json] = {"name": call.name} | ({"error": True} if failed else {})
    return result_event(call.id, next(asking, {}), result, details)


def result_event(
    call_id: str, asking: dict[str, Json], result: object, details: dict[str, Json]
) -> NewEvent:
    """The event with the result of a call that the message `asking` asks for."""
    result = _as_json(result)
    if is_shown(result):
        # Only Anthropic has a word for an image in a result; a view converts it.
        asked: dict[str, Json] = {"content": [{"type": "tool_use", "id": call_id}]}
        answer = answer_to(call_id, asked, result)
    else:
        content = result if isinstance(result, str) else msgspec.json.encode(result).decode()
        content = "" if result is None else content
        answer = answer_to(call_id, asking, content, failed=details.get("error") is True)
    event = message_event(answer, kind="tool_result")
    return NewEvent(event.kind, {**event.data, **details})


def _as_json(value: object) -> Json:
    """A value as an event can hold it; what JSON has no word for, as text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, InvalidData):
        return str(value)
