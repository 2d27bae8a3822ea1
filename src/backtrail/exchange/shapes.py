"""What JSON from outside holds, where it has the shape that is expected. Pure.

Each function follows names from one object into the next, and never raises.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidData, InvalidId
from ..events import Json, check_text, check_ts, timestamp


def inner(value: Json, *names: str) -> Json:
    """The value at the end of the names; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def object_in(value: Json, *names: str) -> Mapping[str, Json]:
    """The object there; an empty one where there is none."""
    found = inner(value, *names)
    return found if isinstance(found, Mapping) else {}


def list_in(value: Json, *names: str) -> list[Json]:
    """The list there; an empty one where there is none."""
    found = inner(value, *names)
    return found if isinstance(found, list) else []


def text_in(value: Json, *names: str) -> str | None:
    """The text there, if it says something."""
    found = inner(value, *names)
    return found if isinstance(found, str) and found else None


def folder_in(value: Json, *names: str) -> str | None:
    """The path there, if it may be that of a directory."""
    found = text_in(value, *names) or ""
    return found if found.startswith("/") and "\0" not in found and len(found) < 4096 else None


def number_in(value: Json, *names: str) -> int | None:
    """The whole number there."""
    found = inner(value, *names)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def id_in(value: Json, *names: str) -> str | None:
    """The text there, if it may be the id of an event."""
    try:
        return check_text(inner(value, *names), "an id")
    except InvalidId:
        return None


def time_in(value: Json, *names: str) -> str | None:
    """The time there, as events have it."""
    found = inner(value, *names)
    try:
        return check_ts(timestamp(found)) if isinstance(found, str) else None
    except InvalidData:
        return None
