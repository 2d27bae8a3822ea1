"""The statements that append, and those around them."""

from __future__ import annotations

import functools

from ...events import MAX_SEQ
from .rowgate import COLUMNS, PRIME

_PLACED = f"mod(%s::bigint << 32 | h.head, {PRIME})"
_PLACED_EACH = f"mod(%s::bigint << 32 | (h.head - %s + u.i), {PRIME})"
_MOVE = (
    "WITH h AS (UPDATE backtrail.logs SET head = head + %s, updated_at = greatest(updated_at, %s) "
    f"WHERE n = %s AND epoch = %s AND session IS NOT NULL AND head + %s <= {MAX_SEQ}"
)
_EXPECTED = " AND head = %s"
_HELD = " AND holder = %s AND until > clock_timestamp()"
# An id that ends in a number of its own is in no index: it is where that number is.
_GIVEN = (
    " AND head + 1 <> %s AND NOT EXISTS(SELECT 1 FROM backtrail.events g WHERE g.log = logs.n "
    "AND g.seq = %s AND g.id = %s)"
)
_SORTED = (
    ", s AS (UPDATE backtrail.sessions s SET sorted_at = %s FROM h "
    "WHERE s.n = h.session AND s.sorted_at <= %s)"
)
_INTO = " INSERT INTO backtrail.events(scope, log, seq, id, ts, kind, follows, data, crc) "


@functools.cache
def statement(one: bool, minted: bool, expected: bool, held: bool, guard: bool, moves: bool) -> str:
    """The statement of the short way."""
    text = _MOVE
    text += _EXPECTED if expected else ""
    text += _HELD if held else ""
    text += _GIVEN if guard else ""
    text += " RETURNING head, session)"
    text += _SORTED if moves else ""
    text += _INTO
    if one:
        id = "%s || lpad(to_hex(h.head), 8, '0')" if minted else "%s"
        return (
            f"{text}SELECT %s, %s, h.head, {id}, %s, %s, NULL, %s, %s::bigint # {_PLACED} FROM h "
            "RETURNING seq"
        )
    return (
        f"{text}SELECT %s, %s, h.head - %s + u.i, "
        "CASE WHEN u.minted THEN u.id || lpad(to_hex(h.head - %s + u.i), 8, '0') ELSE u.id END, "
        f"u.ts, u.kind, NULL, u.data, u.crc # {_PLACED_EACH} FROM h, unnest(%s::text[], "
        "%s::bool[], %s::text[], %s::text[], %s::text[], %s::bigint[]) "
        "WITH ORDINALITY AS u(id, minted, ts, kind, data, crc, i) RETURNING seq"
    )


MAKE = (
    "INSERT INTO backtrail.logs(scope, session, name, updated_at) "
    "SELECT %s, s.n, %s, s.created_at FROM backtrail.sessions s WHERE s.n = %s FOR SHARE "
    "ON CONFLICT (session, name) DO NOTHING"
)
LOCK = (
    "SELECT session, head, epoch, holder, until > clock_timestamp() FROM backtrail.logs "
    "WHERE n = %s FOR UPDATE"
)
MOVED = (
    "UPDATE backtrail.logs SET head = head + %s, updated_at = greatest(updated_at, %s), "
    "epoch = epoch + %s::bool::int WHERE n = %s"
)
RESORT = "UPDATE backtrail.sessions SET sorted_at = %s WHERE n = %s AND sorted_at <= %s"
STORE = (
    "INSERT INTO backtrail.events(scope, log, seq, id, ts, kind, follows, data, crc) "
    "SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], "
    "%s::text[], %s::bigint[], %s::text[], %s::bigint[])"
)
# Whatever the epoch is by now: it waits for a transaction of the long way, too, which names none.
RAISE = "UPDATE backtrail.logs SET epoch = epoch + 1 WHERE n = %s"
LOOK = (
    f"SELECT {COLUMNS} FROM backtrail.events e WHERE e.log = %s AND e.seq > %s "
    "AND left(e.id, 28) = ANY(%s) ORDER BY e.seq"
)
AGAIN = (
    "SELECT w.log, w.seq, e.id, EXISTS(SELECT 1 FROM backtrail.logs l WHERE l.n = w.log "
    "AND l.session IS NOT NULL) FROM unnest(%s::bigint[], %s::bigint[]) AS w(log, seq) "
    "LEFT JOIN backtrail.events e ON e.log = w.log AND e.seq = w.seq"
)
