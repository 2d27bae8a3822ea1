"""Removing blobs from a SQLite database, a little at a time.

A large content that goes leaves its pieces in `pending`, at stamp 0, and they go in later
transactions; so do those of writers that died. The next sweep goes on where the last
was killed. Free pages are given back in the transaction that frees them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container
from typing import Any

from ...stores.disk.checks import typed
from ...stores.disk.database import Database
from ...stores.disk.schema import Execute
from ..trees import Get
from .blobs import Keep, Swept

_ROWS = 500
_BYTES = 2 << 20
_PIECES = 2

# A waiter for the lock looks again after 2 ms at most.
_PAUSE = 0.003

Read = Callable[[Execute, bytes], bytes]
"""Reads a blob through a given connection."""

_Dead = list[tuple[int, bytes, int, int]]


class Sweep:
    """One sweep: what it may not touch, and how far it is."""

    def __init__(self, database: Database, get: Get, read: Read, keep: Keep, before: float) -> None:
        self._database = database
        self._get = get
        self._keep = keep
        self._before = before
        self._read = read
        self._asked = -1
        self._kept: Container[bytes] = ()

    def run(self, *, dry_run: bool) -> Swept:
        """Look through all blobs, and remove the dead."""
        with self._database.reading() as connection:
            roots = self._new_roots(connection.execute)
        self._kept = self._keep(roots, self._get)
        last, blobs, size = -1, 0, 0
        while page := self._page(last):
            last = page[-1][0]
            dead = [row for row in page if row[1] not in self._kept]
            while dead:
                some, dead = _cut(dead)
                gone = [row[2] for row in some] if dry_run else self._remove(some)
                blobs, size = blobs + len(gone), size + sum(gone)
        if not dry_run:
            drain(self._database, self._before)
        return Swept(blobs, size)

    def _new_roots(self, execute: Execute) -> set[bytes]:
        """The roots of references that `keep` has not seen."""
        query = 'SELECT n, root FROM "references" WHERE n > ? ORDER BY n'
        rows = execute(query, (self._asked,)).fetchall()
        if rows:
            self._asked = rows[-1][0]
        return {typed(row, "a reference", int, bytes)[1] for row in rows}

    def _page(self, last: int) -> _Dead:
        """Some blobs that are old enough: number, digest, size, bytes in the row."""
        with self._database.reading() as connection:
            rows: _Dead = connection.execute(
                "SELECT n, digest, size, length(content) FROM blobs"
                " WHERE n > ? AND stamp < ? ORDER BY n LIMIT 2000",
                (last, self._before),
            ).fetchall()
        for row in rows:
            typed(row, "the row of a blob", int, bytes, int, int)
        return rows

    def _remove(self, dead: _Dead) -> list[int]:
        """One slice; the sizes of those that were dead indeed."""
        sizes: list[int] = []
        with self._database.writing() as execute:
            if roots := self._new_roots(execute):
                self._kept = self._keep(roots, lambda digest: self._read(execute, digest))
            # Free pages go at once, so it costs less to cut them off than to overwrite them.
            execute("PRAGMA secure_delete = FAST").fetchall()
            for number, digest, size, _ in dead:
                if digest in self._kept:
                    continue
                query = "DELETE FROM blobs WHERE n = ? AND digest = ? AND stamp < ?"
                values = (number, digest, self._before)
                if _delete(execute, query, values):
                    sizes.append(size)
            if sizes:
                next_epoch(execute)
                execute("PRAGMA incremental_vacuum").fetchall()
        time.sleep(_PAUSE)
        return sizes


def _cut(dead: _Dead) -> tuple[_Dead, _Dead]:
    """So many that one transaction stays short, and the rest."""
    total = count = 0
    while count < min(_ROWS, len(dead)) and total < _BYTES:
        total += dead[count][3]
        count += 1
    return dead[:count], dead[count:]


def _delete(execute: Execute, query: str, values: tuple[Any, ...]) -> bool:
    """Delete a blob's row; its pieces are pending then."""
    row = execute(f"{query} RETURNING chunks", values).fetchone()
    if row is not None and row[0] is not None:
        execute("INSERT INTO pending(n, stamp) VALUES(?, 0)", (row[0],))
    return row is not None


def next_epoch(execute: Execute) -> None:
    """Indexes made so far are doubtful.

    The time is in it, because a power cut may take back this transaction but not the index
    that was saved after it, and the number must not come again.
    """
    execute("UPDATE about SET epoch = max(epoch + 1, ?)", (time.time_ns() // 1_000_000,))


def drain(database: Database, before: float) -> None:
    """Remove pieces of contents that are gone, or were not finished before that time."""
    while True:
        with database.writing() as execute:
            number = execute("SELECT n FROM pending WHERE stamp < ? LIMIT 1", (before,)).get
            if number is None:
                return
            # From now on their writer knows, should it still be there.
            execute("UPDATE pending SET stamp = 0 WHERE n = ?", (number,))
            rows = execute(
                "DELETE FROM chunks WHERE key IN (SELECT key FROM chunks"
                " WHERE key >= ?1 << 20 AND key < (?1 + 1) << 20 LIMIT ?2) RETURNING key",
                (number, _PIECES),
            ).fetchall()
            if len(rows) < _PIECES:
                execute("DELETE FROM pending WHERE n = ?", (number,))
            execute("PRAGMA incremental_vacuum").fetchall()
        time.sleep(_PAUSE)


def erase(database: Database, digests: Collection[bytes]) -> None:
    """Remove contents so that nothing of them is left in the database or its -wal."""
    with database.writing() as execute:
        execute("PRAGMA secure_delete = ON").fetchall()
        gone = [
            digest
            for digest in digests
            if _delete(execute, "DELETE FROM blobs WHERE digest = ?", (digest,))
        ]
        if gone:
            next_epoch(execute)
    drain(database, 0.5)
    with database.writing() as execute:
        # Older removals may have left them in free pages.
        execute("PRAGMA incremental_vacuum").fetchall()
    database.flush()
    database.erase_wal()
