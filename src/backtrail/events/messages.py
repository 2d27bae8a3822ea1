"""Messages as providers spell them: the role, the format, the words. Pure.

A message is stored as it was given. This module says what kind of event it makes, and
finds words and token counts in it, whatever the provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import get_args

import msgspec

from .._startup.frozen import NamedTuple
from ..errors import InvalidData
from . import KINDS, MESSAGE_KINDS, Event, Format, Json, Message, NewEvent

_KIND_OF_ROLE = {
    "system": "system_message",
    "developer": "system_message",
    "user": "user_message",
    "human": "user_message",
    "assistant": "assistant_message",
    "ai": "assistant_message",
    "model": "assistant_message",
    "tool": "tool_result",
    "function": "tool_result",
}


def as_message(message: object) -> dict[str, Json]:
    """A message as a dictionary: a mapping, a `Message`, or anything with `model_dump()`."""
    if isinstance(message, Mapping):
        return dict(message)
    if isinstance(message, Message):
        return message.to_dict()
    dump = getattr(message, "model_dump", None)
    if callable(dump):
        dumped = dump(mode="json", exclude_none=True)
        if isinstance(dumped, Mapping):
            return dict(dumped)
    raise InvalidData(
        f"a message is a mapping, a Message or has model_dump(), not {type(message).__name__}"
    )


def kind_of(message: Mapping[str, Json]) -> str:
    """The event kind of a message, from its role or, for Responses items, its type."""
    role = message.get("role")
    kind = message.get("type")
    if role == "user" and _is_tool_result(message.get("content")):
        return "tool_result"
    if isinstance(role, str) and role in _KIND_OF_ROLE:
        return _KIND_OF_ROLE[role]
    if isinstance(kind, str):
        if kind.endswith("_output"):
            return "tool_result"
        if kind == "reasoning" or kind.endswith("_call"):
            return "assistant_message"
        if kind in _KIND_OF_ROLE:
            return _KIND_OF_ROLE[kind]
    raise InvalidData(
        f"cannot tell who speaks in a message with role {role!r}: "
        "use system, user, assistant or tool, or give `kind`"
    )


def _is_tool_result(content: Json) -> bool:
    """Anthropic answers tool calls in a message of the user."""
    return isinstance(content, list) and any(
        isinstance(block, Mapping) and block.get("type") == "tool_result" for block in content
    )


_ANTHROPIC = frozenset(
    {"thinking", "redacted_thinking", "image", "document", "search_result", "container_upload"}
)


_CONVERSE = frozenset({"text", "toolUse", "toolResult"})
_LANGCHAIN = frozenset({"human", "ai", "system", "tool", "function", "chat"})


def format_of(message: Mapping[str, Json]) -> Format:
    """Which provider's spelling a message is in; plain text messages count as OpenAI's."""
    if isinstance(message.get("parts"), list):
        return "pydantic-ai" if message.get("kind") in ("request", "response") else "gemini"
    if "role" not in message and isinstance(message.get("type"), str):
        return "langchain" if message["type"] in _LANGCHAIN else "responses"
    content = message.get("content")
    blocks = content if isinstance(content, list) else ()
    kinds = {str(block.get("type")) for block in blocks if isinstance(block, Mapping)}
    if kinds == {"None"} and any(_CONVERSE & block.keys() for block in mappings(content)):
        return "converse"
    if kinds & {"input_text", "output_text", "refusal", "input_image", "input_file"}:
        return "responses"
    if kinds & _ANTHROPIC or any(kind.endswith(("tool_use", "tool_result")) for kind in kinds):
        return "anthropic"
    return "anthropic" if message.get("type") == "message" else "openai"


def text_of(value: Json) -> str:
    """The words in a message or any JSON value, for search; what is said is `speech_of`.

    Opaque parts (encrypted or signed reasoning, image bytes, ids) are left out, and of a message
    what is noted beside its words, such as the model and why it stopped.
    """
    words: list[str] = []
    if isinstance(value, Mapping) and "role" in value:
        value = {key: item for key, item in value.items() if key not in _BESIDE}
    _collect(value, words)
    return "\n".join(words)


_OPAQUE = frozenset(
    {"role", "type", "id", "tool_call_id", "tool_use_id", "call_id", "signature", "format", "ts"}
    | {"encrypted_content", "media_type", "cache_control", "image_url", "source", "status", "usage"}
)


_BESIDE = frozenset(
    {"model", "stop_reason", "stop_sequence", "stop_details", "finish_reason", "service_tier"}
    | {"object", "system_fingerprint", "container", "context_management", "diagnostics", "phase"}
)


def _collect(value: Json, words: list[str]) -> None:
    if isinstance(value, str):
        if value:
            words.append(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _OPAQUE:
                _collect(item, words)
    elif isinstance(value, Sequence):
        for item in value:
            _collect(item, words)


# --- what is said ------------------------------------------------------------------------

_SPOKEN = {"text": "text", "output_text": "text", "input_text": "text", "refusal": "refusal"}
"""Blocks that are words to the other side, and the field that holds them."""

_PROMPTS = frozenset({"user-prompt", "text"})
"""Parts of pydantic-ai that are said."""

_PIECES = frozenset({"assistant", "ai", "model"})


def speech_of(message: Json) -> str:
    """What the speaker of a message says to the other side: its text parts, and nothing else.

    No reasoning, no calls, no attachments. The blocks of a model's message are pieces of one
    text, as when it is streamed: a citation, a thought or a call may stand anywhere in it.
    Those of a user's are texts of their own, each on a new line.
    """
    if not isinstance(message, Mapping):
        return "\n".join(_spoken_in(message))
    words = _spoken_in(message.get("content"))
    for part in mappings(message.get("parts")):
        said = part.get("content" if part.get("part_kind") in _PROMPTS else "text")
        if isinstance(said, str) and not part.get("thought"):
            words.append(said)
    if isinstance(message.get("refusal"), str):
        words.append(message["refusal"])
    return ("" if message.get("role") in _PIECES else "\n").join(words)


def _spoken_in(content: Json) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    words: list[str] = []
    for block in content if isinstance(content, list) else ():
        kind = block.get("type") if isinstance(block, Mapping) else None
        name = _SPOKEN.get(kind) if isinstance(kind, str) else None
        said = block.get(name) if name else block
        if kind is None and isinstance(block, Mapping):
            # Converse names a block by its field alone.
            said = block.get("text")
        words += [said] if isinstance(said, str) and said else []
    return words


def mappings(value: Json) -> list[Mapping[str, Json]]:
    """The objects in a JSON list; nothing if it is no list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def answer_in(said: Iterable[tuple[str, Json]]) -> str:
    """The last thing that a model said in words, of message events as (kind, message).

    One answer may be several messages: items of the Responses API, or parts of a message
    that bear its id.
    """
    text = ""
    last: Mapping[str, Json] = {}
    for kind, message in said:
        if kind != "assistant_message" or not isinstance(message, Mapping):
            last = last if kind == "assistant_message" else {}
        elif words := speech_of(message):
            text = text + words if _is_same_answer(last, message) else words
            last = message
    return text


def _is_same_answer(last: Mapping[str, Json], message: Mapping[str, Json]) -> bool:
    if last and format_of(last) == format_of(message) == "responses":
        return last.get("type") == message.get("type") == "message"
    return isinstance(message.get("id"), str) and last.get("id") == message["id"]


_USAGE_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


def normal_usage(usage: Mapping[str, Json]) -> dict[str, int]:
    """Token counts under one set of names; cache and reasoning details are lifted up."""
    counts: dict[str, int] = {}
    for name, value in usage.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            name = _USAGE_NAMES.get(name, name)
            counts[name] = counts.get(name, 0) + value
        elif isinstance(value, Mapping):
            for inner, lifted in (("cached_tokens", "cache_read_tokens"),
                                  ("reasoning_tokens", "reasoning_tokens")):  # fmt: skip
                count = value.get(inner)
                if isinstance(count, int) and not isinstance(count, bool):
                    counts[lifted] = counts.get(lifted, 0) + count
    return counts


# --- messages into events ----------------------------------------------------------------

_FORMATS: tuple[str, ...] = get_args(Format)
_OTHER_KINDS = frozenset(KINDS).difference(MESSAGE_KINDS)


def message_event(
    message: object,
    id: str | None = None,
    kind: str | None = None,
    format: Format | None = None,
    usage: Mapping[str, Json] | None = None,
    cost_usd: float | None = None,
    ts: str | None = None,
) -> NewEvent:
    """The event that holds a message."""
    given = as_message(message)
    if format is not None and format not in _FORMATS:
        raise InvalidData(f"a format is one of {', '.join(_FORMATS)}, not {format!r}")
    if kind in _OTHER_KINDS:
        raise InvalidData(f"`{kind}` is a kind the library writes, and not for a message")
    data: dict[str, Json] = {"message": given, "format": format or format_of(given)}
    if usage is not None:
        if not isinstance(usage, Mapping):
            raise InvalidData(f"usage is a mapping from names to numbers, not {usage!r}")
        data["usage"] = dict(usage)
    if cost_usd is not None:
        if isinstance(cost_usd, bool) or not isinstance(cost_usd, int | float):
            raise InvalidData(f"cost_usd is a number, not {cost_usd!r}")
        data["cost_usd"] = cost_usd
    return NewEvent(kind or kind_of(given), data, id=id, ts=ts)


def prompt_event(prompt: str) -> NewEvent:
    """The event that pins a system prompt."""
    message = {"role": "system", "content": prompt}
    return NewEvent("system_message", {"message": message, "format": "openai", "pinned": True})


# --- events as views see them ------------------------------------------------------------


class Said(msgspec.Struct, frozen=True, gc=False):
    """What views look at in the data of a message event."""

    message: Json = None
    format: Json = None
    pinned: Json = None
    purged: Json = None


class Page(NamedTuple):
    """Some events of a log in order, as columns, without what no view needs."""

    seqs: Sequence[int]
    kinds: Sequence[str]
    follows: Sequence[int | None]
    said: Sequence[Said]

    def only(self, places: Sequence[int]) -> Page:
        """The events at these places."""
        seqs, kinds, follows, said = self
        return Page(
            [seqs[at] for at in places],
            [kinds[at] for at in places],
            [follows[at] for at in places],
            [said[at] for at in places],
        )


def said_in(data: Mapping[str, Json]) -> Said:
    """What is said in an event's data."""
    get = data.get
    return Said(get("message"), get("format"), get("pinned"), get("purged"))


def page_of(events: Sequence[Event]) -> Page:
    """Events, given in order, as a page."""
    return Page(
        [event.seq for event in events],
        [event.kind for event in events],
        [event.follows for event in events],
        [said_in(event.data) for event in events],
    )


def paged(newest_first: Iterator[Event], size: int = 32) -> Iterator[Page]:
    """Pages, newest first, of a history given newest first: small ones, then larger."""
    while events := list(islice(newest_first, size)):
        events.reverse()
        yield page_of(events)
        size = min(size * 2, 512)
