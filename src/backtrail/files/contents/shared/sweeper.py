"""Removing contents that machines share, a little at a time, with the row of the epoch locked."""

from __future__ import annotations

import time
from collections.abc import Collection, Container
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ....errors import NotFound
from ....stores.postgres.link import Execute, Link
from ..blobs import Keep, Swept
from ..rows import Packed
from . import packindex as index
from .packplaces import Place

if TYPE_CHECKING:
    from . import SharedBlobs

_ROWS = 500
_ABANDONED = 24 * 3600.0
"""Seconds after which a pack that is still being put is given up."""

_PAGE = (
    "SELECT digest, size FROM backtrail.blobs WHERE scope = %s AND digest > %s "
    "AND stamp < %s ORDER BY digest LIMIT 2000"
)
_DELETE = (
    "WITH dead AS (SELECT digest FROM backtrail.blobs WHERE scope = %s AND digest = ANY(%s) "
    "AND stamp < %s ORDER BY digest FOR UPDATE) "
    "DELETE FROM backtrail.blobs b USING dead WHERE b.scope = %s AND b.digest = dead.digest "
    "RETURNING b.digest, b.size"
)
_DOOM = (
    "UPDATE backtrail.packs p SET state = 'doomed', since = clock_timestamp() "
    "WHERE p.scope = %s AND p.place = %s AND (p.state = 'ready' OR (p.state = 'uploading' "
    "AND p.since < clock_timestamp() - make_interval(secs => %s))) AND NOT EXISTS("
    "SELECT 1 FROM backtrail.blobs b WHERE b.pack = p.n)"
)
_DOOMED = (
    "SELECT n, key FROM backtrail.packs WHERE scope = %s AND place = %s AND state = 'doomed' "
    "AND since <= clock_timestamp() - make_interval(secs => %s)"
)
_GONE = "DELETE FROM backtrail.packs WHERE n = ANY(%s) AND state = 'doomed'"
_SPARSE = (
    "SELECT p.n, p.key FROM backtrail.packs p JOIN backtrail.blobs b ON b.pack = p.n "
    "WHERE p.scope = %s AND p.place = %s AND p.state = 'ready' GROUP BY p.n, p.key, p.bytes "
    "HAVING sum(b.length) < p.bytes / 2"
)


class Sweep:
    """One sweep: what it may not touch, and how far it is."""

    def __init__(
        self, blobs: SharedBlobs, link: Link, scope: str, place: Place, keep: Keep, before: float
    ) -> None:
        self._blobs = blobs
        self._link = link
        self._scope = scope
        self._place = place
        self._keep = keep
        self._before = _on_server(link, before)
        self._asked = -1
        self._kept: Container[bytes] = ()
        self.gone: set[bytes] = set()
        """What was removed."""

    def run(self, *, dry_run: bool) -> Swept:
        """Look through all contents, and remove the dead."""
        self._kept = self._keep(self._link.write(self._new_roots), self._blobs.get)
        last, blobs, size = b"", 0, 0
        while page := self._page(last):
            last = page[-1][0]
            dead = [row for row in page if row[0] not in self._kept]
            for at in range(0, len(dead), _ROWS):
                some = dead[at : at + _ROWS]
                gone = [length for _, length in some] if dry_run else self._remove(some)
                blobs, size = blobs + len(gone), size + sum(gone)
        if not dry_run:
            drain(self._blobs, self._link, self._scope, self._place)
        return Swept(blobs, size)

    def _page(self, last: bytes) -> list[tuple[bytes, int]]:
        values = (self._scope, last, self._before)
        rows = self._link.read(lambda execute: execute.all(_PAGE, values))
        return [(digest, size) for digest, size in rows]

    def _new_roots(self, execute: Execute) -> set[bytes]:
        """The roots of references that `keep` has not seen; nothing is referred to meanwhile."""
        index.epoch_in(execute, "FOR UPDATE")
        query = 'SELECT n, root FROM backtrail."references" WHERE scope = %s AND n > %s ORDER BY n'
        rows = execute.all(query, (self._scope, self._asked))
        if rows:
            self._asked = rows[-1][0]
        return {root for _, root in rows}

    def _remove(self, dead: list[tuple[bytes, int]]) -> list[int]:
        """One slice; the sizes of those that were dead indeed."""

        def work(execute: Execute) -> list[int]:
            if roots := self._new_roots(execute):
                self._kept = self._keep(roots, lambda digest: self._read(execute, digest))
            gone = [digest for digest, _ in dead if digest not in self._kept]
            values = (self._scope, gone, self._before, self._scope)
            rows = execute.all(_DELETE, values)
            if rows:
                index.next_epoch(execute)
                self.gone.update(digest for digest, _ in rows)
            return [size for _, size in rows]

        return self._link.write(work)

    def _read(self, execute: Execute, digest: bytes) -> bytes:
        return self._blobs.content(digest, index.locate(execute, self._scope, digest))


def _on_server(link: Link, moment: float) -> datetime:
    """A moment by our clock as one by the server's, whose clock may be another; never later."""
    now = link.read(lambda execute: execute.one("SELECT clock_timestamp()"))
    try:
        return now[0] - timedelta(seconds=time.time() - moment) if now else datetime.min
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def drain(blobs: SharedBlobs, link: Link, scope: str, place: Place) -> None:
    """Put the contents of half-empty packs together, and remove packs that nothing needs."""
    for pack, key in link.read(lambda execute: execute.all(_SPARSE, (scope, place.name))):
        _rewrite(blobs, link, scope, place, pack, key)

    def doom(execute: Execute) -> None:
        index.epoch_in(execute, "FOR UPDATE")
        execute(_DOOM, (scope, place.name, _ABANDONED))

    link.write(doom)
    _collect(link, scope, place, place.grace)


def _collect(link: Link, scope: str, place: Place, grace: float) -> None:
    """Remove packs that were doomed long enough ago."""
    doomed = link.read(lambda execute: execute.all(_DOOMED, (scope, place.name, grace)))
    for at in range(0, len(doomed), _ROWS):
        some = [(number, key) for number, key in doomed[at : at + _ROWS]]
        place.remove(None, some)
        numbers = [number for number, _ in some]
        link.read(lambda execute, n=numbers: execute(_GONE, (n,)))  # type: ignore[misc]


def _rewrite(
    blobs: SharedBlobs, link: Link, scope: str, place: Place, pack: int, key: str,
    without: Collection[bytes] = (),
) -> None:  # fmt: skip
    """Move the contents of a pack to a new one, or into the index; the old one is doomed."""
    rows = [
        row
        for row in link.read(lambda execute: index.rows_of(execute, pack, scope))
        if row.digest not in without
    ]
    new: list[index.New] = []
    try:
        parts = place.get_ranges(key, [(row.at, row.length) for row in rows]) if rows else []
    except NotFound:
        return
    for row, part in zip(rows, parts, strict=True):
        new.append(index.New(row.digest, Packed(row.size, row.codec, part)))
    number = 0
    if new:
        body = b"".join(one.packed.content for one in new)
        name = index.new_key()
        number = link.read(lambda e: index.begin(e, scope, place.name, name, len(body)))
        place.put(name, number, body)

    def move(execute: Execute) -> None:
        index.epoch_in(execute, "FOR UPDATE")
        if new:
            ready = "UPDATE backtrail.packs SET state = 'ready' WHERE n = %s"
            execute(ready, (number,))
            execute(_MOVE, (number, *index.placed(new), scope, pack))

    link.write(move)


_MOVE = (
    "UPDATE backtrail.blobs b SET pack = %s, at = u.at, length = u.length "
    "FROM unnest(%s::bytea[], %s::bigint[], %s::int[], %s::bigint[], %s::bigint[]) "
    "AS u(digest, size, codec, at, length) WHERE b.scope = %s AND b.pack = %s "
    "AND b.digest = u.digest"
)


def erase(
    blobs: SharedBlobs, link: Link, scope: str, place: Place, digests: Collection[bytes]
) -> None:
    """Remove contents for good: the packs that they are in are made anew without them, at once.

    What the server's log, its replicas, backups, and older versions of objects keep is beyond
    reach.
    """
    wanted = sorted(set(digests))
    packs = {
        (row.pack, row.key)
        for row in link.read(lambda execute: index.locate_many(execute, scope, wanted))
        if row.pack is not None and row.key is not None
    }
    for pack, key in packs:
        _rewrite(blobs, link, scope, place, pack, key, wanted)

    def work(execute: Execute) -> None:
        index.epoch_in(execute, "FOR UPDATE")
        gone = execute.all(
            "DELETE FROM backtrail.blobs WHERE scope = %s AND digest = ANY(%s) RETURNING digest",
            (scope, wanted),
        )
        if gone:
            execute(
                "INSERT INTO backtrail.erased(scope, digest) SELECT %s, unnest(%s::bytea[])",
                (scope, [digest for (digest,) in gone]),
            )
            index.next_epoch(execute)
        numbers = [pack for pack, _ in packs]
        execute(
            "UPDATE backtrail.packs p SET state = 'doomed', since = to_timestamp(0) "
            "WHERE p.n = ANY(%s) AND NOT EXISTS("
            "SELECT 1 FROM backtrail.blobs b WHERE b.pack = p.n)",
            (numbers,),
        )

    link.write(work)
    _collect(link, scope, place, place.grace)
