"""Values of a graph's state as JSON, and back: equal, and readable where they can be.

What JSON gives back as it was is itself. A message is its fields and the name of its class, if
that makes an equal message. Everything else is what the saver's serializer makes of it, in
base64; so is all, if the serializer is not LangGraph's plain one, since it may encrypt.
"""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import Damaged, InvalidData
from ...events import MAX_DEPTH, Json, encode_data
from .. import needs

with needs("langgraph"):
    from langchain_core import messages as lc
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

_CLASSES: dict[str, type[lc.BaseMessage]] = {
    cls.__name__: cls
    for cls in (
        *(lc.HumanMessage, lc.AIMessage, lc.SystemMessage, lc.ToolMessage, lc.FunctionMessage),
        *(lc.ChatMessage, lc.RemoveMessage, lc.HumanMessageChunk, lc.AIMessageChunk),
        *(lc.SystemMessageChunk, lc.ToolMessageChunk, lc.ChatMessageChunk),
    )
}
_DEEPEST = MAX_DEPTH // 4
_PLAIN = frozenset({bool, type(None)})


class _Odd(Exception):
    """A value that JSON would not give back as it is."""


def plain(value: Any, depth: int = 0) -> Any:
    """A copy of a value that JSON gives back equal and of the same type; else `_Odd`."""
    kind = type(value)
    if kind is str:
        if value.isascii() or _is_text(value):
            return value
    elif kind in _PLAIN:
        return value
    elif kind is int:
        if -(1 << 63) <= value < 1 << 63:
            return value
    elif kind is float:
        if math.isfinite(value):
            return value
    elif depth < _DEEPEST:
        if kind is list:
            return [plain(item, depth + 1) for item in value]
        if kind is dict:
            for key in value:
                if type(key) is not str or not (key.isascii() or _is_text(key)):
                    raise _Odd
            return {key: plain(item, depth + 1) for key, item in value.items()}
    raise _Odd


def is_plain(value: Any) -> bool:
    """Whether JSON gives a value back equal and of the same type."""
    try:
        plain(value)
    except _Odd:
        return False
    return True


def fresh(value: Any) -> Any:
    """A copy of JSON that shares nothing with it which can be changed."""
    kind = type(value)
    if kind is dict:
        return {key: fresh(item) for key, item in value.items()}
    if kind is list:
        return [fresh(item) for item in value]
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Codec:
    """Encodes with one serializer."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self.is_readable = type(serde) is JsonPlusSerializer
        """Whether values may be stored in the clear."""

    def encode(self, value: object, depth: int = 0) -> Json:
        """A value as JSON that says how it is encoded."""
        if self.is_readable:
            try:
                return {"v": plain(value)}
            except _Odd:
                pass
            if type(value) is list and depth < _DEEPEST:
                return {"l": [self.encode(item, depth + 1) for item in value]}
            if type(value) is dict and depth < _DEEPEST and all(map(_is_key, value)):
                return {"d": {key: self.encode(item, depth + 1) for key, item in value.items()}}
            if isinstance(value, lc.BaseMessage):
                fields = message_fields(value)
                if fields is not None:
                    return {"m": fields}
        return self.typed(value)

    def typed(self, value: object) -> Json:
        """A value as the serializer has it."""
        kind, data = self._serde.dumps_typed(value)
        return {"t": kind, "b": base64.b64encode(data).decode("ascii")}

    def decode(self, encoded: Json) -> Any:
        """The value; nothing of it is shared with `encoded`."""
        if "v" in encoded:
            return fresh(encoded["v"])
        if "l" in encoded:
            return [self.decode(item) for item in encoded["l"]]
        if "d" in encoded:
            return {key: self.decode(item) for key, item in encoded["d"].items()}
        if "m" in encoded:
            return message_of(encoded["m"])
        if "t" not in encoded:
            raise Damaged("a value of the graph's state is gone or damaged")
        return self._serde.loads_typed((encoded["t"], base64.b64decode(encoded["b"])))

    # --- items of lists ------------------------------------------------------------------

    def message_event(self, message: lc.BaseMessage) -> dict[str, Json] | None:
        """The data of an event that is a message; None if it cannot be read by people."""
        if not self.is_readable:
            return None
        fields = message_fields(message)
        if fields is not None:
            return {"message": fields, "format": "langchain"}
        shown = {"class": type(message).__name__, "type": message.type, "content": message.text}
        data = {"message": shown, "format": "langchain", "exact": self.typed(message)}
        try:
            encode_data(data)
        except InvalidData:
            return None
        return data

    def listed(self, refs: Sequence[tuple[int, int, Json]], found: Mapping[int, Json]) -> list[Any]:
        """The items of a list, by the data of the events that hold them."""
        items: list[Any] = []
        for seq, place, patch in refs:
            data = found[seq]
            if place >= 0:
                if "items" not in data:
                    raise Damaged(f"event {seq}, an item of the graph's state, is gone")
                items.append(self.decode(data["items"][place]))
                continue
            item = self._message(seq, data)
            for key, value in (patch or {}).items():
                item.__dict__[key] = value
            items.append(item)
        return items

    def _message(self, seq: int, data: Json) -> lc.BaseMessage:
        if "exact" in data:
            message: lc.BaseMessage = self.decode(data["exact"])
            return message
        if "message" not in data:
            raise Damaged(f"event {seq}, a message of the graph's state, is gone")
        return message_of(data["message"])


def _is_key(key: object) -> bool:
    return type(key) is str and _is_text(key)


def message_fields(message: lc.BaseMessage) -> dict[str, Json] | None:
    """The fields of a message that are not as by default; None if that is no equal message."""
    cls = type(message)
    name = cls.__name__
    if _CLASSES.get(name) is not cls:
        return None
    blank = _blank(cls)
    found: dict[str, Json] = {"class": name, "type": message.type}
    for key, value in (*message.__dict__.items(), *(message.__pydantic_extra__ or {}).items()):
        if key in found and key != "type":
            return None
        if key not in blank or type(blank[key]) is not type(value) or blank[key] != value:
            found[key] = value
    try:
        found = plain(found)
        return found if message_of(found) == message else None
    except (_Odd, TypeError, ValueError):
        return None


_templates: dict[type, lc.BaseMessage] = {}


def _template(cls: type[lc.BaseMessage]) -> lc.BaseMessage:
    """A message of a class with nothing but what is so by default."""
    found = _templates.get(cls)
    if found is None:
        found = _templates[cls] = cls.model_construct()
    return found


def _blank(cls: type[lc.BaseMessage]) -> dict[str, Any]:
    return _template(cls).__dict__


def message_of(fields: Json) -> lc.BaseMessage:
    """A message of its fields, without the checks that may change them.

    As `model_construct` makes it, which looks at the signature of each default every time.
    """
    cls = _CLASSES[fields["class"]]
    blank = _template(cls)
    values = {key: fresh(value) for key, value in blank.__dict__.items()}
    extra = None if blank.__pydantic_extra__ is None else dict[str, Any]()
    known = cls.model_fields
    given = {key: fresh(value) for key, value in fields.items() if key != "class"}
    for key, value in given.items():
        if key in known or extra is None:
            values[key] = value
        else:
            extra[key] = value
    made = cls.__new__(cls)
    for name, held in (
        ("__dict__", values),
        ("__pydantic_fields_set__", set(given)),
        ("__pydantic_extra__", extra),
        ("__pydantic_private__", copy.deepcopy(blank.__pydantic_private__)),
    ):
        object.__setattr__(made, name, held)
    return made


def snapshot(message: lc.BaseMessage) -> dict[str, Any]:
    """What a message holds now, to be compared with what it holds later."""
    return {
        key: value if type(value) is str else copy.deepcopy(value)
        for key, value in message.__dict__.items()
    }


def spoken_in(start: object) -> list[lc.BaseMessage]:
    """The messages of people in the input of a graph, in the form that it was given in."""
    found: list[lc.BaseMessage] = []
    values: Sequence[object] = list(start.values()) if isinstance(start, dict) else [start]
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, lc.HumanMessage):
                found.append(one)
            elif isinstance(one, dict) and one.get("role") in ("user", "human"):
                content = one.get("content")
                if isinstance(content, str | list):
                    found.append(lc.HumanMessage(content=copy.deepcopy(content), id=one.get("id")))
            elif (
                isinstance(one, tuple)
                and len(one) == 2
                and one[0] in ("user", "human")
                and isinstance(one[1], str)
            ):
                found.append(lc.HumanMessage(content=one[1]))
    return found


KINDS = {
    "human": "user_message",
    "ai": "assistant_message",
    "tool": "tool_result",
    "function": "tool_result",
    "system": "system_message",
}


def kind_of(message: lc.BaseMessage) -> str | None:
    """The kind of the event that a message is; None if it is none of the conversation."""
    return KINDS.get(message.type.removesuffix("MessageChunk").lower())
