"""Lists of sessions from SQLite: many records at once, and all that a damaged file still has.

Looking at each column of each record takes longer than reading them. So the records are read in
batches and checked by column: few calls say that nothing in a batch is out of place. Where
something may be, `info_of` looks at each record, and those that cannot be read are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from string import ascii_letters, digits
from typing import Any, Unpack, cast

from ...errors import Damaged
from ...events import MAX_SEQ, SessionInfo, timestamp
from ..disk.database import Database
from ..records import Filters, Wanted, resolved, select
from .infos import COLUMNS, COUNT, OF_FOLDER, RELATIONS, TEXT, TYPES, info_of, make_info, refresh
from .pages import not_collecting

_BATCH = 500
_IN_IDS = f"{ascii_letters}{digits}._-".encode()

# Beyond this a number is not believed: looking up each would not end.
_MOST_RECORDS = 10_000_000


def records(
    database: Database,
    where: str,
    values: Sequence[object],
    keep: Callable[[SessionInfo], bool] | None = None,
    limit: int | None = None,
    order: str = "s.updated_at DESC, s.n DESC",
) -> list[SessionInfo]:
    """The records that match, newest first; those that cannot be read are left out.

    `Damaged` if a page of the file cannot be read: `every_record` finds the others.
    """
    query = f"SELECT {COLUMNS} FROM sessions s WHERE {where} ORDER BY {order}"
    found: list[SessionInfo] = []
    with database.reading() as connection, not_collecting():
        cursor = connection.cursor()
        try:
            rows = cast("Iterator[tuple[Any, ...]]", cursor.execute(query, tuple(values)))
            while limit is None or len(found) < limit:
                batch: list[tuple[Any, ...]] = []
                wanted = _BATCH if limit is None or keep else min(_BATCH, limit - len(found))
                ended = _fill(batch, rows, wanted)
                infos = _infos_of(batch)
                found.extend(infos if keep is None else filter(keep, infos))
                if ended:
                    break
        except UnicodeEncodeError:
            # A text that cannot be stored matches nothing.
            return []
        finally:
            cursor.close()
    return found[:limit]


def _fill(batch: list[tuple[Any, ...]], rows: Iterator[tuple[Any, ...]], wanted: int) -> bool:
    """Read into `batch`; whether there are no more. A text that is none ends the batch."""
    try:
        batch.extend(islice(rows, wanted))
    except UnicodeDecodeError:
        # One record that cannot be read must not hide the others.
        return False
    return len(batch) < wanted


def _infos_of(rows: Sequence[tuple[Any, ...]]) -> list[SessionInfo]:
    """The records in rows of `COLUMNS` that can be read."""
    if _are_sound(rows):
        try:
            return list(map(make_info, rows))
        except Damaged:
            pass
    found: list[SessionInfo] = []
    for row in rows:
        try:
            found.append(info_of(row))
        except Damaged:
            continue
    return found


def _are_sound(rows: Sequence[tuple[Any, ...]]) -> bool:
    """Whether `info_of` would find each value of the type it was made with, and within bounds."""
    nothing = (None,) * len(rows)
    columns = list(zip(*rows, strict=True))
    if not columns:
        return True
    try:
        for column, known in zip(columns, TYPES, strict=True):
            if known is TEXT:
                # `join` refuses what is no text.
                "".join(column)
            elif known is COUNT:
                if type(sum(column)) is not int:
                    return False
            elif column != nothing and not set(map(type, column)) <= set(known):
                return False
        ids = "".join([f"\n{id}" for id in columns[0]])
        return (
            ids.encode("ascii").translate(None, _IN_IDS) == b"\n" * len(rows)
            and not ("\n\n" in ids or ids.endswith("\n") or "\n." in ids or "\n-" in ids)
            and max(map(len, columns[0])) <= 128
            and (columns[4] == nothing or set(columns[4]) <= set(RELATIONS))
            and min(columns[13]) >= 0
            and max(columns[13]) <= MAX_SEQ
        )
    except (TypeError, ValueError):
        return False


def every_record(database: Database, scope: str) -> list[SessionInfo]:
    """All records of a scope that can be read, oldest first, each looked up by its number.

    For a database that is damaged: an index, or a page of records, may not be readable.
    """
    found: list[SessionInfo] = []
    query = f"SELECT {COLUMNS} FROM sessions s WHERE s.n = ?"
    for n in range(1, _last_number(database) + 1):
        try:
            with database.reading() as connection:
                row = connection.execute(query, (n,)).get
            if row is not None and row[2] == scope:
                found.append(info_of(row))
        except Damaged:
            continue
    return found


def _last_number(database: Database) -> int:
    """The number of the newest record; of a damaged table, as far as anything can be found."""
    last = 0
    for query in (
        "SELECT seq FROM sqlite_sequence WHERE name = 'sessions'",
        "SELECT max(n) FROM sessions",
        "SELECT max(session) FROM logs",
    ):
        try:
            with database.reading() as connection:
                number = connection.execute(query).get
        except Damaged:
            continue
        if type(number) is int and last < number <= _MOST_RECORDS:
            last = number
    return last


def listed(database: Database, scope: str, **filters: Unpack[Filters]) -> list[SessionInfo]:
    """`Store.sessions` of a scope."""
    late, lost = refresh(database, scope)
    if late:
        # Not stored yet, so the database would filter and sort by old values.
        newer = {one.info.id: one.info for one in late}
        infos = records(database, "s.scope = ?", (scope,), _not_in(lost), order="s.n")
        return select([newer.get(info.id, info) for info in infos], **filters)
    cwd, after, before = filters.get("cwd"), filters.get("after"), filters.get("before")
    conditions: dict[str, object] = {
        "s.scope = ?": scope,
        f"s.n IN ({OF_FOLDER})": None if cwd is None else resolved(cwd),
        "s.parent_id = ?": filters.get("parent"),
        "s.key = ?": filters.get("key"),
        "s.updated_at > ?": None if after is None else timestamp(after),
        "s.updated_at < ?": None if before is None else timestamp(before),
    }
    conditions = {text: value for text, value in conditions.items() if value is not None}
    where, keep = " AND ".join(conditions), _not_in(lost)
    tag, metadata = filters.get("tag"), filters.get("metadata")
    if tag is not None or metadata is not None:
        fits = Wanted(tag=tag, metadata=metadata)
        keep = lambda info: fits(info) and info.id not in lost  # noqa: E731
    values = list(conditions.values())
    if cwd is not None:
        # By `cwd` and by `root`, each with its own index.
        values[1:2] = [scope, values[1], scope, values[1]]
    try:
        return records(database, where, values, keep, filters.get("limit"))
    except Damaged:
        # One page that cannot be read must not hide the sessions on the others.
        infos = [one for one in every_record(database, scope) if one.id not in lost]
        return select(infos, **filters)


def _not_in(lost: set[str]) -> Callable[[SessionInfo], bool] | None:
    return (lambda info: info.id not in lost) if lost else None
