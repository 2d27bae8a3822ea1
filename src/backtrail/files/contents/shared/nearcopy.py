"""This machine's copy of contents that machines share: written through, read first.

It is safe because every read is checked, whatever process stored the bytes. What was erased for
good is dropped here too: before a read, unless the list of it was looked at a moment ago.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import BacktrailError, Damaged, NotFound
from ....stores.disk.fs import failed, replace_file
from ..blobs import Blobs, Keep, Reference, Swept
from ..sqlite import SQLiteBlobs

if TYPE_CHECKING:
    from . import SharedBlobs

BUDGET = 2 << 30
"""Bytes that the copy may take on the disk."""

NAME = "cache.db"
"""The copy, in the folder of a store's contents."""

_FRESH = 0.05
_SLICE = 4 << 20
_AGES = (7 * 24 * 3600.0, 24 * 3600.0, 3600.0, 0.0)


class _AllBut:
    """Everything that is not in a set."""

    def __init__(self, digests: set[bytes]) -> None:
        self._digests = digests

    def __contains__(self, digest: object) -> bool:
        return digest not in self._digests


class CachedContents(Blobs):
    """Shared contents, and those of this machine in front of them."""

    far = True

    def __init__(self, inner: SharedBlobs, folder: Path, budget: int = BUDGET) -> None:
        self._inner = inner
        self._local = SQLiteBlobs(folder / NAME)
        self._mark = folder / "cache-erased"
        self._budget = budget
        self._looked = 0.0
        self._written = 0
        self.id = inner.id
        try:
            self._seen = int(self._mark.read_text())
        except (OSError, ValueError):
            # Nothing in a new copy was ever erased.
            self._seen = -1

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        self._inner.write(self._kept(contents), references, epoch=epoch, relies=relies, sync=sync)

    def _kept(self, contents: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Contents on their way, copied."""
        some: list[tuple[bytes, bytes]] = []
        size = 0
        for one in contents:
            some.append(one)
            size += len(one[1])
            if size >= _SLICE:
                self._keep(some)
                some, size = [], 0
            yield one
        self._keep(some)

    def _keep(self, some: list[tuple[bytes, bytes]]) -> None:
        """Copy contents; what this machine's disk refuses is fetched again when it is needed."""
        if not some:
            return
        try:
            self._local.write(some, sync=False)
            self._written += sum(len(content) for _, content in some)
            if self._written > self._budget // 8:
                self._written = 0
                self._shrink()
        except (OSError, BacktrailError):
            return

    def _shrink(self) -> None:
        for age in _AGES:
            if self._local.used() <= self._budget:
                return
            self._local.sweep(lambda roots, get: (), time.time() - age)

    def get(self, digest: bytes) -> bytes:
        self._drop_erased()
        try:
            return self._local.get(digest)
        except (NotFound, Damaged):
            pass
        content = self._inner.get(digest)
        self._keep([(digest, content)])
        return content

    def fetch(self, digests: Collection[bytes]) -> None:
        self._drop_erased()
        wanted = sorted(set(digests) - self._local.has(digests))
        for at in range(0, len(wanted), 4000):
            some: list[tuple[bytes, bytes]] = []
            size = 0
            for one in self._inner.get_many(wanted[at : at + 4000]):
                some.append(one)
                size += len(one[1])
                if size >= _SLICE:
                    self._keep(some)
                    some, size = [], 0
            self._keep(some)

    def _drop_erased(self, at_once: bool = False) -> None:
        """Drop what was erased for good since the last look."""
        now = time.monotonic()
        if not at_once and now - self._looked < _FRESH:
            return
        seen, erased = self._inner.erased(self._seen)
        self._looked = now
        if seen != self._seen:
            self._local.remove(erased)
            self._seen = seen
            try:
                replace_file(self._mark, str(seen).encode())
            except OSError as error:
                raise failed(error, f"write {self._mark}") from error

    def has(self, digests: Collection[bytes]) -> set[bytes]:
        return self._inner.has(digests)

    def size(self, digest: bytes) -> int:
        return self._inner.size(digest)

    def digests(self) -> Iterator[bytes]:
        return self._inner.digests()

    def references(self) -> Iterator[Reference]:
        return self._inner.references()

    def drop_references(
        self, store: str, log: str | None = None, roots: Collection[bytes] | None = None
    ) -> None:
        self._inner.drop_references(store, log, roots)

    def copy_references(self, store: str, log: str, new_log: str) -> None:
        self._inner.copy_references(store, log, new_log)

    def epoch(self) -> int:
        return self._inner.epoch()

    def sweep(self, keep: Keep, before: float, *, dry_run: bool = False) -> Swept:
        swept, gone = self._inner.swept(keep, before, dry_run=dry_run)
        if gone:
            self._local.sweep(lambda roots, get: _AllBut(gone), time.time() + 1)
        return swept

    def remove(self, digests: Collection[bytes]) -> None:
        self._inner.remove(digests)
        self._local.remove(digests)
        self._drop_erased(at_once=True)

    def verify(self) -> Iterator[tuple[bytes, str]]:
        # What all machines read, not the copy.
        return self._inner.verify()

    def used(self) -> int:
        return self._inner.used()

    def flush(self) -> None:
        self._inner.flush()

    @property
    def dirty(self) -> bool:
        return False

    def close(self) -> None:
        self._inner.close()
        self._local.close()
