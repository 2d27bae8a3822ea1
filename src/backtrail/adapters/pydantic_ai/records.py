"""Messages and records of pydantic-ai as events of a log, and back."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessage, ModelResponse

from ...errors import Damaged
from ...events import Event, Json, NewEvent, timestamp
from .._bridge import exact
from .._values import packed, unpacked

RECORD = "pydantic_ai_record"
"""The kind of the event that ends a save, with what the messages cannot carry."""

ENTRY = "entry"
"""In the data of a message: its entry's parent, in a list of one. A draft has none."""

ALIASES = "aliases"
"""In a record: which drafts are entries by now, as [number, entry, parent]."""

ALIASED = "aliased"
"""In a record: whether it or an earlier one has aliases."""

EXACT = "exact"
"""In the data of a message: what JSON cannot say exactly."""

_message: TypeAdapter[ModelMessage] = TypeAdapter(ModelMessage)
_record: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


def message_event(message: ModelMessage, id: str, parent: list[str | None] | None) -> NewEvent:
    """The event that holds a message; with a `parent` it is an entry, else a draft."""
    row = _message.dump_python(message, mode="json")
    data: dict[str, Json] = {"message": exact(row)[0], "format": "pydantic-ai"}
    if parent is not None:
        data[ENTRY] = parent
    if not _is_exact(row, message):
        data[EXACT] = packed(_message.dump_python(message), str)
    if isinstance(message, ModelResponse):
        data["usage"] = {
            "input_tokens": message.usage.input_tokens,
            "output_tokens": message.usage.output_tokens,
        }
    at = message.timestamp
    return NewEvent(_kind(row), data, id=id, ts=timestamp(at) if at else None)


def _is_exact(row: Json, message: ModelMessage) -> bool:
    """Whether JSON gives the message back."""
    if exact(row)[1] is not None:
        return False
    try:
        return _message.validate_python(row) == message
    except ValueError:
        return False


def _kind(row: Json) -> str:
    if row.get("kind") == "response":
        return "assistant_message"
    kinds = {part.get("part_kind") for part in row.get("parts", ())}
    if "user-prompt" in kinds:
        return "user_message"
    return "system_message" if kinds == {"system-prompt"} else "tool_result"


def message_of(event: Event) -> ModelMessage:
    """The message that an event holds."""
    try:
        if EXACT in event.data:
            return _message.validate_python(unpacked(event.data[EXACT]))
        return _message.validate_python(event.data.get("message"))
    except ValueError as error:
        raise Damaged(f"event {event.seq} holds no message of pydantic-ai: {error}") from error


def entry_of(event: Event, alias: tuple[str, str | None] | None) -> ConversationEntry:
    """The entry that an event is."""
    id, parent = alias or (event.id, event.data[ENTRY][0])
    return ConversationEntry(id=id, parent_id=parent, message=message_of(event))


def record_event(record: ConversationRecord, aliases: list[Json], *, aliased: bool) -> NewEvent:
    """The event that ends a save."""
    data: dict[str, Json] = {"record": packed(_record.dump_python(record, mode="json"))}
    if aliases:
        data[ALIASES] = aliases
    if aliased or aliases:
        data[ALIASED] = True
    return NewEvent(RECORD, data, ts=timestamp(record.updated_at))


def record_of(event: Event) -> ConversationRecord:
    """The record that an event holds."""
    try:
        found: Any = _record.validate_python(unpacked(event.data["record"]))
    except (KeyError, ValueError) as error:
        raise Damaged(f"event {event.seq} holds no record of pydantic-ai: {error}") from error
    made: ConversationRecord = found
    return made
