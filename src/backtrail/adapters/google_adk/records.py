"""Events of ADK as events of a log, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from google.adk.events import Event as AdkEvent
from pydantic_core import to_jsonable_python

from ...errors import Damaged
from ...events import Event, Json, NewEvent, timestamp
from ...events.history import spent
from .._values import packed, unpacked

ADK = "adk"
"""In the data of an event: the ADK event without its content, which is the message."""

STATE = "state"
"""In the data of an event: the whole state behind it, so that not all before it need be read."""

DELTA = "delta"
"""In the data of an event: the change of the state, where JSON cannot say it exactly."""

OTHER = "adk_event"
"""The kind of an ADK event without content."""

_STATE: Any = {"actions": {"state_delta"}}

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def stored(event: AdkEvent, kept: dict[str, Any]) -> NewEvent:
    """The event of a log that holds one of ADK; `kept` is its change of the state."""
    row = _decode(event.model_dump_json(exclude_defaults=True, by_alias=True, exclude=_STATE))
    data: dict[str, Json] = {}
    content = row.pop("content", None)
    if content is not None:
        data |= {"message": content, "format": "gemini"}
    if kept:
        delta = pack(kept)
        if delta == kept:
            row.setdefault("actions", {})["stateDelta"] = delta
        else:
            data[DELTA] = delta
    usage = _usage(row.get("usageMetadata"))
    if usage:
        data["usage"] = usage
    data[ADK] = row
    return NewEvent(_kind(content), data, id=event.id, ts=timestamp(event.timestamp))


def _kind(content: Json) -> str:
    if not isinstance(content, dict):
        return OTHER
    parts = [part for part in content.get("parts") or () if isinstance(part, dict)]
    if any("functionResponse" in part for part in parts):
        return "tool_result"
    return "user_message" if content.get("role", "user") == "user" else "assistant_message"


def _usage(given: Json) -> dict[str, int]:
    """The tokens that a model's answer took, by our names."""
    if not isinstance(given, dict):
        return {}
    names = {
        "promptTokenCount": "input_tokens",
        "candidatesTokenCount": "output_tokens",
        "cachedContentTokenCount": "cache_read_tokens",
        "thoughtsTokenCount": "reasoning_tokens",
    }
    found = {ours: given[name] for name, ours in names.items() if isinstance(given.get(name), int)}
    return spent({"usage": found})


def pack(values: dict[str, Any]) -> Json:
    """Values of a state as JSON; what has no exact word there as ADK's own services store it."""
    return packed(values, to_jsonable_python)


def loaded(event: Event) -> AdkEvent | None:
    """The ADK event that an event holds; None if it holds none."""
    row = event.data.get(ADK)
    if not isinstance(row, dict):
        return None
    if "message" in event.data:
        row = {**row, "content": event.data["message"]}
    try:
        found = AdkEvent.model_validate_json(_encode(row))
    except ValueError as error:
        raise Damaged(f"event {event.seq} holds no ADK event: {error}") from error
    if DELTA in event.data:
        found.actions.state_delta = unpacked(event.data[DELTA])
    return found


def delta_of(event: Event) -> dict[str, Any]:
    """The change of the state that an event makes."""
    if DELTA in event.data:
        changed: dict[str, Any] = unpacked(event.data[DELTA])
        return changed
    row = event.data.get(ADK)
    actions = row.get("actions") if isinstance(row, dict) else None
    delta = actions.get("stateDelta") if isinstance(actions, dict) else None
    return dict(delta) if isinstance(delta, dict) else {}


def state_after(newest_first: Iterable[Event], *, raw: bool = False) -> dict[str, Any]:
    """The state that events leave: changes, back to one that has the whole state.

    Keys of a session's changes have prefixes, those of a shared state are `raw`.
    """
    deltas: list[dict[str, Any]] = []
    state: dict[str, Any] = {}
    for event in newest_first:
        deltas.append(delta_of(event))
        if STATE in event.data:
            deltas.pop()
            state = unpacked(event.data[STATE])
            break
    for delta in reversed(deltas):
        state.update(delta if raw else scoped(delta)[""])
    return state


def scoped(delta: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A change of the state by scope: "" is the session, "app:" and "user:" are shared."""
    found: dict[str, dict[str, Any]] = {"": {}, "app:": {}, "user:": {}}
    for key, value in delta.items():
        prefix = next((one for one in ("app:", "user:", "temp:") if key.startswith(one)), "")
        if prefix != "temp:":
            found[prefix][key.removeprefix(prefix)] = value
    return found
