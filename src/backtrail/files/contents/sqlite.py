"""Blobs in a SQLite database.

A content is packed (compressed, if that helps) before the write lock is taken. A small one
is a row. A large one is a row and its pieces in `chunks`, which come first, in transactions
of their own, under a number that stands in `pending` until the row is there. A number in
`pending` for long belongs to a writer that died, or to a content that was removed.

A little, as an edit changes it, is laid into a `Tray` first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from ...errors import SessionBusy, StoreFailed
from ...stores.disk import fs
from ...stores.disk.checks import typed, whole_number
from ...stores.disk.database import Database
from ...stores.disk.schema import failure
from ...telemetry import logger
from .blobs import Blobs, Keep, Reference, Swept, checked, missing
from .content_tray import ContentTray, Laid
from .packing import Packed, gathered, is_little, pack_all
from .rows import (
    GET,
    SCHEMA,
    Slice,
    check,
    epoch_in,
    finish,
    goes_on,
    present,
    put,
    read,
    refer,
    stands,
    unpacked,
)

_T = TypeVar("_T")

# Setting the stamp of a row reads all of it, so rows stay small.
_INLINE = 64 << 10
_CHUNK = 1 << 20
_SLICE = 2 << 20


class SQLiteBlobs(Blobs):
    """Contents in one database file, made if it is not there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.realpath(os.path.expanduser(path)))
        self._database = Database(
            self.path, synced=True, idle=self._idle, schema=SCHEMA, first=self._empty_tray
        )
        self._tray = ContentTray(self.path, self._idle)
        # The tray keeps its length, whatever is removed.
        self._names = [str(self.path), f"{self.path}-wal"]
        self._wrote = self._found = False
        self._laid_before = 0
        self._stood: tuple[int, int | None] | None = None
        self.id = self._own_id()

    def _own_id(self) -> str:
        try:
            row = (self._one("SELECT id FROM about"),)
            return cast(str, typed(row, f"the name of {self.path}", str)[0])
        except BaseException:
            self._tray.close()
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
        laid = self._laid(digest)
        if laid is not None:
            return checked(digest, laid)
        return unpacked(digest, self._all(GET, (digest,)))

    def _laid(self, digest: bytes) -> bytes | None:
        """What lies in the tray; what does not is looked for in the database after that."""
        self._database.check_open()
        return self._tray.contents().get(digest)

    def has(self, digests: Collection[bytes]) -> set[bytes]:
        self._database.check_open()
        # Perhaps another process has not synced it yet.
        self._found = True
        laid = self._tray.contents()
        with self._database.reading() as connection:
            return present(connection, digests).union(d for d in digests if d in laid)

    def size(self, digest: bytes) -> int:
        laid = self._laid(digest)
        if laid is not None:
            return len(laid)
        found: int | None = self._one("SELECT size FROM blobs WHERE digest = ?", (digest,))
        if found is None:
            raise missing(digest)
        return whole_number(found, f"the size of the blob `{digest.hex()}`")

    def digests(self) -> Iterator[bytes]:
        self._database.check_open()
        laid = dict.fromkeys(self._tray.contents())
        rows = self._pages("SELECT n, digest FROM blobs")
        named = (typed(row, "the row of a blob", int, bytes) for row in rows)
        return _all_once((digest for _, digest in named), laid)

    def references(self) -> Iterator[Reference]:
        self._database.check_open()
        laid = dict.fromkeys(self._tray.laid().references)
        rows = self._pages('SELECT n, store, log, root FROM "references"')
        whole = (typed(row, "a reference", int, str, str, bytes) for row in rows)
        return _all_once((Reference(store, log, root) for _, store, log, root in whole), laid)

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
        if is_little(first):
            referring = list(references)
            if self._lay(Laid(list(first.items()), referring, time.time()), epoch, relies):
                if sync:
                    self.flush()
                return
            references = referring
        self._wrote = True
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
            with database.writing as execute:
                writer = database.writer()
                put(writer, last, time.time())
                if referring:
                    now = epoch_in(execute)
                    check(writer, now, epoch, relies)
                    check(writer, now, began if earlier else now, earlier)
                    refer(writer, referring)
        if sync:
            database.acknowledge()
            self._found = False

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
        with self._database.writing:
            put(self._database.writer(), ready, time.time())

    def _store_large(self, digest: bytes, packed: Packed) -> bool:
        """Store a content piece by piece; False if a sweep removed pieces meanwhile."""
        content = memoryview(packed.content)
        number = 0
        for start in range(0, len(content), _SLICE):
            with self._database.writing as execute:
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

    def hasten(self) -> None:
        self._tray.hasten()

    def flush(self) -> None:
        self._tray.flush()
        database = self._database
        database.check_open()
        if database.sync is not None and database.sync.dirty:
            self._found = False
            database.flush()

    def close(self) -> None:
        if self._database.closed:
            return
        try:
            if self._tray.holds:
                with self._database.writing:
                    pass
        except (StoreFailed, SessionBusy):
            # There it is safe too.
            logger().warning("contents stay in the tray of %s", self.path, exc_info=True)
        finally:
            try:
                self._tray.close()
            finally:
                self._database.close()

    @property
    def dirty(self) -> bool:
        return self._tray.dirty or self._database.dirty

    def _idle(self) -> None:
        """In the background, after a sync: empty the tray, move the -wal into the database."""
        try:
            self._empty_when_idle()
            self._database.checkpoint()
            self._database.shorten()
        except Exception:
            if not self._database.closed:
                # The thread serves other stores too and must go on.
                logger().exception("the checkpoint of %s failed", self.path)

    # --- the tray ------------------------------------------------------------------------

    def _lay(self, laid: Laid, epoch: int | None, relies: Collection[bytes]) -> bool:
        """Put little into the tray, with references that need no closer look; False if not.

        Who stores once, as a hook does, has nothing of it. And what is in the database, and
        perhaps not on the disk yet, must not come after what refers to it.
        """
        database, tray = self._database, self._tray
        if not self._wrote or self._found or database.dirty:
            return False
        if not (laid.contents or laid.references):
            return True
        writer = database.hold()
        try:
            if not tray.is_ready():
                return False
            if laid.references and (epoch is not None or relies):
                known = tray.generation, epoch
                # Whoever removes something empties the tray first.
                if not (tray.holds and known == self._stood) and not stands(writer, epoch):
                    return False
                self._stood = None
                if tray.lay(laid):
                    self._stood = known
                    return True
            elif tray.lay(laid):
                return True
            self._empty_tray(writer)
            return tray.lay(laid)
        except apsw.Error as error:
            raise failure(error, database.path) from error
        finally:
            database.lock.release()

    def _empty_tray(self, writer: apsw.Connection) -> None:
        """Move all that is in the tray into the database; only for who holds the lock."""
        laid = self._tray.laid()
        if laid.contents or laid.references:
            packed = pack_all([content for _, content in laid.contents])
            ready = list(zip((digest for digest, _ in laid.contents), packed, strict=True))
            with writer:
                put(writer, Slice(ready, []), laid.stamp)
                refer(writer, laid.references)
            sync = self._database.sync
            assert sync is not None
            self._database.writing.ticket = sync.note()
            # On the disk there before it is gone here.
            sync.flush()
            self._tray.clear()

    def _empty_when_idle(self) -> None:
        """Empty the tray, unless somebody goes on laying things there."""
        tray = self._tray
        if tray.sync is None or not tray.holds:
            return
        laid, self._laid_before = self._laid_before, tray.sync.written
        if laid != tray.sync.written:
            tray.sync.later()
            return
        try:
            with self._database.briefly:
                pass
        except SessionBusy:
            tray.sync.later()

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
        from .sweep import Sweep

        laid = self._tray.laid()
        if laid.contents or laid.references:
            with self._database.writing:
                pass
        return Sweep(self._database, self.get, read, keep, before).run(dry_run=dry_run)

    def remove(self, digests: Collection[bytes]) -> None:
        from .sweep import erase

        erase(self._database, digests)
        with self._database.writing:
            # What others laid meanwhile is in the database by now.
            self._tray.wipe()


def _all_once(stored: Iterable[_T], laid: dict[_T, None]) -> Iterator[_T]:
    """What the database has, then what lay in the tray before that was asked."""
    for one in stored:
        laid.pop(one, None)
        yield one
    yield from laid
