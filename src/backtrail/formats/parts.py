"""The neutral shape between formats: a `Turn` is one voice saying some parts.

Each format module turns its own messages into turns (`to_turns`) and turns into its own
messages (`from_turns`), so three formats need three readers and three writers.
Reasoning has no part: its signature or encrypted content is accepted only by the provider
that made it, so no reader passes it on.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Mapping
from typing import Literal

import msgspec

from .._startup.frozen import dataclass
from ..events import Json

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""Who speaks; `tool` holds nothing but results."""


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


def mappings(value: Json) -> list[Mapping[str, Json]]:
    """The objects in a JSON list; nothing if it is no list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


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
    """A file as OpenAI holds it: a data URL, or bare base64 whose type only the name tells."""
    if data.startswith("data:"):
        return linked_media("file", data, name)
    media_type = mimetypes.guess_type(name or "")[0]
    return Media("file", data=data, media_type=media_type, name=name)


def decoded_text(data: str) -> str | None:
    """Base64 data as text, None if it is not text."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


# --- arguments of a call -----------------------------------------------------------------

RAW = "_raw"
"""The key under which Anthropic's input object carries arguments that are no JSON object."""


def as_object(arguments: str) -> dict[str, Json]:
    """Arguments as the object Anthropic requires; `as_arguments` gives the text back.

    No text at all is how some servers say "no arguments". Text that is not an object is
    wrapped, and so is an object that looks like such a wrapping, to tell them apart.
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
