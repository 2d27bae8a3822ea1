"""OpenAI chat completions messages.

`tool` messages hold text only, so media in a result follow in a message of the user,
behind the last result. Items of one model response become one assistant message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..errors import InvalidData
from ..events import Json
from .parts import (
    Call,
    Media,
    Part,
    Result,
    Role,
    Text,
    Turn,
    as_json_text,
    held_file,
    left_out,
    linked_media,
    mappings,
    text_or_none,
)

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Names of roles in use; frameworks write some in `type`."""


def to_turns(message: Mapping[str, Json]) -> list[Turn]:
    """One chat message as turns."""
    said = message.get("role", message.get("type"))
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise InvalidData(
            f"cannot convert a chat message with role {said!r}: use system, user, assistant or tool"
        )
    content = read_content(message.get("content"), note=role != "assistant")
    if role == "tool":
        # A `function` message, the older spelling, has a name in place of an id.
        call_id = message.get("tool_call_id", message.get("name"))
        failed = message.get("is_error") is True or message.get("status") == "error"
        return [Turn("tool", (Result(str(call_id), tuple(content), failed),))]
    parts: list[Part] = [*content]
    if role == "assistant":
        refusal = text_or_none(message.get("refusal"))
        audio = message.get("audio")
        spoken = text_or_none(audio.get("transcript")) if isinstance(audio, Mapping) else None
        parts += [Text(refusal, refusal=True)] if refusal else []
        parts += [Text(spoken)] if spoken else []
        parts += _calls(message)
    return [Turn(role, tuple(parts))]


def read_content(content: Json, *, note: bool = True) -> list[Text | Media]:
    """The parts of `content`; `note` says in words where one cannot be converted."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[Text | Media] = []
    for block in content if isinstance(content, list) else ():
        if isinstance(block, str):
            parts += [Text(block)] if block else []
        elif isinstance(block, Mapping):
            part = _part(block)
            if part is not None:
                parts.append(part)
            elif note and block.get("type") not in ("text", "refusal"):
                parts.append(left_out(str(block.get("type")).removeprefix("input_")))
    return parts


def _part(block: Mapping[str, Json]) -> Text | Media | None:
    kind = block.get("type")
    if kind == "text" and (text := text_or_none(block.get("text"))):
        return Text(text)
    if kind == "refusal" and (text := text_or_none(block.get("refusal"))):
        return Text(text, refusal=True)
    if kind == "image_url":
        image = block.get("image_url")
        image = image if isinstance(image, Mapping) else {"url": image}
        link, detail = text_or_none(image.get("url")), text_or_none(image.get("detail"))
        return linked_media("image", link, detail=detail) if link else None
    if kind == "file" and isinstance(file := block.get("file"), Mapping):
        name = text_or_none(file.get("filename"))
        if text_or_none(file.get("file_id")):
            return Media("file", file_id=file["file_id"], owner="openai", name=name)
        if text_or_none(file.get("file_data")):
            return held_file(file["file_data"], name)
    return None


def _calls(message: Mapping[str, Json]) -> Iterable[Call]:
    for call in mappings(message.get("tool_calls")):
        function, custom = call.get("function"), call.get("custom")
        if isinstance(custom, Mapping):
            text = as_json_text(custom.get("input", ""))
            yield Call(str(call.get("id")), str(custom.get("name")), text, custom=True)
            continue
        if isinstance(function, Mapping):
            name, arguments = function.get("name"), function.get("arguments")
        else:
            name, arguments = call.get("name"), call.get("args", call.get("arguments"))
        text = "" if arguments is None else as_json_text(arguments)
        yield Call(str(call.get("id")), str(name), text)
    if isinstance(older := message.get("function_call"), Mapping):
        name = str(older.get("name"))
        yield Call(name, name, as_json_text(older.get("arguments", "")))


def from_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    """Turns as chat messages."""
    messages: list[dict[str, Json]] = []
    shown: list[Media] = []
    for turn in _joined(turns):
        if turn.role != "tool" and shown:
            messages.append({"role": "user", "content": [_block(part) for part in shown]})
            shown = []
        if turn.native is not None:
            messages.append(turn.native)
        elif turn.role == "assistant":
            messages += _assistant(turn.parts)
        elif turn.role == "tool":
            for part in turn.parts:
                if isinstance(part, Result):
                    messages.append(_tool(part, shown))
        elif content := _content([part for part in turn.parts if isinstance(part, Text | Media)]):
            messages.append({"role": turn.role, "content": content})
    if shown:
        messages.append({"role": "user", "content": [_block(part) for part in shown]})
    return messages


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Turns with neighbours of the assistant as one: calls must be in one message."""
    joined: list[Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        foreign = last is not None and last.native is None and turn.native is None
        if last is not None and foreign and last.role == turn.role == "assistant":
            joined[-1] = Turn("assistant", last.parts + turn.parts)
        else:
            joined.append(turn)
    return joined


def _assistant(parts: Sequence[Part]) -> list[dict[str, Json]]:
    calls = [_call(part) for part in parts if isinstance(part, Call)]
    said = [part for part in parts if isinstance(part, Text)]
    texts = [part for part in said if not part.refusal]
    refusals = [part.text for part in said if part.refusal]
    if not calls and not said:
        return []
    message: dict[str, Json] = {"role": "assistant", "content": _content(texts) or None}
    if refusals:
        message["refusal"] = "\n".join(refusals)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _call(call: Call) -> dict[str, Json]:
    if call.custom:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool(result: Result, shown: list[Media]) -> dict[str, Json]:
    """A result as a message; its media are added to `shown`."""
    media = [part for part in result.said() if isinstance(part, Media)]
    texts = [part for part in result.said() if isinstance(part, Text)]
    shown += media
    content = _content(texts) or (f"[{media[0].kind}: see below]" if media else "")
    return {"role": "tool", "tool_call_id": result.call_id, "content": content}


def _content(parts: Sequence[Text | Media]) -> Json:
    """One text as a string, which every server takes; anything else as blocks."""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_block(part) for part in parts]


def _block(part: Text | Media) -> dict[str, Json]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.kind == "image" and (part.url or part.data):
        image = {"url": part.url or part.data_url}
        image |= {"detail": part.detail} if part.detail is not None else {}
        return {"type": "image_url", "image_url": image}
    if part.kind == "file" and part.data:
        named = {"filename": part.name or "file", "file_data": part.data_url}
        return {"type": "file", "file": named}
    if part.kind == "file" and part.file_id and part.owner == "openai":
        return {"type": "file", "file": {"file_id": part.file_id}}
    return _block(part.left_out())
