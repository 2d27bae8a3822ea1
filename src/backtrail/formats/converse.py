"""Messages of Bedrock's Converse, as Strands keeps them: blocks named by their one key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..events import Json
from .parts import Call, Media, Part, Result, Role, Text, Turn, as_json_text, as_object, mappings

_TYPES = {"image": "image/", "document": "application/", "video": "video/"}


def to_turns(message: Mapping[str, Json]) -> list[Turn]:
    """One message as turns; answers of tools are a turn of their own, in front."""
    said: list[Part] = []
    results: list[Part] = []
    for block in mappings(message.get("content")):
        call, answer = block.get("toolUse"), block.get("toolResult")
        if isinstance(call, Mapping):
            given = as_json_text(call.get("input", {}))
            said.append(Call(str(call.get("toolUseId")), str(call.get("name")), given))
        elif isinstance(answer, Mapping):
            parts = tuple(_parts(answer.get("content")))
            failed = answer.get("status") == "error"
            results.append(Result(str(answer.get("toolUseId")), parts, failed))
        else:
            said += _parts([block])
    role: Role = "assistant" if message.get("role") == "assistant" else "user"
    turns = [Turn("tool", tuple(results))] if results else []
    return [*turns, Turn(role, tuple(said))] if said or not turns else turns


def _parts(content: Json) -> list[Text | Media]:
    found: list[Text | Media] = []
    for block in mappings(content):
        if isinstance(block.get("text"), str) and block["text"]:
            found.append(Text(block["text"]))
        elif "json" in block:
            found.append(Text(as_json_text(block["json"])))
        for name, before in _TYPES.items():
            held = block.get(name)
            if isinstance(held, Mapping):
                source = held.get("source")
                data = source.get("bytes") if isinstance(source, Mapping) else None
                kind = f"{before}{held.get('format')}"
                media = Media(
                    "image" if name == "image" else "file",
                    data=data if isinstance(data, str) else None,
                    media_type=kind,
                    name=held.get("name") if isinstance(held.get("name"), str) else None,
                )
                found.append(media if media.data is not None else media.left_out())
    return found


def from_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    """Turns as messages, neighbours of one side joined; a system prompt is the user's."""
    found: list[dict[str, Json]] = []
    for turn in turns:
        if turn.native is not None:
            found.append(turn.native)
            continue
        blocks = [_block(part) for part in turn.parts]
        role = "assistant" if turn.role == "assistant" else "user"
        if found and found[-1].get("role") == role and blocks:
            found[-1] = {**found[-1], "content": [*mappings(found[-1].get("content")), *blocks]}
        elif blocks:
            found.append({"role": role, "content": blocks})
    return found


def _block(part: Part) -> dict[str, Json]:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, Call):
        given = as_object(part.arguments)
        return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": given}}
    if isinstance(part, Result):
        content = [_block(one) for one in part.said()]
        status = "error" if part.is_error else "success"
        return {
            "toolResult": {"toolUseId": part.call_id, "content": content, "status": status},
        }
    kind = (part.media_type or "").rpartition("/")[2]
    if part.data is None or part.kind != "image":
        return {"text": part.left_out().text}
    return {"image": {"format": kind, "source": {"bytes": part.data}}}
