"""Messages of Agent Framework as events of a log, and back."""

from __future__ import annotations

from typing import Any

import msgspec
from agent_framework import Message

from ...errors import Damaged, InvalidData
from ...events import Event, Json, NewEvent
from ...events.messages import format_of, kind_of
from ...formats.messages import convert
from .._values import packed, unpacked

EXTRA = "agent_framework"
"""In the data of an event: the message as the framework has it, without what the message says."""

DRAFT = "draft"
"""In the data of an event: that it is a prompt whose run is not saved yet."""

CONFIRMS = "confirms"
"""In the data of an event: the numbers of the prompts that count from here on."""

SAVED = "agent_framework_saved"
"""The kind of that event."""


def confirmation(seqs: list[int]) -> NewEvent:
    """The event by which prompts count."""
    return NewEvent(SAVED, {CONFIRMS: seqs})


def message_event(message: Message, *, draft: bool = False) -> NewEvent:
    """The event that holds a message: for people, and what is more than that beside it."""
    row = message.to_dict()
    said = _said(row)
    data: dict[str, Json] = {"message": said, "format": format_of(said)}
    extra = _without(row)
    data[EXTRA] = packed(extra if _with(extra, said) == row else row, str)
    if draft:
        data[DRAFT] = True
    return NewEvent(_kind(said), data, id=None)


def message_of(event: Event) -> Message:
    """The message that an event holds; what others wrote is converted."""
    try:
        if EXTRA not in event.data:
            return _converted(event.data["message"], event.data.get("format") or "openai")
        return Message.from_dict(_with(unpacked(event.data[EXTRA]), event.data["message"]))
    except (TypeError, ValueError, KeyError) as error:
        raise Damaged(f"event {event.seq} holds no message of Agent Framework: {error}") from error


def _kind(said: dict[str, Json]) -> str:
    try:
        return kind_of(said)
    except InvalidData:
        return "system_message"


def _said(row: dict[str, Any]) -> dict[str, Json]:
    """A message as Chat Completions spell it: words, calls, answers."""
    contents = [one for one in row.get("contents") or () if isinstance(one, dict)]
    texts = [str(one.get("text") or "") for one in contents if one.get("type") == "text"]
    said: dict[str, Json] = {"role": row["role"], "content": packed("".join(texts), str)}
    calls = [one for one in contents if one.get("type") == "function_call"]
    if calls:
        said["tool_calls"] = [
            {
                "id": str(one.get("call_id")),
                "type": "function",
                "function": {
                    "name": str(one.get("name")),
                    "arguments": _json(one.get("arguments")),
                },
            }
            for one in calls
        ]
    answers = [one for one in contents if one.get("type") == "function_result"]
    if len(answers) > 1:
        # Chat Completions have a message for each answer; Anthropic's may hold several.
        return {"role": "user", "content": [_answer(one) for one in answers]}
    if answers and not calls:
        said["tool_call_id"] = str(answers[0].get("call_id"))
        said["content"] = "\n".join(_json(one.get("result")) for one in answers)
    return said


def _call(one: dict[str, Any]) -> dict[str, Json]:
    function = {"name": str(one.get("name")), "arguments": _json(one.get("arguments"))}
    return {"id": str(one.get("call_id")), "type": "function", "function": function}


def _answer(one: dict[str, Any]) -> dict[str, Json]:
    answered = {"tool_use_id": str(one.get("call_id")), "content": _json(one.get("result"))}
    return {"type": "tool_result", **answered}


def _json(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(packed(value, str)).decode()


def _without(row: dict[str, Any]) -> dict[str, Any]:
    """A message of nothing but one text, without that text."""
    contents = row.get("contents")
    if not isinstance(contents, list) or len(contents) != 1 or "text" not in contents[0]:
        return row
    return {**row, "contents": [{k: v for k, v in contents[0].items() if k != "text"}]}


def _with(extra: dict[str, Any], said: dict[str, Json]) -> dict[str, Any]:
    """The message again."""
    contents = extra.get("contents")
    if not isinstance(contents, list) or len(contents) != 1 or contents[0].get("type") != "text":
        return extra
    return {**extra, "contents": [{"text": said["content"], **contents[0]}]}


def _converted(message: dict[str, Json], format: Any) -> Message:
    """A message that another program wrote."""
    row = convert([(message, format)], "openai")[0]
    contents: list[dict[str, Json]] = []
    if row.get("role") == "tool":
        given = {"call_id": row.get("tool_call_id"), "result": row.get("content")}
        contents.append({"type": "function_result", **given})
    elif isinstance(row.get("content"), str) and row["content"]:
        contents.append({"type": "text", "text": row["content"]})
    for call in row.get("tool_calls") or ():
        made = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        contents.append({"type": "function_call", "call_id": call["id"], **made})
    return Message.from_dict({"role": row["role"], "contents": contents})
