"""Python values as JSON and back: those that JSON has no word for, without pickle.

`packed` gives an equal value as JSON, marked where it is more than JSON; `unpacked` reads it.
Only types of the standard library are made again; none is looked up by a stored name.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from ..errors import InvalidData
from ..events import Json

MARK = "$backtrail"
"""The key of an object that stands for a value of another type."""

_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
    "bytes": (bytes, lambda v: base64.b64encode(v).decode(), base64.b64decode),
}
_SIMPLE: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "text": json.loads}
_SERIES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class Typed(NamedTuple):
    """A value of a type that a caller knows: the type's name, and what it is made of."""

    name: str
    value: object


def packed(value: object, other: Callable[[object], object] | None = None) -> Json:
    """A value as JSON; what is of no known type as `other` has it, else `InvalidData`.

    What `other` gives as `Typed` is made again by the caller of `unpacked`.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _text(value)
    if kind is int:
        small = isinstance(value, int) and -(2**63) <= value < 2**63
        return value if small else {MARK: "int", "value": str(value)}
    if kind is float:
        finite = isinstance(value, float) and math.isfinite(value)
        return value if finite else {MARK: "float", "value": repr(value)}
    if isinstance(value, dict) and kind is dict:
        if all(type(key) is str for key in value) and MARK not in value and _sound(value):
            return {key: packed(item, other) for key, item in value.items()}
        pairs = [[packed(key, other), packed(item, other)] for key, item in value.items()]
        return {MARK: "dict", "value": pairs}
    if isinstance(value, list) and kind is list:
        return [packed(item, other) for item in value]
    for name, series in _SERIES.items():
        if kind is series and isinstance(value, (tuple, set, frozenset)):
            return {MARK: name, "value": [packed(item, other) for item in value]}
    if isinstance(value, timedelta):
        return {MARK: "timedelta", "value": [value.days, value.seconds, value.microseconds]}
    for name, (exact, write, _) in _TEXTS.items():
        if kind is exact:
            return {MARK: name, "value": write(value)}
    if other is None:
        raise InvalidData(f"a {kind.__name__} cannot be stored without loss: give it as JSON")
    made = other(value)
    if isinstance(made, Typed):
        return {MARK: "object", "type": made.name, "value": packed(made.value, other)}
    return packed(made)


def _sound(value: dict[str, object]) -> bool:
    return all(_is_sound(key) for key in value)


def _is_sound(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: object) -> Json:
    if isinstance(value, str) and not _is_sound(value):
        return {MARK: "text", "value": json.dumps(value)}
    return value


def unpacked(value: Json, make: Callable[[str, Any], Any] | None = None) -> Any:
    """The value that `packed` was given; `make` makes what is `Typed`."""
    if isinstance(value, list):
        return [unpacked(item, make) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(MARK)
    if kind is None:
        return {key: unpacked(item, make) for key, item in value.items()}
    held = value.get("value")
    if kind == "object" and make is not None:
        return make(str(value.get("type")), unpacked(held, make))
    if kind in _SERIES and isinstance(held, list):
        return _SERIES[kind](unpacked(item, make) for item in held)
    if kind in _TEXTS and isinstance(held, str):
        return _TEXTS[kind][2](held)
    if kind == "dict" and isinstance(held, list):
        return {unpacked(key, make): unpacked(item, make) for key, item in held}
    if kind == "timedelta" and isinstance(held, list):
        return timedelta(*held)
    if kind in _SIMPLE and isinstance(held, str):
        return _SIMPLE[kind](held)
    raise InvalidData(f"a stored value is of the unknown type {kind!r}")
