"""The neutral shape between formats, and what people read in a message.

A `Turn` is one voice saying some parts. Each format module turns its own messages into turns
(`to_turns`) and turns into its own messages (`from_turns`), so three formats need three readers
and three writers. Reasoning is no part of a turn: its signature or encrypted content is accepted
only by the provider that made it, so no reader passes it on.

`shown_in` and `answers_of` read a message for people, whatever its format: reasoning,
pictures, and what is not known are parts there.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from .._startup.frozen import dataclass
from ..events import Json
from ..events.calls import ToolCall, answers_in, calls_in
from ..events.messages import mappings as mappings

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""The speaker; `tool` holds nothing but results."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words; `refusal` marks a model's refusal, which OpenAI spells apart."""

    text: str
    refusal: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a file: at a `url`, as base64 `data`, or as `file_id` at its `owner`."""

    kind: Literal["image", "file"]
    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    name: str | None = None
    file_id: str | None = None
    owner: Literal["openai", "anthropic"] | None = None
    detail: str | None = None

    @property
    def data_url(self) -> str:
        """The data with its type, as OpenAI wants it."""
        return f"data:{self.media_type or 'application/octet-stream'};base64,{self.data}"

    def left_out(self) -> Text:
        """What to say where a provider cannot take this."""
        return left_out(self.kind, self.name or self.url or self.file_id or self.media_type)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is JSON text, or any text if the tool is `custom`."""

    id: str
    name: str
    arguments: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool answered."""

    call_id: str
    parts: tuple[Text | Media, ...]
    is_error: bool = False
    custom: bool = False

    def said(self) -> tuple[Text | Media, ...]:
        """The parts; an error without a word says at least that it is one."""
        return self.parts or ((Text("error"),) if self.is_error else ())


Part = Text | Media | Call | Result


@dataclass(frozen=True, slots=True)
class Turn:
    """One voice. `native` is a message already in the wanted format, to be kept as it is."""

    role: Role
    parts: tuple[Part, ...] = ()
    native: dict[str, Json] | None = None


def left_out(kind: str, name: str | None = None) -> Text:
    """A note in place of content that the other provider has no word for."""
    return Text(f"[{kind} left out: {name}]" if name else f"[{kind} left out]")


def text_or_none(value: Json) -> str | None:
    """`value` if it is text that says something."""
    return value if isinstance(value, str) and value else None


def as_json_text(value: Json) -> str:
    """A value as text: itself if it is text, else compact JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def linked_media(
    kind: Literal["image", "file"], link: str, name: str | None = None, detail: str | None = None
) -> Media:
    """Media at a URL, or in it if it is a data URL."""
    head, comma, data = link.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        media_type = head.removeprefix("data:").split(";")[0] or None
        return Media(kind, data=data, media_type=media_type, name=name, detail=detail)
    return Media(kind, url=link, name=name, detail=detail)


def held_file(data: str, name: str | None) -> Media:
    """A file as OpenAI holds it: a data URL, or bare base64 whose type only its name gives."""
    if data.startswith("data:"):
        return linked_media("file", data, name)
    import mimetypes

    media_type = mimetypes.guess_type(name or "")[0]
    return Media("file", data=data, media_type=media_type, name=name)


def decoded_text(data: str) -> str | None:
    """Base64 data as text, None if it is not text."""
    try:
        return binascii.a2b_base64(data, strict_mode=True).decode()
    except ValueError:
        return None


# --- arguments of a call -----------------------------------------------------------------

RAW = "_raw"
"""The key under which Anthropic's input object carries arguments that are no JSON object."""


def as_object(arguments: str) -> dict[str, Json]:
    """Arguments as the object Anthropic requires; `as_arguments` gives the text back.

    No text at all is how some servers say "no arguments". Text that is not an object is
    wrapped, and so is an object that looks like such a wrapping, so that the two differ.
    """
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {RAW: arguments}
    if not isinstance(value, dict) or _is_wrapping(value):
        return {RAW: arguments}
    return value


def as_arguments(value: Json) -> str:
    """Anthropic's input object as JSON text, or as the text that it wraps."""
    if isinstance(value, dict) and _is_wrapping(value):
        text: str = value[RAW]
        return text
    return msgspec.json.encode({} if value is None else value).decode()


def _is_wrapping(value: dict[str, Json]) -> bool:
    """Whether `as_object` would have made this."""
    text = value.get(RAW)
    return len(value) == 1 and isinstance(text, str) and as_object(text) == value


# --- what people read --------------------------------------------------------------------

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Kinds of pictures that are shown. Not SVG: that is a program."""

LARGEST_PICTURE = 8 << 20
"""Characters of base64 above which a picture is only named."""

_BASE64 = r"[A-Za-z0-9+/]+={0,2}"


@dataclass(frozen=True, slots=True)
class Thought:
    """What a model thought before it spoke; no text where the provider hides it."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, in base64."""

    media_type: str
    data: str


@dataclass(frozen=True, slots=True)
class Aside:
    """Something that is named and not shown: a file, a picture elsewhere, an unknown block."""

    title: str
    text: str = ""


Shown = Text | Thought | Picture | Aside | ToolCall


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool answered to the call `call_id`."""

    call_id: str
    text: str
    failed: bool = False
    pictures: tuple[Picture, ...] = ()


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


def shown_in(message: Mapping[str, Json]) -> Iterator[Shown]:
    """The parts of a message of any format, without the answers of tools."""
    kind = message.get("type")
    if "role" not in message and kind == "reasoning":
        blocks = mappings(message.get("summary")) + mappings(message.get("content"))
        texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
        if texts:
            yield Thought("\n\n".join(texts))
        return
    for name in ("reasoning_content", "reasoning"):
        if text_or_none(message.get(name)):
            yield Thought(message[name])
    if isinstance(message.get("parts"), list):
        yield from _of_parts(message["parts"])
        return
    calls_of_content: set[str] = set()
    if not isinstance(message.get("tool_call_id"), str):
        content = message.get("content")
        for block in content if isinstance(content, list) else [content]:
            for part in _of_block(block):
                if isinstance(part, ToolCall):
                    calls_of_content.add(part.id)
                yield part
    if text_or_none(message.get("refusal")):
        yield Text(message["refusal"], refusal=True)
    yield from (call for call in calls_in(message) if call.id not in calls_of_content)
    if "role" not in message and isinstance(kind, str) and not _is_known(kind):
        yield Aside(kind, pretty(dict(message)))


def _of_parts(parts: Json) -> Iterator[Shown]:
    """The parts of a message of Gemini's or pydantic-ai's."""
    for part in mappings(parts):
        calls = calls_in({"parts": [part]})
        kind = part.get("part_kind")
        text = part.get("text") if kind is None else part.get("content")
        if calls:
            yield from calls
        elif part.get("thought") or kind == "thinking":
            yield Thought(text if isinstance(text, str) else "")
        elif not answers_in({"parts": [part]}):
            for one in text if isinstance(text, list) else [text]:
                if isinstance(one, str):
                    yield from _of_block(one)
                elif one is not None or kind is None:
                    yield Aside("a part", pretty(one if one is not None else dict(part)))


def _answer_of_part(part: Mapping[str, Json]) -> Answer | None:
    for id in answers_in({"parts": [part]}):
        answer_ = part.get("functionResponse") or part.get("function_response")
        if isinstance(answer_, Mapping):
            return answer(id, answer_.get("response"))
        return answer(id, part.get("content"), failed=part.get("part_kind") == "retry-prompt")
    return None


def _is_known(kind: str) -> bool:
    """Whether an item of this kind is shown by its parts."""
    return kind in ("message", "function_call", "custom_tool_call") or kind.endswith("_output")


def _of_block(block: Json) -> Iterator[Shown]:
    if isinstance(block, str):
        if block:
            yield Text(block)
        return
    if not isinstance(block, Mapping):
        return
    kind = block.get("type")
    if kind in ("thinking", "redacted_thinking"):
        thought = block.get("thinking")
        yield Thought(thought if isinstance(thought, str) else "")
    elif kind == "tool_use":
        yield from calls_in({"content": [block]})
    elif kind == "tool_result" or "toolResult" in block:
        return
    elif "toolUse" in block:
        yield from calls_in({"content": [block]})
    elif isinstance(block.get("text"), str) or isinstance(block.get("refusal"), str):
        text = block.get("text") or block.get("refusal")
        if text:
            yield Text(str(text))
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
        held = linked_media("image", link)
        if held.data is not None:
            return _picture(held.media_type or "", held.data, block)
        return Aside(f"picture: {link[:200]}")
    if block.get("type") in ("file", "input_file", "document", "input_image"):
        inner = block.get("file")
        return _named(block, inner if isinstance(inner, Mapping) else block)
    return None


def _picture(media_type: Json, data: str, block: Mapping[str, Json]) -> Picture | Aside:
    sound = (
        isinstance(media_type, str) and media_type in PICTURES and bool(re.fullmatch(_BASE64, data))
    )
    if sound and len(data) <= LARGEST_PICTURE:
        return Picture(str(media_type), data)
    return Aside(f"{block.get('type')} ({str(media_type)[:100]}, {len(data)} characters)")


def _named(block: Mapping[str, Json], held: Mapping[str, Json]) -> Aside:
    names = ("filename", "title", "name", "url", "file_url", "file_id")
    found = next((d[n] for d in (block, held) for n in names if isinstance(d.get(n), str)), "")
    text = held.get("data") if held.get("type") == "text" else None
    return Aside(f"{block.get('type')}: {found[:200]}", text if isinstance(text, str) else "")


def answers_of(message: Mapping[str, Json]) -> list[Answer]:
    """The answers of tools in a message of any format."""
    if isinstance(message.get("parts"), list):
        return [one for part in mappings(message["parts"]) if (one := _answer_of_part(part))]
    content = message.get("content")
    if isinstance(message.get("tool_call_id"), str):
        failed = message.get("is_error") is True or message.get("status") == "error"
        return [answer(message["tool_call_id"], content, failed=failed)]
    if isinstance(content, list) and content:
        return [
            answer(str(b.get("tool_use_id")), b.get("content"), failed=b.get("is_error") is True)
            for b in mappings(content)
            if b.get("type") == "tool_result"
        ] + [
            answer(str(r.get("toolUseId")), r.get("content"), failed=r.get("status") == "error")
            for b in mappings(content)
            if isinstance(r := b.get("toolResult"), Mapping)
        ]
    failed = message.get("is_error") is True
    return [answer(id, message.get("output"), failed=failed) for id in sorted(answers_in(message))]


def answer(call_id: str, content: Json, *, failed: bool = False) -> Answer:
    """What a tool answered, from its text, its blocks or any other value."""
    if not isinstance(content, list):
        return Answer(call_id, content if isinstance(content, str) else pretty(content), failed)
    found = [part for block in content for part in _of_block(block)]
    texts = [text for part in found if (text := words(part))]
    pictures = tuple(part for part in found if isinstance(part, Picture))
    return Answer(call_id, "\n".join(texts), failed, pictures)


def words(part: Shown) -> str:
    """A part of an answer as text; a picture is none."""
    if isinstance(part, (Text, Thought)):
        return part.text
    return f"[{part.title}]" if isinstance(part, Aside) else ""
