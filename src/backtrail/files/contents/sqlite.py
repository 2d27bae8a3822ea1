"""Blobs in a SQLite database.

A content is packed (compressed, if that helps) before the write lock is taken. A small one
is a row. A large one is a row and its pieces in `chunks`, which come first, in transactions
of their own, under a number that stands in `pending` until the row is there. A number in
`pending` for long belongs to a writer that died, or to a content that was removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from ..._startup.frozen import NamedTuple
from ...stores.disk import fs
from ...stores.disk.checks import decoded, typed, whole_number
from ...stores.disk.database import Database
from ...stores.disk.schema import located
from ...telemetry import logger
from ..trays import move_tray
from .blobs import Blobs, Keep, Reference, Swept, checked, missing
from .rows import (
    GET,
    SCHEMA,
    Packed,
    Slice,
    check,
    epoch_in,
    finish,
    gathered,
    goes_on,
    is_little,
    pack,
    pack_all,
    present,
    put,
    read,
    refer,
    unpacked,
)

# Setting the stamp of a row reads all of it, so rows stay small.
_INLINE = 64 << 10
_CHUNK = 1 << 20
_SLICE = 2 << 20


def open_sqlite_blobs(address: str) -> SQLiteBlobs:
    """`sqlite:///PATH`, as for a store."""
    return SQLiteBlobs(located(address))


class SQLiteBlobs(Blobs):
    """Contents in one database file, made if it is not there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.realpath(os.path.expanduser(path)))
        self._database = Database(self.path, synced=True, idle=self._idle, schema=SCHEMA)
        self._names = [str(self.path), f"{self.path}-wal"]
        try:
            # Contents that an earlier version left in front of the database, and that cannot be
            # moved there now.
            self._left = move_tray(self._database, _contents, _take)
            row = (self._one("SELECT id FROM about"),)
            self.id = cast(str, typed(row, f"the name of {self.path}", str)[0])
        except BaseException:
            self._database.close()
            raise

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        with self._database.reading() as connection:
            return connection.execute(query, values).get

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._database.reading() as connection:
            return cast("list[Any]", connection.execute(query, values).fetchall())

    # --- reading -------------------------------------------------------------------------

    def get(self, digest: bytes) -> bytes:
        left = self._left.get(digest)
        if left is not None:
            return checked(digest, left)
        return unpacked(digest, self._all(GET, (digest,)))

    def has(self, digests: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            return present(connection, digests).union(d for d in digests if d in self._left)

    def size(self, digest: bytes) -> int:
        left = self._left.get(digest)
        if left is not None:
            return len(left)
        found: int | None = self._one("SELECT size FROM blobs WHERE digest = ?", (digest,))
        if found is None:
            raise missing(digest)
        return whole_number(found, f"the size of the blob `{digest.hex()}`")

    def digests(self) -> Iterator[bytes]:
        self._database.check_open()
        rows = self._pages("SELECT n, digest FROM blobs")
        return (typed(row, "the row of a blob", int, bytes)[1] for row in rows)

    def references(self) -> Iterator[Reference]:
        self._database.check_open()
        rows = self._pages('SELECT n, store, log, root FROM "references"')
        whole = (typed(row, "a reference", int, str, str, bytes) for row in rows)
        return (Reference(store, log, root) for _, store, log, root in whole)

    def _pages(self, query: str) -> Iterator[Any]:
        """The rows of a query that begins with `n`; no lock is held between pages."""
        last = -1
        while rows := self._all(f"{query} WHERE n > ? ORDER BY n LIMIT 1000", (last,)):
            last = rows[-1][0]
            yield from rows

    def epoch(self) -> int:
        with self._database.reading() as connection:
            return epoch_in(connection.execute)

    def verify(self) -> Iterator[tuple[bytes, str]]:
        with self._database.reading() as connection:
            try:
                found = connection.execute("PRAGMA integrity_check").fetchall()
            except apsw.CorruptError as error:
                found = [(str(error),)]
        yield from ((b"", str(text)) for (text,) in found if text != "ok")
        yield from super().verify()

    def used(self) -> int:
        self._database.check_open()
        total = 0
        for name in self._names:
            try:
                total += os.stat(name).st_size
            except FileNotFoundError:
                continue
            except OSError as error:
                raise fs.failed(error, f"look at {name}") from error
        return total

    # --- writing -------------------------------------------------------------------------

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        database = self._database
        database.check_open()
        batches = gathered(contents)
        first = next(batches, {})
        began, earlier = 0, list[bytes]()
        last = Slice([], [])
        for ready in self._slices(chain([first], batches)):
            if last.new or last.present:
                began = began or self.epoch()
                self._store(last)
                earlier += last.digests()
            last = ready
        referring = list(references)
        if last.large:
            began = began or self.epoch()
            self._store(last)
            earlier += last.digests()
            last = Slice([], [])
        if last.new or last.present or referring:
            with database.writing() as execute:
                writer = database.writer()
                put(writer, last, time.time())
                if referring:
                    now = epoch_in(execute)
                    check(writer, now, epoch, relies)
                    check(writer, now, began if earlier else now, earlier)
                    refer(writer, referring)
        if sync:
            database.acknowledge()

    def _slices(self, batches: Iterable[dict[bytes, bytes]]) -> Iterator[Slice]:
        """Contents packed, and cut into transactions."""
        for batch in batches:
            there = set() if is_little(batch) else self.has(batch)
            ready, total = Slice([], [(digest, batch.pop(digest)) for digest in there]), 0
            for digest, packed in zip(batch, pack_all(list(batch.values())), strict=True):
                length = len(packed.content)
                if length > _INLINE:
                    yield Slice([(digest, packed)], [], large=True)
                    continue
                ready.new.append((digest, packed))
                total += length
                if total >= _SLICE:
                    yield ready
                    ready, total = Slice([], []), 0
            if ready.new or ready.present:
                yield ready

    def _store(self, ready: Slice) -> None:
        if ready.large:
            while not self._store_large(*ready.new[0]):
                # A sweep took it for a dead writer's.
                continue
            return
        with self._database.writing():
            put(self._database.writer(), ready, time.time())

    def _store_large(self, digest: bytes, packed: Packed) -> bool:
        """Store a content piece by piece; False if a sweep removed pieces meanwhile."""
        content = memoryview(packed.content)
        number = 0
        for start in range(0, len(content), _SLICE):
            with self._database.writing() as execute:
                now = time.time()
                if number == 0:
                    number = execute("INSERT INTO pending(stamp) VALUES(?) RETURNING n", (now,)).get
                elif not goes_on(execute, number, now):
                    return False
                for at in range(start, min(start + _SLICE, len(content)), _CHUNK):
                    key = number << 20 | at // _CHUNK
                    piece = content[at : at + _CHUNK]
                    execute("INSERT INTO chunks(key, content) VALUES(?, ?)", (key, piece))
                if start + _SLICE >= len(content):
                    finish(execute, number, digest, packed)
        return True

    def flush(self) -> None:
        database = self._database
        database.check_open()
        if database.sync is not None and database.sync.dirty:
            database.flush()

    def close(self) -> None:
        self._database.close()

    @property
    def dirty(self) -> bool:
        return self._database.dirty

    def _idle(self) -> None:
        """In the background, after a sync: move the -wal into the database."""
        try:
            self._database.checkpoint()
            self._database.shorten()
        except Exception:
            if not self._database.closed:
                # The thread serves other stores too and must go on.
                logger().exception("the checkpoint of %s failed", self.path)

    # --- references ----------------------------------------------------------------------

    def drop_references(
        self, store: str, log: str | None = None, roots: Collection[bytes] | None = None
    ) -> None:
        query = 'DELETE FROM "references" WHERE store = ?1 AND (?2 IS NULL OR log = ?2)'
        with self._database.writing() as execute:
            if roots is None:
                execute(query, (store, log))
                return
            for root in roots:
                execute(f"{query} AND root = ?3", (store, log, root))

    def copy_references(self, store: str, log: str, new_log: str) -> None:
        with self._database.writing() as execute:
            execute(
                'INSERT OR IGNORE INTO "references"(store, log, root) SELECT store, ?, root'
                ' FROM "references" WHERE store = ? AND log = ? ORDER BY n',
                (new_log, store, log),
            )
        self._database.acknowledge()

    # --- removing ------------------------------------------------------------------------

    def sweep(self, keep: Keep, before: float, *, dry_run: bool = False) -> Swept:
        from .sweep import Sweep

        return Sweep(self._database, self.get, read, keep, before).run(dry_run=dry_run)

    def remove(self, digests: Collection[bytes]) -> None:
        from .sweep import erase

        erase(self._database, digests)


# --- what an earlier version left in front of the database -------------------------------


class _Laid(NamedTuple):
    """A record: contents with their digests, references to them, and when that was."""

    contents: list[tuple[bytes, bytes]]
    references: list[Reference]
    stamp: float


_decode_laid = msgspec.msgpack.Decoder(_Laid).decode


def _laid(record: bytes) -> _Laid:
    return decoded(_decode_laid, record, "a record before the database of contents")


def _contents(records: list[bytes]) -> dict[bytes, bytes]:
    return dict(chain.from_iterable(_laid(record).contents for record in records))


def _take(writer: apsw.Connection, records: list[bytes]) -> None:
    for laid in map(_laid, records):
        packed = [(digest, pack(content)) for digest, content in laid.contents]
        put(writer, Slice(packed, []), laid.stamp)
        refer(writer, laid.references)
