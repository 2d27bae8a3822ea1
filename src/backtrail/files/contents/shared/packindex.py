"""The rows that say what contents there are, and where: in a row, or in a part of a pack."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from ...._startup.frozen import NamedTuple
from ....stores.postgres.link import Execute, Link
from ..blobs import Reference, gone
from ..rows import Packed


class New(NamedTuple):
    """A content to be stored."""

    digest: bytes
    packed: Packed


class Row(NamedTuple):
    """Where a content is: in `content`, or in the pack `key`."""

    digest: bytes
    size: int
    codec: int
    content: bytes | None
    at: int
    length: int
    key: str | None
    pack: int | None


class Known(NamedTuple):
    """What a writer of references relies on: see `Blobs.write`."""

    epoch: int | None
    relies: Collection[bytes]
    began: int | None
    """The epoch before the first of `earlier` was stored."""
    earlier: Collection[bytes]


LOCKED = "FOR SHARE"
"""How a statement that stores references holds the epoch: none moves it meanwhile."""

NOTHING_KNOWN = Known(None, (), None, ())


def of_bytes(some: Iterable[bytes]) -> str:
    """An array of digests as a literal: one text is built far sooner than an array of values."""
    return "{" + ",".join([f'"\\\\x{one.hex()}"' for one in some]) + "}"


def of_numbers(some: Iterable[int]) -> str:
    """An array of numbers as a literal."""
    return "{" + ",".join(map(str, some)) + "}"


def new_key() -> str:
    """A random name for a pack."""
    return os.urandom(16).hex()


# --- looking -----------------------------------------------------------------------------

_ROW = (
    "SELECT b.digest, b.size, b.codec::int, b.content, coalesce(b.at, 0), b.length, p.key, b.pack "
    "FROM backtrail.blobs b LEFT JOIN backtrail.packs p ON p.n = b.pack WHERE b.scope = %s "
)


def locate(execute: Execute, scope: str, digest: bytes) -> Row | None:
    """Where a content is."""
    row = execute.one(f"{_ROW}AND b.digest = %s", (scope, digest))
    return None if row is None else Row(*row)


def locate_many(execute: Execute, scope: str, digests: Collection[bytes]) -> list[Row]:
    """Where some contents are, in the order of packs."""
    rows = execute.all(
        f"{_ROW}AND b.digest = ANY(%s::bytea[]) ORDER BY b.pack, b.at", (scope, of_bytes(digests))
    )
    return [Row(*row) for row in rows]


def rows_of(execute: Execute, pack: int, scope: str) -> list[Row]:
    """The contents of a pack."""
    rows = execute.all(f"{_ROW}AND b.pack = %s ORDER BY b.at", (scope, pack))
    return [Row(*row) for row in rows]


def present(execute: Execute, scope: str, digests: Collection[bytes]) -> set[bytes]:
    """Which of these are there."""
    if not digests:
        return set()
    query = "SELECT digest FROM backtrail.blobs WHERE scope = %s AND digest = ANY(%s::bytea[])"
    return {digest for (digest,) in execute.all(query, (scope, of_bytes(digests)))}


def digests(link: Link, scope: str) -> Iterator[bytes]:
    """Everything there is; no lock is held between pages."""
    query = (
        "SELECT digest FROM backtrail.blobs WHERE scope = %s AND digest > %s ORDER BY digest "
        "LIMIT 1000"
    )
    last = b""
    while rows := link.read(lambda execute, at=last: execute.all(query, (scope, at))):  # type: ignore[misc]
        last = rows[-1][0]
        yield from (digest for (digest,) in rows)


def references(link: Link, scope: str) -> Iterator[Reference]:
    """What logs rely on, oldest first."""
    query = (
        'SELECT n, store, log, root FROM backtrail."references" WHERE scope = %s AND n > %s '
        "ORDER BY n LIMIT 1000"
    )
    last = -1
    while rows := link.read(lambda execute, at=last: execute.all(query, (scope, at))):  # type: ignore[misc]
        last = rows[-1][0]
        yield from (Reference(*row[1:]) for row in rows)


def used(execute: Execute, scope: str) -> int:
    """The bytes of the contents in the index, and of the packs."""
    query = (
        "SELECT (SELECT coalesce(sum(length), 0) FROM backtrail.blobs WHERE scope = %s "
        "AND pack IS NULL)::bigint + (SELECT coalesce(sum(bytes), 0) FROM backtrail.packs "
        "WHERE scope = %s AND state = 'ready')::bigint"
    )
    row = execute.one(query, (scope, scope))
    return 0 if row is None else int(row[0])


def erased(execute: Execute, scope: str, after: int) -> tuple[int, list[bytes]]:
    """What was erased since a number, and the last number."""
    query = "SELECT n, digest FROM backtrail.erased WHERE scope = %s AND n > %s ORDER BY n"
    rows = execute.all(query, (scope, after))
    return (rows[-1][0] if rows else after), [digest for _, digest in rows]


# --- the epoch ---------------------------------------------------------------------------


def epoch_in(execute: Execute, lock: str = "") -> int:
    """The epoch now; `lock` is `FOR SHARE` for writers of references, `FOR UPDATE` to remove."""
    row = execute.one(f"SELECT epoch FROM backtrail.store {lock}")
    return 0 if row is None else int(row[0])


def next_epoch(execute: Execute) -> None:
    """What was found before is doubtful. The time is in it: a restored backup repeats none."""
    execute(
        "UPDATE backtrail.store SET epoch = greatest(epoch + 1, "
        "(extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
    )


# --- storing -----------------------------------------------------------------------------

_PUT = (
    "INSERT INTO backtrail.blobs(scope, digest, size, stamp, codec, content, length) "
    "SELECT %s, u.digest, u.size, clock_timestamp(), u.codec, u.content, length(u.content) "
    "FROM e, unnest(%s::bytea[], %s::bigint[], %s::int[], %s::bytea[]) "
    "AS u(digest, size, codec, content) WHERE e.epoch = ANY(%s) ORDER BY u.digest "
    "ON CONFLICT (scope, digest) DO UPDATE SET stamp = greatest(blobs.stamp, excluded.stamp)"
)
_REFER = (
    'INSERT INTO backtrail."references"(scope, store, log, root) '
    "SELECT %s, u.store, u.log, u.root FROM e, unnest(%s::text[], %s::text[], %s::bytea[]) "
    "WITH ORDINALITY AS u(store, log, root, i) WHERE e.epoch = ANY(%s) ORDER BY u.i "
    "ON CONFLICT (scope, store, log, root) DO NOTHING"
)


def store(
    execute: Execute,
    scope: str,
    new: Sequence[New],
    referring: Sequence[Reference],
    known: Known,
) -> None:
    """Store contents in the index, and references; `Conflict` if what these rely on is gone.

    In a transaction: the epoch stays as it is until the end.
    """
    now = epoch_in(execute, "FOR SHARE")
    if referring:
        _check(execute, scope, now, known.epoch, known.relies, {one.digest for one in new})
        _check(execute, scope, now, known.began if known.earlier else now, known.earlier, set())
    _store(execute, scope, new, referring, [now])


def store_in(
    execute: Execute, scope: str, new: Sequence[New], referring: Sequence[Reference], epoch: int
) -> bool:
    """The same in one statement, if the epoch is this one; False if it is not, and nothing is."""
    return _store(execute, scope, new, referring, [epoch]) == epoch


def _check(
    execute: Execute, scope: str, now: int, epoch: int | None, relies: Collection[bytes],
    coming: set[bytes],
) -> None:  # fmt: skip
    if epoch == now:
        return
    lost = set(relies) - coming
    lost -= present(execute, scope, lost)
    if lost or (epoch is not None and not relies):
        raise gone(lost)


def _store(
    execute: Execute, scope: str, new: Sequence[New], referring: Sequence[Reference],
    epochs: list[int],
) -> int | None:  # fmt: skip
    """Store it if the epoch is one of these; returns the epoch."""
    text = f"WITH e AS (SELECT epoch FROM backtrail.store {LOCKED})"
    values: list[object] = []
    if new:
        unique = {one.digest: one.packed for one in new}
        sizes = [packed.size for packed in unique.values()]
        codecs = [packed.codec for packed in unique.values()]
        bodies = [packed.content for packed in unique.values()]
        text += f", b AS ({_PUT})"
        values += [scope, list(unique), sizes, codecs, bodies, epochs]
    if referring:
        columns = [list(column) for column in zip(*dict.fromkeys(referring), strict=True)]
        text += f", r AS ({_REFER})"
        values += [scope, *columns, epochs]
    row = execute.one(f"{text} SELECT epoch FROM e", values)
    return None if row is None else int(row[0])


def touch(execute: Execute, scope: str, some: Sequence[bytes]) -> set[bytes]:
    """Set the stamps of contents that are there to now; those that are there."""
    query = (
        "WITH w AS (SELECT digest FROM backtrail.blobs WHERE scope = %s "
        "AND digest = ANY(%s::bytea[]) "
        "ORDER BY digest FOR UPDATE) UPDATE backtrail.blobs b SET stamp = clock_timestamp() "
        "FROM w WHERE b.scope = %s AND b.digest = w.digest RETURNING b.digest"
    )
    return {digest for (digest,) in execute.all(query, (scope, of_bytes(some), scope))}


# --- packs -------------------------------------------------------------------------------


def begin(execute: Execute, scope: str, place: str, key: str, size: int) -> int:
    """Note a pack that is about to be put."""
    row = execute.one(
        "INSERT INTO backtrail.packs(scope, place, key, bytes, state, since) "
        "VALUES(%s, %s, %s, %s, 'uploading', clock_timestamp()) RETURNING n",
        (scope, place, key, size),
    )
    return 0 if row is None else int(row[0])


_INDEX = (
    "INSERT INTO backtrail.blobs(scope, digest, size, stamp, codec, pack, at, length) "
    "SELECT %s, u.digest, u.size, clock_timestamp(), u.codec, %s, u.at, u.length "
    "FROM unnest(%s::bytea[], %s::bigint[], %s::int[], %s::bigint[], %s::bigint[]) "
    "AS u(digest, size, codec, at, length) ORDER BY u.digest "
    "ON CONFLICT (scope, digest) DO UPDATE SET stamp = greatest(blobs.stamp, excluded.stamp)"
)


def finish(execute: Execute, scope: str, pack: int, new: Sequence[New]) -> bool:
    """The pack is put: its contents are there from now on. False if it was given up meanwhile."""
    epoch_in(execute, "FOR SHARE")
    ready = (
        "UPDATE backtrail.packs SET state = 'ready' WHERE n = %s "
        "AND state IN ('uploading', 'ready') RETURNING n"
    )
    if execute.one(ready, (pack,)) is None:
        return False
    execute(_INDEX, (scope, pack, *placed(new)))
    return True


def placed(new: Sequence[New]) -> list[str]:
    """Digest, size, codec, place and length of contents that follow each other in a pack."""
    lengths = [len(packed.content) for _, packed in new]
    numbers = (
        [packed.size for _, packed in new],
        [packed.codec for _, packed in new],
        accumulate(lengths[:-1], initial=0),
        lengths,
    )
    return [of_bytes(digest for digest, _ in new), *map(of_numbers, numbers)]


# --- references --------------------------------------------------------------------------


def drop(
    execute: Execute, scope: str, store: str, log: str | None, roots: Collection[bytes] | None
) -> None:
    """Drop references of a store, one log of it, or a log at some roots."""
    query, values = (
        'DELETE FROM backtrail."references" WHERE scope = %s AND store = %s',
        [scope, store],
    )
    more: list[object] = list(values)
    if log is not None:
        query += " AND log = %s"
        more.append(log)
    if roots is not None:
        query += " AND root = ANY(%s)"
        more.append(list(roots))
    execute(query, more)


def copy(execute: Execute, scope: str, store: str, log: str, new_log: str) -> None:
    """Have a log rely on all that another relies on."""
    epoch_in(execute, "FOR SHARE")
    execute(
        'INSERT INTO backtrail."references"(scope, store, log, root) '
        'SELECT scope, store, %s, root FROM backtrail."references" '
        "WHERE scope = %s AND store = %s AND log = %s ORDER BY n "
        "ON CONFLICT (scope, store, log, root) DO NOTHING",
        (new_log, scope, store, log),
    )
