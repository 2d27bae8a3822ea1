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
from typing import Any, NamedTuple, cast

import apsw

from ..errors import Damaged
from ..stores import files
from ..stores.sqlite_connections import Database, Execute
from ..stores.sqlite_schema import Schema
from ..telemetry import logger
from .blobs import Blobs, Keep, Reference, Swept, checked, damaged, gone, missing
from .packing import Packed, pack, pack_all, unpack
from .sqlite_sweep import Sweep, erase

_FIRST = """
CREATE TABLE blobs(
  n INTEGER PRIMARY KEY, digest BLOB NOT NULL, stamp REAL NOT NULL, size INTEGER NOT NULL,
  codec INTEGER NOT NULL, chunks INTEGER, content BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX blobs_digest ON blobs(digest);
CREATE TABLE chunks(key INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE pending(n INTEGER PRIMARY KEY AUTOINCREMENT, stamp REAL NOT NULL) STRICT;
CREATE TABLE "references"(
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  store TEXT NOT NULL, log TEXT NOT NULL, root BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX references_whole ON "references"(store, log, root);
CREATE TABLE about(id TEXT NOT NULL, epoch INTEGER NOT NULL) STRICT;
INSERT INTO about VALUES(lower(hex(randomblob(16))), 1);
"""

SCHEMA = Schema(0x426B7462, (_FIRST,), "PRAGMA page_size = 8192; PRAGMA auto_vacuum = INCREMENTAL")
"""The database of `SQLiteBlobs` ("Bktb")."""

# Setting the stamp of a row reads all of it, so rows stay small.
_INLINE = 64 << 10
_CHUNK = 1 << 20
_SLICE = 2 << 20

# Every transaction touches many pages of the index, so few and large ones are cheaper.
_GATHERED = 8 << 20

_ROW = "(?, ?, ?, ?, ?, ?)"
_PUT = (
    f"INSERT INTO blobs(stamp, digest, size, codec, chunks, content) VALUES{_ROW}"
    " ON CONFLICT(digest) DO UPDATE SET stamp = excluded.stamp"
)

# Each statement hands the interpreter to another thread, so many rows go by one.
_ROWS = 50
_PUT_MANY = _PUT.replace(_ROW, ", ".join([_ROW] * _ROWS))
_GET = """
SELECT b.size, b.codec, coalesce(c.content, b.content) FROM blobs b
LEFT JOIN chunks c ON c.key >= b.chunks << 20 AND c.key < (b.chunks + 1) << 20
WHERE b.digest = ? ORDER BY c.key
"""
_EPOCH = "SELECT epoch FROM about"

# What a call changes is packed without asking whether it is there, which takes longer.
_LITTLE = 64 << 10

# One query for many digests is four times faster; not every build of apsw has it.
_ARRAYS = "ENABLE_CARRAY" in apsw.compile_options


class _Slice(NamedTuple):
    """What one transaction stores: new contents, and those that seemed to be there.

    A large content is alone in its slice, which becomes several transactions.
    """

    new: list[tuple[bytes, Packed]]
    present: list[tuple[bytes, bytes]]
    large: bool = False

    def digests(self) -> list[bytes]:
        return [digest for digest, _ in self.new] + [digest for digest, _ in self.present]


class SQLiteBlobs(Blobs):
    """Contents in one database file, made if it is not there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.realpath(os.path.expanduser(path)))
        self._database = Database(self.path, synced=True, idle=self._idle, schema=SCHEMA)
        self.id = cast(str, self._one("SELECT id FROM about"))

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        with self._database.reading() as connection:
            return connection.execute(query, values).get

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._database.reading() as connection:
            return cast("list[Any]", connection.execute(query, values).fetchall())

    # --- reading -------------------------------------------------------------------------

    def get(self, digest: bytes) -> bytes:
        return _content(digest, self._all(_GET, (digest,)))

    def has(self, digests: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            return _present(connection, digests)

    def size(self, digest: bytes) -> int:
        found: int | None = self._one("SELECT size FROM blobs WHERE digest = ?", (digest,))
        if found is None:
            raise missing(digest)
        return found

    def digests(self) -> Iterator[bytes]:
        self._database.check_open()
        return (digest for _, digest in self._pages("SELECT n, digest FROM blobs"))

    def references(self) -> Iterator[Reference]:
        self._database.check_open()
        rows = self._pages('SELECT n, store, log, root FROM "references"')
        return (Reference(store, log, root) for _, store, log, root in rows)

    def _pages(self, query: str) -> Iterator[Any]:
        """The rows of a query that begins with `n`; no lock is held between pages."""
        last = -1
        while rows := self._all(f"{query} WHERE n > ? ORDER BY n LIMIT 1000", (last,)):
            last = rows[-1][0]
            yield from rows

    def epoch(self) -> int:
        return cast(int, self._one(_EPOCH))

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
        for name in (str(self.path), f"{self.path}-wal"):
            try:
                total += os.stat(name).st_size
            except FileNotFoundError:
                continue
            except OSError as error:
                raise files.failed(error, f"look at {name}") from error
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
        began, earlier = 0, list[bytes]()
        last = _Slice([], [])
        for ready in self._slices(contents):
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
            last = _Slice([], [])
        if last.new or last.present or referring:
            with database.writing as execute:
                writer = database.writer()
                _put(writer, last)
                if referring:
                    now: int = execute(_EPOCH).get
                    _check(writer, now, epoch, relies)
                    _check(writer, now, began if earlier else now, earlier)
                    _refer(writer, referring)
        if sync:
            database.acknowledge()

    def _slices(self, contents: Iterable[tuple[bytes, bytes]]) -> Iterator[_Slice]:
        """Contents packed, and cut into transactions."""
        for batch in _gathered(contents):
            there = set() if _is_little(batch) else self.has(batch)
            ready, total = _Slice([], [(digest, batch.pop(digest)) for digest in there]), 0
            for digest, packed in zip(batch, pack_all(list(batch.values())), strict=True):
                length = len(packed.content)
                if length > _INLINE:
                    yield _Slice([(digest, packed)], [], large=True)
                    continue
                ready.new.append((digest, packed))
                total += length
                if total >= _SLICE:
                    yield ready
                    ready, total = _Slice([], []), 0
            if ready.new or ready.present:
                yield ready

    def _store(self, ready: _Slice) -> None:
        if ready.large:
            while not self._store_large(*ready.new[0]):
                # A sweep took it for a dead writer's.
                continue
            return
        with self._database.writing:
            _put(self._database.writer(), ready)

    def _store_large(self, digest: bytes, packed: Packed) -> bool:
        """Store a content piece by piece; False if a sweep removed pieces meanwhile."""
        content = memoryview(packed.content)
        number = 0
        for start in range(0, len(content), _SLICE):
            with self._database.writing as execute:
                now = time.time()
                if number == 0:
                    number = execute("INSERT INTO pending(stamp) VALUES(?) RETURNING n", (now,)).get
                elif not _goes_on(execute, number, now):
                    return False
                for at in range(start, min(start + _SLICE, len(content)), _CHUNK):
                    key = number << 20 | at // _CHUNK
                    piece = content[at : at + _CHUNK]
                    execute("INSERT INTO chunks(key, content) VALUES(?, ?)", (key, piece))
                if start + _SLICE >= len(content):
                    _finish(execute, number, digest, packed)
        return True

    def flush(self) -> None:
        self._database.flush()

    def close(self) -> None:
        self._database.close()

    @property
    def dirty(self) -> bool:
        sync = self._database.sync
        return sync is not None and sync.dirty

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
        with self._database.writing as execute:
            if roots is None:
                execute(query, (store, log))
                return
            for root in roots:
                execute(f"{query} AND root = ?3", (store, log, root))

    def copy_references(self, store: str, log: str, new_log: str) -> None:
        with self._database.writing as execute:
            execute(
                'INSERT OR IGNORE INTO "references"(store, log, root) SELECT store, ?, root'
                ' FROM "references" WHERE store = ? AND log = ? ORDER BY n',
                (new_log, store, log),
            )
        self._database.acknowledge()

    # --- removing ------------------------------------------------------------------------

    def sweep(self, keep: Keep, before: float, *, dry_run: bool = False) -> Swept:
        return Sweep(self._database, self.get, _read, keep, before).run(dry_run=dry_run)

    def remove(self, digests: Collection[bytes]) -> None:
        erase(self._database, digests)


def _gathered(contents: Iterable[tuple[bytes, bytes]]) -> Iterator[dict[bytes, bytes]]:
    """Contents in batches, each once."""
    batch: dict[bytes, bytes] = {}
    total = 0
    for digest, content in contents:
        batch[digest] = content
        total += len(content)
        if total >= _GATHERED:
            yield batch
            batch, total = {}, 0
    if batch:
        yield batch


def _is_little(batch: dict[bytes, bytes]) -> bool:
    return len(batch) <= 10 and sum(map(len, batch.values())) <= _LITTLE


# --- in a transaction --------------------------------------------------------------------


def _present(connection: apsw.Connection, digests: Collection[bytes]) -> set[bytes]:
    if _ARRAYS and len(digests) > 10:
        query = "SELECT b.digest FROM carray(?) a CROSS JOIN blobs b ON b.digest = a.value"
        rows = connection.execute(query, (apsw.carray(tuple(digests)),))
    else:
        query = "SELECT digest FROM blobs WHERE digest = ?"
        rows = connection.executemany(query, ((digest,) for digest in digests))
    return {cast(bytes, digest) for (digest,) in rows}


def _put(writer: apsw.Connection, ready: _Slice) -> None:
    now = time.time()
    new = ready.new
    if ready.present:
        touch = "UPDATE blobs SET stamp = ? WHERE digest = ? RETURNING digest"
        rows = writer.executemany(touch, ((now, digest) for digest, _ in ready.present))
        there = {digest for (digest,) in rows}
        # Removed since they were seen.
        new = new + [(d, pack(content)) for d, content in ready.present if d not in there]
    values = [(now, digest, size, codec, None, data) for digest, (size, codec, data) in new]
    whole = len(values) - len(values) % _ROWS
    for at in range(0, whole, _ROWS):
        writer.execute(_PUT_MANY, tuple(chain.from_iterable(values[at : at + _ROWS]))).fetchall()
    writer.executemany(_PUT, values[whole:]).fetchall()


def _check(writer: apsw.Connection, now: int, epoch: int | None, relies: Collection[bytes]) -> None:
    """Whether what was found in an epoch is there now."""
    if epoch == now:
        return
    lost = set(relies) - _present(writer, relies)
    if lost or (epoch is not None and not relies):
        raise gone(lost)


def _refer(writer: apsw.Connection, references: list[Reference]) -> None:
    query = 'INSERT OR IGNORE INTO "references"(store, log, root) VALUES(?, ?, ?)'
    writer.executemany(query, references).fetchall()


def _goes_on(execute: Execute, number: int, now: float) -> bool:
    query = "UPDATE pending SET stamp = ? WHERE n = ? AND stamp > 0 RETURNING n"
    return execute(query, (now, number)).get is not None


def _finish(execute: Execute, number: int, digest: bytes, packed: Packed) -> None:
    """All pieces are there: the row makes them a content, unless somebody was faster."""
    row = (time.time(), digest, packed.size, packed.codec, number, b"")
    if execute(f"{_PUT} RETURNING chunks", row).get == number:
        execute("DELETE FROM pending WHERE n = ?", (number,))
    else:
        execute("UPDATE pending SET stamp = 0 WHERE n = ?", (number,))


def _read(execute: Execute, digest: bytes) -> bytes:
    return _content(digest, execute(_GET, (digest,)).fetchall())


def _content(digest: bytes, rows: list[Any]) -> bytes:
    if not rows:
        raise missing(digest)
    size, codec, content = rows[0]
    if len(rows) > 1:
        content = b"".join(row[2] for row in rows)
    try:
        content = unpack(Packed(size, codec, content))
    except Damaged as error:
        raise damaged(digest, str(error)) from error
    return checked(digest, content)
