"""LangChain's messages, as their fields: `type` says who speaks, `tool_calls` have `args`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..events import Json
from . import openai
from .parts import Turn, as_object

_TYPES = {"user": "human", "assistant": "ai", "system": "system", "developer": "system"}


def to_turns(message: Mapping[str, Json]) -> list[Turn]:
    """One message as turns."""
    said = str(message.get("type", ""))
    kind = said.removesuffix("MessageChunk").lower()
    role = message.get("role") if kind == "chat" else kind
    return openai.to_turns({**message, "role": role, "type": None})


def from_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    """Turns as messages."""
    found: list[dict[str, Json]] = []
    for message in openai.from_turns(turns):
        if "role" not in message:
            # It is LangChain's already.
            found.append(message)
            continue
        made: dict[str, Json] = {
            "type": _TYPES.get(message["role"], "tool"),
            "content": message.get("content") or "",
        }
        if message.get("tool_calls"):
            made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
        if "tool_call_id" in message:
            made["tool_call_id"] = message["tool_call_id"]
        found.append(made)
    return found


def _call(call: Mapping[str, Json]) -> Json:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    if "custom" in call:
        name, arguments = call["custom"].get("name"), call["custom"].get("input")
    given = as_object(arguments or "{}")
    return {"name": name, "args": given, "id": call.get("id"), "type": "tool_call"}
