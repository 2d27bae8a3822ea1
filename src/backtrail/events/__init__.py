"""The words of the log: events, session records, messages, ids, canonical JSON. No I/O.

An `Event` is immutable and ordered by `seq` alone; time is only a label.
`data` is a JSON object that decodes to exactly what was encoded. What would not
is refused by `encode_data` before anything is written.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from .._startup.frozen import dataclass, field
from ..errors import InvalidData, InvalidId
from .values import STORED_FIELDS as STORED_FIELDS
from .values import UPDATABLE_FIELDS as UPDATABLE_FIELDS
from .values import AsDict as AsDict
from .values import Checkpoint as Checkpoint
from .values import Json as Json
from .values import Message as Message
from .values import Problem as Problem
from .values import SessionInfo as SessionInfo

MAX_DATA = 64 * 1024 * 1024
"""Bytes of encoded `data` above which an event is refused."""

MAX_DEPTH = 200
"""Levels of nesting above which `data` is refused."""

MAX_SEQ = (1 << 31) - 1
"""The highest number an event may have; a stored one above it is damage."""

MAIN_LOG = "messages"
"""The name of a session's main log."""

MESSAGE_KINDS = ("system_message", "user_message", "assistant_message", "tool_result")
"""Kinds that hold one message of the conversation."""

KINDS = (
    "session_start",
    "session_resume",
    "session_end",
    *MESSAGE_KINDS,
    "turn_end",
    "action",
    "files_changed",
    "checkpoint",
    "checkpoint_deleted",
    "rewound",
    "undone",
    "redone",
    "compaction",
    "subagent_usage",
    "lost",
)
"""Kinds the library writes. Any other kind is the caller's and passes through unchanged."""

Format = Literal[
    "openai", "responses", "anthropic", "langchain", "gemini", "converse", "pydantic-ai"
]  # fmt: skip
"""How a provider or a framework spells a message."""


_NOTHING: dict[str, Json] = {}


@dataclass(frozen=True, slots=True, init=False)
class NewEvent(AsDict):
    """An event to append: `seq` and, unless given, `id` and `ts` are assigned by the store.

    `follows` says which `seq` the event continues from (0: from nothing); without it,
    the event before it.
    """

    kind: str
    data: Mapping[str, Json] = field(default_factory=dict)
    id: str | None = None
    follows: int | None = None
    ts: str | None = None

    def __init__(
        self,
        kind: str,
        data: Mapping[str, Json] = _NOTHING,
        id: str | None = None,
        follows: int | None = None,
        ts: str | None = None,
    ) -> None:
        _new_kind(self, kind)
        _new_data(self, {} if data is _NOTHING else data)
        _new_id(self, id)
        _new_follows(self, follows)
        _new_ts(self, ts)


@dataclass(frozen=True, slots=True)
class Event:
    """One immutable record of a log."""

    seq: int
    id: str
    ts: str
    kind: str
    data: dict[str, Json]
    follows: int | None = None

    @property
    def previous(self) -> int:
        """The `seq` this event continues from; 0 at the start."""
        return self.seq - 1 if self.follows is None else self.follows

    def to_dict(self) -> dict[str, Json]:
        """The event as JSON, `follows` only where it is not the event before."""
        row: dict[str, Json] = {
            "seq": self.seq,
            "id": self.id,
            "ts": self.ts,
            "kind": self.kind,
            "data": self.data,
        }
        if self.follows is not None:
            row["follows"] = self.follows
        return row


# Reading makes events by the hundred thousand, and every append makes two. The constructor
# of a frozen dataclass goes through __setattr__; setting the slots is twice as fast.
_new_kind, _new_data, _new_id, _new_follows, _new_ts = (
    NewEvent.__dict__[name].__set__ for name in ("kind", "data", "id", "follows", "ts")
)


class LooseEvent:
    """`Event` while it is built: not frozen, of the same layout, so the class can be exchanged.

    Again twice as fast.
    """

    __slots__ = tuple(Event.__slots__)


@dataclass(frozen=True, slots=True)
class Hit:
    """One event found by `search`, with the words around the match."""

    session_id: str
    event: Event
    snippet: str

    def to_dict(self) -> dict[str, Json]:
        """The hit as JSON."""
        return {
            "session_id": self.session_id,
            "event": self.event.to_dict(),
            "snippet": self.snippet,
        }


def make_event(
    seq: int, id: str, ts: str, kind: str, data: dict[str, Json], follows: int | None
) -> Event:
    """`Event(…)`, faster."""
    event: Any = LooseEvent()
    event.seq = seq
    event.id = id
    event.ts = ts
    event.kind = kind
    event.data = data
    event.follows = follows
    event.__class__ = Event
    # `cast` would be one more call.
    made: Event = event
    return made


# --- ids ---------------------------------------------------------------------------------

_SESSION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


def check_session_id(value: object) -> str:
    """Return `value` if it may name a session, else raise `InvalidId`."""
    if isinstance(value, str) and _SESSION_ID.fullmatch(value):
        return value
    raise InvalidId(
        f"`{_shown(value)}` is not a session id: use 1 to 128 letters, digits, '.', '_' or '-', "
        "not beginning with '.' or '-'; a foreign name goes into `key`"
    )


def check_log(value: object) -> str:
    """Return `value` if it may name a log: parts like session ids, joined by '/'."""
    if value == MAIN_LOG:
        return MAIN_LOG
    if isinstance(value, str) and len(value) <= 512:
        parts = value.split("/")
        if all(_SESSION_ID.fullmatch(part) for part in parts):
            return value
    raise InvalidId(f"`{_shown(value)}` is not the name of a log, such as `subagents/a1`")


def check_text(value: object, what: str, limit: int = 256) -> str:
    """Return `value` if it is 1 to `limit` printable characters."""
    if isinstance(value, str) and 0 < len(value) <= limit and value.isprintable():
        return value
    raise InvalidId(f"`{_shown(value)}` is not {what}: use 1 to {limit} printable characters")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("unicode_escape", "backslashreplace").decode("ascii")
    return text if len(text) <= 60 else text[:57] + "..."


# One call to the kernel serves many ids. A forked child must not repeat its parent's.
_noise: list[str] = []
os.register_at_fork(after_in_child=_noise.clear)


def new_id() -> str:
    """A UUIDv7: unique without asking, and roughly in order of time."""
    return mint()[0]


def mint() -> tuple[str, str]:
    """A new id and the present time, which every append needs: one look at the clock."""
    global _instant
    millis = time.time_ns() // 1_000_000
    instant = _instant
    if instant[0] != millis:
        second, rest = divmod(millis, 1000)
        text = instant[4]
        if instant[3] != second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        stamp = f"{millis:012x}"
        ts = f"{text}.{rest:03d}Z"
        instant = _instant = (millis, f"{stamp[:8]}-{stamp[8:]}-7", ts, second, text)
    try:
        return instant[1] + _noise.pop(), instant[2]
    except IndexError:
        more = os.urandom(9 * 128).hex()
        _noise.extend(
            f"{more[at : at + 3]}-8{more[at + 3 : at + 6]}-{more[at + 6 : at + 18]}"
            for at in range(0, len(more), 18)
        )
        return instant[1] + _noise.pop(), instant[2]


_instant = (0, "", "", -1, "")


def numbered(id: str, seq: int) -> str:
    """A minted id that ends in the event's number, so that a store needs no index to find it."""
    return f"{id[:28]}{seq:08x}"


def number_in(id: str) -> int | None:
    """The `seq` that an id ends in, if it may be a numbered one."""
    tail = id[28:]
    if len(tail) != 8 or not _HEX.issuperset(tail):
        return None
    return int(tail, 16)


_HEX = frozenset("0123456789abcdef")


# --- time --------------------------------------------------------------------------------

_TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


def now() -> str:
    """The present as ISO 8601 UTC with milliseconds."""
    return mint()[1]


def timestamp(when: datetime | str | float) -> str:
    """Any moment in the form of `Event.ts`: a datetime, ISO text, or seconds since 1970."""
    if isinstance(when, str):
        try:
            moment = datetime.fromisoformat(when)
        except ValueError as error:
            raise InvalidData(f"`{_shown(when)}` is not an ISO 8601 time") from error
        if _TS.fullmatch(when):
            return when
        when = moment
    try:
        if isinstance(when, datetime):
            moment = when if when.tzinfo else when.replace(tzinfo=UTC)
            moment = moment.astimezone(UTC)
        else:
            moment = datetime.fromtimestamp(when, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidData(f"`{when}` is not a time between the years 1 and 9999") from error
    return f"{moment.isoformat(timespec='milliseconds')[:-6]}Z"


def is_ts(value: str) -> bool:
    """Whether a text is written like a time by `now`."""
    return _TS.fullmatch(value) is not None


def check_ts(value: object) -> str:
    """Return `value` if it is written like a time by `now`; `timestamp` makes one."""
    if isinstance(value, str) and _TS.fullmatch(value):
        return value
    raise InvalidData(
        f"`{_shown(value)}` is not a time such as 2026-04-26T12:34:56.789Z; "
        "`backtrail.events.timestamp` makes one"
    )


# --- canonical JSON ----------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_PLAIN = frozenset({str, int, bool, type(None)})


def encode_data(data: Mapping[str, Json]) -> bytes:
    """`data` as compact UTF-8 JSON; `InvalidData` if it would not decode to an equal value."""
    if type(data) is not dict:
        if not isinstance(data, Mapping):
            raise InvalidData(f"event data is a JSON object, not {type(data).__name__}")
        data = dict(data)
    try:
        _check_object(data, 1)
        encoded = _encode(data)
    except InvalidData:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidData(f"event data cannot be written as JSON: {error}") from error
    if len(encoded) > MAX_DATA:
        raise InvalidData(
            f"event data is {len(encoded)} bytes of JSON, over the limit of {MAX_DATA}: "
            "keep large content in a file"
        )
    return encoded


def decode_data(encoded: bytes | str) -> dict[str, Json]:
    """What `encode_data` encoded."""
    value = _decode(encoded)
    if type(value) is not dict:
        raise InvalidData("event data is not a JSON object")
    return value


# Refused is what JSON would silently change. Every append pays for this: a loop for each of
# the two containers, and the usual kinds known by their type alone.


def _check_object(value: dict[str, Json], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _too_deep()
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidData(f"a key of event data is {key!r}: JSON keys are strings")
        kind = type(item)
        if kind is str:
            continue
        if kind is dict:
            _check_object(item, depth + 1)
        elif kind is list:
            _check_array(item, depth + 1)
        elif kind not in _PLAIN:
            _check_odd(item, depth + 1)


def _check_array(value: list[Json], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _too_deep()
    for item in value:
        kind = type(item)
        if kind is str:
            continue
        if kind is dict:
            _check_object(item, depth + 1)
        elif kind is list:
            _check_array(item, depth + 1)
        elif kind not in _PLAIN:
            _check_odd(item, depth + 1)


def _check_odd(item: Json, depth: int) -> None:
    """Floats, subclasses, and what does not belong here."""
    if isinstance(item, float):
        if not math.isfinite(item):
            raise InvalidData(f"event data holds {item!r}, which JSON cannot say")
    elif isinstance(item, dict):
        _check_object(item, depth)
    elif isinstance(item, list):
        _check_array(item, depth)
    elif not isinstance(item, (str, int)):
        kind = type(item).__name__
        raise InvalidData(f"event data holds a {kind}, which JSON gives back as something else")


def _too_deep() -> InvalidData:
    return InvalidData(f"event data is nested deeper than {MAX_DEPTH} levels")
