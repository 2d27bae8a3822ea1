"""Gemini's contents: a role, `user` or `model`, and parts. Spelled with capitals or underscores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..events import Json
from .parts import Call, Media, Part, Result, Role, Text, Turn, as_json_text, as_object, mappings


def either(value: Mapping[str, Json], name: str) -> Json:
    """A field in one of its spellings: `functionCall`, `function_call`."""
    other = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    found = value.get(name)
    return value.get(other) if found is None else found


def to_turns(message: Mapping[str, Json]) -> list[Turn]:
    """One content as turns; answers of tools are a turn of their own, in front."""
    role: Role = "assistant" if message.get("role") in ("model", "assistant") else "user"
    role = "system" if message.get("role") == "system" else role
    said: list[Part] = []
    results: list[Part] = []
    for part in mappings(message.get("parts")):
        call, answer = either(part, "functionCall"), either(part, "functionResponse")
        held, linked = either(part, "inlineData"), either(part, "fileData")
        if isinstance(call, Mapping):
            name = str(call.get("name"))
            said.append(Call(str(call.get("id") or name), name, as_json_text(call.get("args", {}))))
        elif isinstance(answer, Mapping):
            results.append(_result(answer))
        elif isinstance(held, Mapping):
            said.append(_media(either(held, "mimeType"), data=held.get("data")))
        elif isinstance(linked, Mapping):
            said.append(_media(either(linked, "mimeType"), url=either(linked, "fileUri")))
        elif isinstance(part.get("text"), str) and part["text"] and not part.get("thought"):
            said.append(Text(part["text"]))
    turns = [Turn("tool", tuple(results))] if results else []
    return [*turns, Turn(role, tuple(said))] if said or not turns else turns


def _result(answer: Mapping[str, Json]) -> Result:
    response = answer.get("response")
    failed = isinstance(response, Mapping) and "error" in response
    if isinstance(response, Mapping) and len(response) == 1:
        [response] = response.values()
    text = as_json_text(response)
    parts = (Text(text),) if text else ()
    return Result(str(answer.get("id") or answer.get("name")), parts, failed)


def _media(kind: Json, data: Json = None, url: Json = None) -> Media:
    media_type = kind if isinstance(kind, str) else None
    what = "image" if (media_type or "").startswith("image/") else "file"
    held = data if isinstance(data, str) else None
    link = url if isinstance(url, str) else None
    return Media("image" if what == "image" else "file", link, held, media_type)


def from_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    """Turns as contents; what a system prompt says comes as a user's, behind nothing."""
    names: dict[str, str] = {}
    found: list[dict[str, Json]] = []
    for turn in turns:
        if turn.native is not None:
            found.append(turn.native)
            continue
        parts = [_part(part, names) for part in turn.parts]
        role = "model" if turn.role == "assistant" else "user"
        if found and found[-1].get("role") == role and "parts" in found[-1] and parts:
            found[-1] = {**found[-1], "parts": [*found[-1]["parts"], *parts]}
        elif parts:
            found.append({"role": role, "parts": parts})
    return found


def _part(part: Part, names: dict[str, str]) -> dict[str, Json]:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, Call):
        names[part.id] = part.name
        given = as_object(part.arguments)
        return {"functionCall": {"id": part.id, "name": part.name, "args": given}}
    if isinstance(part, Result):
        text = "\n".join(one.text for one in part.said() if isinstance(one, Text))
        response = {"error" if part.is_error else "result": text}
        name = names.get(part.call_id, part.call_id)
        return {"functionResponse": {"id": part.call_id, "name": name, "response": response}}
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    if part.url is not None:
        return {"fileData": {"mimeType": part.media_type, "fileUri": part.url}}
    return {"text": part.left_out().text}
