"""Anthropic Messages API messages.

The API wants the user first, the two roles in turn, all results of a message's calls
together at the head of the next message, and no text without a word in it. The system
prompt is not a message there: it is kept as one message of the role `system`, always the
first, whose content is what `system=` takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import InvalidData
from ..events import Json
from .parts import (
    Call,
    Media,
    Part,
    Result,
    Text,
    Turn,
    as_arguments,
    as_object,
    decoded_text,
    left_out,
    mappings,
    text_or_none,
)

CONTINUED = "(continued)"
"""What the user says first where a conversation begins with the assistant."""

_TEXT_FIELDS = frozenset({"type", "text", "cache_control", "citations"})

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def is_own(message: Mapping[str, Json]) -> bool:
    """Whether a message of nothing but blocks of text can stay as it is.

    OpenAI spells such blocks in the same way, so the block alone does not show its provider.
    """
    blocks = message.get("content")
    return (
        message.keys() == {"role", "content"}
        and message["role"] in ("system", "user", "assistant")
        and isinstance(blocks, list)
        and bool(blocks)
        and all(
            isinstance(block, Mapping)
            and block.get("type") == "text"
            and block.keys() <= _TEXT_FIELDS
            and isinstance(block.get("text"), str)
            and bool(block["text"].strip())
            for block in blocks
        )
    )


def to_turns(message: Mapping[str, Json]) -> list[Turn]:
    """One message as turns: results first, then what the user says."""
    role = message.get("role")
    if role not in ("system", "user", "assistant"):
        raise InvalidData(
            f"cannot convert an Anthropic message with role {role!r}: use user or assistant"
        )
    parts: list[Part] = []
    results: list[Part] = []
    content = message.get("content")
    if isinstance(content, str) and content == CONTINUED and role == "user":
        return []
    for block in _blocks(content):
        kind = block.get("type")
        if kind == "tool_result":
            inner_parts = [part for inner in _blocks(block.get("content")) for part in _read(inner)]
            failed = block.get("is_error") is True
            results.append(Result(str(block.get("tool_use_id")), tuple(inner_parts), failed))
        elif kind == "tool_use":
            call_id, name = str(block.get("id")), str(block.get("name"))
            parts.append(Call(call_id, name, as_arguments(block.get("input"))))
        elif role != "assistant" or kind == "text":
            parts += _read(block)
    turns = [Turn("tool", tuple(results))] if results else []
    return turns + ([Turn(role, tuple(parts))] if parts else [])


def _blocks(content: Json) -> list[Mapping[str, Json]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return mappings(content)


def _read(block: Mapping[str, Json]) -> list[Text | Media]:
    kind = block.get("type")
    if kind == "text":
        text = text_or_none(block.get("text"))
        return [Text(text)] if text else []
    if kind == "search_result":
        inner_parts = [part for inner in _blocks(block.get("content")) for part in _read(inner)]
        heading = text_or_none(block.get("title"))
        return [*([Text(heading)] if heading else []), *inner_parts]
    source = block.get("source")
    if kind in ("image", "document") and isinstance(source, Mapping):
        return _read_source("image" if kind == "image" else "file", block, source)
    return [left_out(str(kind))]


def _read_source(
    kind: Json, block: Mapping[str, Json], source: Mapping[str, Json]
) -> list[Text | Media]:
    name = text_or_none(block.get("title"))
    how = source.get("type")
    if how == "base64" and text_or_none(source.get("data")):
        media_type = text_or_none(source.get("media_type"))
        return [Media(kind, data=source["data"], media_type=media_type, name=name)]
    if how == "url" and text_or_none(source.get("url")):
        return [Media(kind, url=source["url"], name=name)]
    if how == "file" and text_or_none(source.get("file_id")):
        return [Media(kind, file_id=source["file_id"], owner="anthropic", name=name)]
    if how == "text" and text_or_none(source.get("data")):
        # Elsewhere a document in plain text is best said as text.
        return [*([Text(name)] if name else []), Text(source["data"])]
    if how == "content":
        inner_parts = [part for inner in _blocks(source.get("content")) for part in _read(inner)]
        return [*([Text(name)] if name else []), *inner_parts]
    return [left_out("image" if kind == "image" else "document", name)]


def from_turns(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    """Turns as messages: the system prompt first, then user and assistant in turn."""
    system: list[dict[str, Json]] = []
    messages: list[dict[str, Json]] = []
    for turn in turns:
        message = turn.native if turn.native is not None else _message(turn)
        if message is None:
            continue
        into = system if message.get("role") == "system" else messages
        if into and into[-1].get("role") == message.get("role"):
            into[-1] = _merged(into[-1], message)
        else:
            into.append(message)
    if messages and messages[0].get("role") == "assistant":
        system.append({"role": "user", "content": CONTINUED})
    return system + messages


def _merged(first: dict[str, Json], second: dict[str, Json]) -> dict[str, Json]:
    """Two messages of one role as one; results come before words, as the API demands."""
    blocks = [*_blocks(first.get("content")), *_blocks(second.get("content"))]
    if first.get("role") == "user":
        blocks.sort(key=lambda block: block.get("type") != "tool_result")
    return {**first, "content": blocks}


def _message(turn: Turn) -> dict[str, Json] | None:
    blocks: list[dict[str, Json]] = []
    for part in turn.parts:
        if isinstance(part, Call):
            given = as_object(part.arguments)
            blocks.append({"type": "tool_use", "id": part.id, "name": part.name, "input": given})
        elif isinstance(part, Result):
            blocks.append(_result(part))
        else:
            blocks += _content([part])
    if not blocks:
        return None
    role = {"developer": "system", "tool": "user"}.get(turn.role, turn.role)
    if role != "user":
        blocks = [block for block in blocks if block["type"] in ("text", "tool_use")]
    return {"role": role, "content": _plain(blocks)} if blocks else None


def _plain(blocks: list[dict[str, Json]]) -> Json:
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return blocks


def _result(result: Result) -> dict[str, Json]:
    block: dict[str, Json] = {"type": "tool_result", "tool_use_id": result.call_id}
    content = _content(result.said()) or (_content([Text("error")]) if result.is_error else [])
    if content:
        block["content"] = _plain(content)
    if result.is_error:
        block["is_error"] = True
    return block


def _content(parts: Sequence[Text | Media]) -> list[dict[str, Json]]:
    """Blocks of text and media; text without a word is refused by the API and goes."""
    blocks: list[dict[str, Json]] = []
    for part in parts:
        if isinstance(part, Media):
            blocks.append(_media(part))
        elif part.text.strip():
            blocks.append({"type": "text", "text": part.text})
    return blocks


def _media(part: Media) -> dict[str, Json]:
    kind = "image" if part.kind == "image" else "document"
    source: dict[str, Json] | None = None
    if part.url and not part.url.startswith("data:"):
        source = {"type": "url", "url": part.url}
    elif part.file_id and part.owner == "anthropic":
        source = {"type": "file", "file_id": part.file_id}
    elif part.data and part.media_type in (*_IMAGES, "application/pdf"):
        source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    elif part.data and (part.media_type or "").startswith("text/") and kind == "document":
        text = decoded_text(part.data)
        if text and text.strip():
            source = {"type": "text", "media_type": "text/plain", "data": text}
    if source is None:
        return {"type": "text", "text": part.left_out().text}
    block: dict[str, Json] = {"type": kind, "source": source}
    if part.name and kind == "document":
        block["title"] = part.name
    return block
