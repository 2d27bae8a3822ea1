"""Messages of pydantic-ai: requests and responses of parts, each with its `part_kind`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    left_out,
    linked_media,
    mappings,
)


def to_turns(message: Mapping[str, Json]) -> list[Turn]:
    """One message as turns, in the order of its parts."""
    turns: list[Turn] = []
    for part in mappings(message.get("parts")):
        role, made = _read(part)
        if not made:
            continue
        if turns and turns[-1].role == role:
            turns[-1] = Turn(role, (*turns[-1].parts, *made))
        else:
            turns.append(Turn(role, tuple(made)))
    return turns


def _read(part: Mapping[str, Json]) -> tuple[Role, list[Part]]:
    kind, content = part.get("part_kind"), part.get("content")
    id = str(part.get("tool_call_id") or part.get("tool_name"))
    if kind == "system-prompt":
        return "system", [Text(content)] if isinstance(content, str) else []
    if kind == "user-prompt":
        return "user", list(_prompt(content))
    if kind == "text":
        return "assistant", [Text(content)] if isinstance(content, str) and content else []
    if kind in ("tool-call", "builtin-tool-call"):
        arguments = part.get("args")
        text = as_json_text({} if arguments is None else arguments)
        return "assistant", [Call(id, str(part.get("tool_name")), text)]
    if kind in ("tool-return", "builtin-tool-return"):
        failed = part.get("outcome") in ("failed", "denied")
        return "tool", [Result(id, (Text(as_json_text(content)),), failed)]
    if kind == "retry-prompt":
        said = Text(as_json_text(content))
        return ("tool", [Result(id, (said,), True)]) if part.get("tool_name") else ("user", [said])
    return "assistant", []


def _prompt(content: Json) -> list[Text | Media]:
    found: list[Text | Media] = []
    for one in content if isinstance(content, list) else [content]:
        if isinstance(one, str):
            found += [Text(one)] if one else []
        elif isinstance(one, Mapping):
            kind, url = str(one.get("kind")), one.get("url")
            what = "image" if kind.startswith("image") else "file"
            media_type = one.get("media_type")
            if what == "image" or str(media_type).startswith("image/"):
                shown = "image"
            else:
                shown = "file"
            if isinstance(url, str):
                found.append(linked_media("image" if shown == "image" else "file", url))
            elif isinstance(one.get("data"), str):
                kind_of = media_type if isinstance(media_type, str) else None
                media = Media(
                    "image" if shown == "image" else "file", data=one["data"], media_type=kind_of
                )
                found.append(media)
            else:
                found.append(left_out(kind))
    return found


def from_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    """Turns as requests and responses, neighbours of one kind joined."""
    names: dict[str, str] = {}
    found: list[dict[str, Json]] = []
    for turn in turns:
        if turn.native is not None:
            found.append(turn.native)
            continue
        kind = "response" if turn.role == "assistant" else "request"
        parts = [_part(part, turn.role, names) for part in turn.parts]
        if found and found[-1].get("kind") == kind and parts:
            found[-1] = {**found[-1], "parts": [*mappings(found[-1].get("parts")), *parts]}
        elif parts:
            found.append({"kind": kind, "parts": parts})
    return found


def _part(part: Part, role: Role, names: dict[str, str]) -> dict[str, Json]:
    if isinstance(part, Call):
        names[part.id] = part.name
        return {
            "part_kind": "tool-call", "tool_name": part.name, "args": part.arguments,
            "tool_call_id": part.id,
        }  # fmt: skip
    if isinstance(part, Result):
        text = "\n".join(one.text for one in part.said() if isinstance(one, Text))
        made: dict[str, Json] = {
            "part_kind": "tool-return", "tool_name": names.get(part.call_id, part.call_id),
            "content": text, "tool_call_id": part.call_id,
        }  # fmt: skip
        return {**made, "outcome": "failed"} if part.is_error else made
    if isinstance(part, Media):
        if role != "user":
            return {"part_kind": "text", "content": part.left_out().text}
        if part.url is not None:
            return {"part_kind": "user-prompt", "content": [_url(part)]}
        binary = {"kind": "binary", "data": part.data, "media_type": part.media_type}
        return {"part_kind": "user-prompt", "content": [binary]}
    kinds = {"assistant": "text", "system": "system-prompt", "developer": "system-prompt"}
    return {"part_kind": kinds.get(role, "user-prompt"), "content": part.text}


def _url(part: Media) -> dict[str, Json]:
    return {"kind": "image-url" if part.kind == "image" else "document-url", "url": part.url}
