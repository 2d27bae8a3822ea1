"""The gate that every row of `events` passes on its way out of the server.

The check sum covers all columns and the place of the row. The number of an event is given by the
server, in the statement that stores it, so the sum is made in two parts: the client's, CRC-32 of
what it sends, and the server's, an exclusive or with the remainder of the key. An id that ends in
the event's own number is covered without that end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from ...errors import Damaged
from ...events import MAX_SEQ, Event, make_event
from ..disk.checks import UNDECODABLE, decode_body

PRIME = 4294967291
"""The largest prime below 2^32."""

COLUMNS = "e.seq, e.id, e.ts, e.kind, e.follows, e.data::varchar, e.crc"
"""The columns of an event. A `varchar` comes as bytes."""

STEM = 28
"""The length of a minted id without the number that the server puts behind it."""


def sent_sum(stem: str, ts: str, kind: str, follows: int | None, body: bytes) -> int:
    """The client's part of a check sum; `stem` is the id, without its own number at the end."""
    place = "" if follows is None else str(follows)
    return crc32(f"{stem}\n{ts}\n{kind}\n{place}\n".encode() + body)


def placed(crc: int, log: int, seq: int) -> int:
    """The whole of a check sum: the server's part added."""
    return crc ^ (log << 32 | seq) % PRIME


def row_sum(
    log: int, seq: int, id: str, ts: str, kind: str, follows: int | None, body: bytes
) -> int:
    """The check sum of a row."""
    stem = id[:-8] if id[-8:] == f"{seq:08x}" else id
    return placed(sent_sum(stem, ts, kind, follows, body), log, seq)


def event_of(log: int, row: Sequence[Any]) -> Event:
    """The event in a row of `COLUMNS`; `Damaged` if it is not what was written."""
    seq, id, ts, kind, follows, body, crc = row
    try:
        if row_sum(log, seq, id, ts, kind, follows, body) != crc:
            raise Damaged(f"event {seq} is not what was written: its check sum is wrong")
        if not 0 < seq <= MAX_SEQ:
            raise Damaged(f"{seq} is not the number of an event")
        if follows is not None and not 0 <= follows < seq:
            raise Damaged(f"event {seq} follows {follows}, which is not an earlier one")
        return make_event(seq, id, ts, kind, decode_body(body), follows)
    except Damaged:
        raise
    except UNDECODABLE as error:
        raise Damaged(f"event {seq} (`{id}`) cannot be read: {error}") from error


def events_of(
    log: int, rows: Sequence[Sequence[Any]], damage: Callable[[int, str], None]
) -> list[Event]:
    """The events in rows of `COLUMNS`; `damage` is called with the number of each that is lost."""
    events: list[Event] = []
    high = log << 32
    for row in rows:
        seq, id, ts, kind, follows, body, crc = row
        # Nearly every row: a number behind the id, and nothing that it follows but the one before.
        if (
            follows is None
            and id[-8:] == f"{seq:08x}"
            and crc32(f"{id[:-8]}\n{ts}\n{kind}\n\n".encode() + body) ^ (high | seq) % PRIME == crc
        ):
            try:
                events.append(make_event(seq, id, ts, kind, decode_body(body), None))
                continue
            except UNDECODABLE:
                pass
        try:
            events.append(event_of(log, row))
        except Damaged as error:
            damage(seq, str(error))
    return events


def share_sum(log: int, position: int, source: int, until: int) -> int:
    """The check sum of a part of a fork."""
    return crc32(f"{log}\n{position}\n{source}\n{until}\n".encode())
