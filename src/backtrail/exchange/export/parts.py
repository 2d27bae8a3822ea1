"""What is in a message, for people: words, thoughts, calls, results, pictures. Pure.

Messages of all providers, and of none: whatever is not known is shown as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ...events import Json
from ...events.calls import answers_in, calls_in

if TYPE_CHECKING:
    from .document import Subagent

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Kinds of pictures that are shown. Not SVG: that is a program."""

LARGEST_PICTURE = 8 << 20
"""Characters of base64 above which a picture is only named."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)


@dataclass(slots=True)
class Words:
    """Something said."""

    text: str


@dataclass(slots=True)
class Thought:
    """What a model thought before it spoke."""

    text: str


@dataclass(slots=True)
class Picture:
    """A picture, in base64."""

    media_type: str
    data: str


@dataclass(slots=True)
class Aside:
    """Something that is named and not shown: a file, a picture elsewhere, an unknown block."""

    title: str
    text: str = ""


@dataclass(slots=True)
class Answer:
    """What a tool answered; `seq` is the event, which has no other place if `is_event`."""

    seq: int
    text: str
    failed: bool = False
    is_event: bool = False
    pictures: list[Picture] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """A tool call, with its answer and the subagent that it started."""

    id: str
    name: str
    arguments: str
    answer: Answer | None = None
    subagent: Subagent | None = None


Part = Words | Thought | Picture | Aside | Call


def pretty(value: Json) -> str:
    """A value as text: itself if it is text, else indented JSON; arguments in JSON as well."""
    if value is None:
        return ""
    if isinstance(value, str):
        if value[:1] not in ("{", "["):
            return value
        try:
            return pretty(msgspec.json.decode(value, type=dict | list))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return value
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (RecursionError, ValueError):
        return str(value)


def parts_of(message: Mapping[str, Json]) -> Iterator[Part]:
    """The parts of a message, without the answers of tools."""
    kind = message.get("type")
    if "role" not in message and kind == "reasoning":
        yield from _thoughts(message.get("summary"))
        return
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str) and message[name]:
            yield Thought(message[name])
    calls_of_content: set[str] = set()
    if not _is_answer(message):
        content = message.get("content")
        for block in content if isinstance(content, list) else [content]:
            for part in _of_block(block):
                if isinstance(part, Call):
                    calls_of_content.add(part.id)
                yield part
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        yield Words(message["refusal"])
    for call in calls_in(message):
        if call.id not in calls_of_content:
            yield Call(call.id, call.name, pretty(call.arguments))
    if "role" not in message and isinstance(kind, str) and not _is_known(kind):
        yield Aside(kind, pretty(dict(message)))


def _is_known(kind: str) -> bool:
    """Whether an item of this kind is shown by its parts."""
    return kind in ("message", "function_call", "custom_tool_call") or kind.endswith("_output")


def _is_answer(message: Mapping[str, Json]) -> bool:
    return isinstance(message.get("tool_call_id"), str)


def _thoughts(summary: Json) -> Iterator[Part]:
    blocks = summary if isinstance(summary, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, Mapping)]
    said = "\n\n".join(text for text in texts if isinstance(text, str))
    if said:
        yield Thought(said)


def _of_block(block: Json) -> Iterator[Part]:
    if isinstance(block, str):
        if block:
            yield Words(block)
        return
    if not isinstance(block, Mapping):
        return
    kind = block.get("type")
    if kind in ("thinking", "redacted_thinking"):
        thought = block.get("thinking")
        yield Thought(thought if isinstance(thought, str) else "hidden by the provider")
    elif kind == "tool_use":
        for call in calls_in({"content": [block]}):
            yield Call(call.id, call.name, pretty(call.arguments))
    elif kind == "tool_result":
        return
    elif isinstance(block.get("text"), str) or isinstance(block.get("refusal"), str):
        text = block.get("text") or block.get("refusal")
        if text:
            yield Words(str(text))
    else:
        yield _media(block) or Aside(str(kind or "a part"), pretty(dict(block)))


def _media(block: Mapping[str, Json]) -> Picture | Aside | None:
    """A picture or a file, as one of the three providers spells it."""
    source = block.get("source")
    if isinstance(source, Mapping):
        if isinstance(source.get("data"), str) and source.get("type") == "base64":
            return _picture(source.get("media_type"), source["data"], block)
        return _named(block, source)
    link = block.get("image_url")
    if isinstance(link, Mapping):
        link = link.get("url")
    if isinstance(link, str):
        head, comma, data = link.partition(",")
        if comma and head.startswith("data:") and head.endswith(";base64"):
            return _picture(head.removeprefix("data:").split(";")[0], data, block)
        return Aside(f"picture: {link[:200]}")
    if block.get("type") in ("file", "input_file", "document", "input_image"):
        held = block.get("file")
        return _named(block, held if isinstance(held, Mapping) else block)
    return None


def _picture(media_type: Json, data: str, block: Mapping[str, Json]) -> Picture | Aside:
    sound = isinstance(media_type, str) and media_type in PICTURES and bool(_BASE64.fullmatch(data))
    if sound and len(data) <= LARGEST_PICTURE:
        return Picture(str(media_type), data)
    return Aside(f"{block.get('type')} ({str(media_type)[:100]}, {len(data)} characters)")


def _named(block: Mapping[str, Json], held: Mapping[str, Json]) -> Aside:
    names = ("filename", "title", "name", "url", "file_url", "file_id")
    found = next((d[n] for d in (block, held) for n in names if isinstance(d.get(n), str)), "")
    text = held.get("data") if held.get("type") == "text" else None
    return Aside(f"{block.get('type')}: {found[:200]}", text if isinstance(text, str) else "")


def answers_of(seq: int, message: Mapping[str, Json]) -> Iterator[tuple[str, Answer]]:
    """The answers in a message, each with the id of its call."""
    content = message.get("content")
    if isinstance(message.get("tool_call_id"), str):
        yield message["tool_call_id"], _answer(seq, content, message)
        return
    blocks = content if isinstance(content, list) else []
    for block in blocks:
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            yield str(block.get("tool_use_id")), _answer(seq, block.get("content"), block)
    if not blocks:
        for id in sorted(answers_in(message)):
            yield id, _answer(seq, message.get("output"), message)


def _answer(seq: int, content: Json, holder: Mapping[str, Json]) -> Answer:
    answer = Answer(seq, "", failed=holder.get("is_error") is True)
    texts: list[str] = []
    if isinstance(content, list):
        for block in content:
            for part in _of_block(block):
                if isinstance(part, Picture):
                    answer.pictures.append(part)
                elif isinstance(part, (Words, Thought)):
                    texts.append(part.text)
                elif isinstance(part, Aside):
                    texts.append(f"[{part.title}]")
    else:
        texts.append(pretty(content) if not isinstance(content, str) else content)
    answer.text = "\n".join(texts)
    return answer
