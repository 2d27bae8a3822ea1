"""OpenAI Responses items.

Every call, result and message is an item of its own. Item ids are not made up: `call_id`
alone pairs a call with its result, and an id that the API did not give is refused.
Items of tools that run at the provider (web search and the like) stay with their provider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..events import Json
from . import openai
from .parts import (
    Call,
    Media,
    Result,
    Text,
    Turn,
    as_json_text,
    held_file,
    left_out,
    linked_media,
    text_or_none,
)

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


def to_turns(item: Mapping[str, Json]) -> list[Turn]:
    """One item as turns; none for reasoning and for what only OpenAI can take back."""
    kind = item.get("type")
    if kind in _CALLS:
        text = as_json_text(item.get(_CALLS[kind], ""))
        call_id, name = str(item.get("call_id")), str(item.get("name"))
        return [Turn("assistant", (Call(call_id, name, text, kind == "custom_tool_call"),))]
    if isinstance(kind, str) and kind.endswith("_call_output"):
        parts = _read_output(item.get("output"))
        custom = kind == "custom_tool_call_output"
        return [Turn("tool", (Result(str(item.get("call_id")), tuple(parts), custom=custom),))]
    role = item.get("role")
    if role in ("system", "developer", "user", "assistant"):
        return [Turn(role, tuple(_read_content(item.get("content"), note=role != "assistant")))]
    if kind in openai.ROLES or role in openai.ROLES:
        return openai.to_turns(item)
    return []


def _read_output(output: Json) -> list[Text | Media]:
    if isinstance(output, str | list):
        return _read_content(output)
    return [] if output is None else [Text(as_json_text(output))]


def _read_content(content: Json, *, note: bool = True) -> list[Text | Media]:
    if not isinstance(content, list):
        return openai.read_content(content)
    parts: list[Text | Media] = []
    for block in content:
        part = _part(block) if isinstance(block, Mapping) else None
        if part is not None:
            parts.append(part)
        elif isinstance(block, Mapping) and str(block.get("type")).startswith("input_"):
            if note and block.get("type") != "input_text":
                parts.append(left_out(str(block["type"]).removeprefix("input_")))
        else:
            # Callers mix the two OpenAI spellings of content.
            parts += openai.read_content([block], note=note and not _is_text(block))
    return parts


def _is_text(block: Json) -> bool:
    return isinstance(block, Mapping) and str(block.get("type")).endswith("text")


def _part(block: Mapping[str, Json]) -> Text | Media | None:
    kind = block.get("type")
    if kind in ("input_text", "output_text", "summary_text"):
        text = text_or_none(block.get("text"))
        return Text(text) if text else None
    if kind == "input_image":
        detail = text_or_none(block.get("detail"))
        if link := text_or_none(block.get("image_url")):
            return linked_media("image", link, detail=detail)
        if file_id := text_or_none(block.get("file_id")):
            return Media("image", file_id=file_id, owner="openai", detail=detail)
    if kind == "input_file":
        name = text_or_none(block.get("filename"))
        if file_id := text_or_none(block.get("file_id")):
            return Media("file", file_id=file_id, owner="openai", name=name)
        if data := text_or_none(block.get("file_data")):
            return held_file(data, name)
        if link := text_or_none(block.get("file_url")):
            return Media("file", url=link, name=name)
    return None


def from_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    """Turns as items."""
    items: list[dict[str, Json]] = []
    for turn in turns:
        if turn.native is not None:
            items.append(turn.native)
            continue
        content: list[dict[str, Json]] = []
        for part in turn.parts:
            if isinstance(part, Text | Media):
                content.append(_block(part, turn.role))
                continue
            items += _message(turn.role, content)
            content = []
            items.append(_call(part) if isinstance(part, Call) else _output(part))
        items += _message(turn.role, content)
    return items


def _message(role: str, content: list[dict[str, Json]]) -> list[dict[str, Json]]:
    return [{"type": "message", "role": role, "content": content}] if content else []


def _call(call: Call) -> dict[str, Json]:
    kind = "custom_tool_call" if call.custom else "function_call"
    return {"type": kind, "call_id": call.id, "name": call.name, _CALLS[kind]: call.arguments}


def _output(result: Result) -> dict[str, Json]:
    kind = "custom_tool_call_output" if result.custom else "function_call_output"
    parts = result.said()
    output: Json = [_block(part, "tool") for part in parts]
    if not parts:
        output = ""
    elif len(parts) == 1 and isinstance(parts[0], Text):
        output = parts[0].text
    return {"type": kind, "call_id": result.call_id, "output": output}


def _block(part: Text | Media, role: str) -> dict[str, Json]:
    if isinstance(part, Text):
        if role != "assistant":
            return {"type": "input_text", "text": part.text}
        if part.refusal:
            return {"type": "refusal", "refusal": part.text}
        return {"type": "output_text", "text": part.text, "annotations": []}
    mine = part.file_id if part.owner == "openai" else None
    if role != "assistant" and (part.url or part.data or mine):
        if part.kind == "image":
            image = {"type": "input_image", "detail": part.detail or "auto"}
            return image | ({"file_id": mine} if mine else {"image_url": part.url or part.data_url})
        if mine:
            return {"type": "input_file", "file_id": mine}
        if part.url:
            return {"type": "input_file", "file_url": part.url}
        name = part.name or "file"
        return {"type": "input_file", "filename": name, "file_data": part.data_url}
    return _block(part.left_out(), role)
