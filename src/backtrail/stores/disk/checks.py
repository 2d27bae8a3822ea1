"""The gate that every row of `events` passes on its way out of the database.

A row holds the check sum of its key and all its columns. `check_row` compares it, and
refuses what no writer of ours stores: numbers out of bounds, an event that follows itself or
a later one, a column of another type. What does not pass is `Damaged`, whatever is wrong with
it, so that a reader reports that event and goes on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from operator import gt, lt
from types import UnionType
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from ...errors import Damaged
from ...events import MAX_SEQ, Event, LooseEvent, make_event

_T = TypeVar("_T")

SEQ_BITS = (1 << 32) - 1
"""The part of a key that is the event's number."""

COLUMNS = "key, id, ts, kind, follows, CAST(data AS BLOB), crc"
"""The columns of an event. As bytes the body needs no detour over text, nor be valid."""

UNDECODABLE = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    RecursionError,
)
"""What decoding a damaged value may raise."""

decode_body: Callable[[bytes], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode
"""The data of an event, from its column; without the checks of what comes from outside."""


def row_sum(key: int, id: str, ts: str, kind: str, follows: int | None, body: bytes) -> int:
    """The check sum of a row: CRC-32 of id, time, kind, key and `follows`, a line each, and data.

    `TypeError` if the texts are none.
    """
    place = f"{key}\n\n" if follows is None else f"{key}\n{follows}\n"
    return crc32("\n".join((id, ts, kind, place)).encode() + body)


def check_row(row: Any, unsealed: int) -> None:
    """Raise `Damaged` unless a row of `COLUMNS` is what was written.

    Up to the number `unsealed`, rows without a check sum are of an earlier version.
    """
    key, id, ts, kind, follows, body, crc = row
    seq = key & SEQ_BITS
    try:
        if row_sum(key, id, ts, kind, follows, body) != crc:
            if crc is not None:
                raise Damaged(f"event {seq} is not what was written: its check sum is wrong")
            if seq > unsealed:
                raise Damaged(f"event {seq} has no check sum")
            _check_types(seq, id, follows)
        if not 0 < seq <= MAX_SEQ:
            raise Damaged(f"{seq} is not the number of an event")
        if follows is not None and not 0 <= follows < seq:
            raise Damaged(f"event {seq} follows {follows}, which is not an earlier one")
    except Damaged:
        raise
    except UNDECODABLE as error:
        raise Damaged(f"event {seq} cannot be read: {error}") from error


def _check_types(seq: int, id: str, follows: object) -> None:
    """For rows that no check sum covers. That the texts are texts is known by now."""
    if not (0 < len(id) <= 256 and id.isprintable()):
        raise Damaged(f"event {seq} has no id that can be one")
    if follows is not None and type(follows) is not int:
        raise Damaged(f"event {seq} follows {follows!r}, which is no number")


def event_of(row: Any, unsealed: int = 0) -> Event:
    """The event in a row of `COLUMNS`; `Damaged` if it is not what was written."""
    check_row(row, unsealed)
    key, id, ts, kind, follows, body, _ = row
    try:
        return make_event(key & SEQ_BITS, id, ts, kind, decode_body(body), follows)
    except UNDECODABLE as error:
        raise Damaged(f"event {key & SEQ_BITS} (`{id}`) cannot be read: {error}") from error


def events_of(
    rows: Sequence[Any], unsealed: int, damage: Callable[[int, str], None]
) -> list[Event]:
    """The events in rows of `COLUMNS`; `damage` is called with the number of each that is lost.

    A row with a right check sum takes no call of ours: `event_of` is for the others.
    """
    events: list[Event] = []
    add, decode, new = events.append, decode_body, LooseEvent
    for key, id, ts, kind, follows, body, crc in rows:
        try:
            # `join` refuses what is no text. One sum over a copy is faster than a sum of two parts.
            place = f"{key}\n\n" if follows is None else f"{key}\n{follows}\n"
            if crc32("\n".join((id, ts, kind, place)).encode() + body) == crc and (
                follows is None or 0 <= follows < key & SEQ_BITS
            ):
                # As `make_event` does.
                event: Any = new()
                event.seq = key & SEQ_BITS
                event.id = id
                event.ts = ts
                event.kind = kind
                event.data = decode(body)
                event.follows = follows
                event.__class__ = Event
                add(event)
                continue
        except UNDECODABLE:
            pass
        try:
            add(event_of((key, id, ts, kind, follows, body, crc), unsealed))
        except Damaged as error:
            damage(key & SEQ_BITS, str(error))
    return events


def share_sum(log: int, position: int, source: int, until: int) -> int:
    """The check sum of a part of a fork: CRC-32 of the four numbers, a line each."""
    return crc32(f"{log}\n{position}\n{source}\n{until}\n".encode())


def is_share(log: int, position: int, source: int, until: int, seal: int | None) -> bool:
    """Whether a row of `shares` is what was written; one of an earlier version has no sum."""
    return seal is None or seal == share_sum(log, position, source, until)


def are_within(rows: Sequence[Any], low: int, high: int, reverse: bool = False) -> bool:
    """Whether the keys, `low < key <= high`, rise from row to row, or fall with `reverse`.

    Those of a sound tree do. SQLite looks for one end of a range by halving, and compares no key
    with it: where a page is in another's place, rows of any log come out, right in themselves.
    """
    keys = [row[0] for row in rows]
    return not keys or (
        all(map(gt if reverse else lt, keys, islice(keys, 1, None)))
        and low < min(keys[0], keys[-1])
        and max(keys[0], keys[-1]) <= high
    )


def typed(row: Any, what: str, *types: type | UnionType) -> Any:
    """Return `row`, from a strict table, if its columns are of these types; `Damaged` if not.

    SQLite looks at the types as it writes. What a damaged page says is read as it is.
    """
    for value, type_ in zip(row, types, strict=True):
        if not isinstance(value, type_):
            raise Damaged(f"{what} is damaged: {value!r:.60} stands in one of its columns")
    return row


def decoded(decode: Callable[[Any], _T], value: Any, what: str) -> _T:
    """What `decode` makes of a stored value; `Damaged` if it can make nothing of it."""
    try:
        return decode(value)
    except UNDECODABLE as error:
        raise Damaged(f"{what} is damaged, or none of ours: {error}") from error


def whole_number(value: object, what: str, most: int = (1 << 62) - 1) -> int:
    """Return `value` if it is a number from 0 to `most`; `Damaged` if not."""
    if type(value) is int and 0 <= value <= most:
        return value
    raise Damaged(f"{what} is {value!r}: the database is damaged, `verify` reports where")
