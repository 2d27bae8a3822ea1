"""Blobs: bytes named by their SHA-256. The contract, and the plain implementation.

Besides bytes, a blob store holds *references*: which log of which store relies on which
tree. They are written with the blobs and before the event that names the tree, so whoever
collects garbage reads them and never the logs.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from types import TracebackType
from typing import NamedTuple, Self

from ..errors import Closed, Damaged, NotFound
from ..events import new_id


class Reference(NamedTuple):
    """A log of a store relies on a tree: it may not be collected."""

    store: str
    log: str
    root: bytes


class Blobs(ABC):
    """Where contents live. Many threads and processes may use one."""

    id: str
    """Names this store of blobs; an index made for another is not believed."""

    @abstractmethod
    def write(
        self, contents: Iterable[tuple[bytes, bytes]], references: Iterable[Reference] = ()
    ) -> None:
        """Store contents, given with their digests, and references; all survive a power cut.

        A content that is there already only has its age reset. Large batches become
        several transactions, the references come with the last.
        """

    @abstractmethod
    def get(self, digest: bytes) -> bytes:
        """A content, checked against its digest: `NotFound`, or `Damaged`."""

    @abstractmethod
    def has(self, digests: Collection[bytes]) -> set[bytes]:
        """Which of these are there."""

    @abstractmethod
    def size(self, digest: bytes) -> int:
        """The length of a content; `NotFound` if it is not there."""

    @abstractmethod
    def references(self) -> Iterator[Reference]:
        """What logs rely on."""

    @abstractmethod
    def drop_references(self, store: str, log: str | None = None) -> None:
        """A log, or a whole store, relies on nothing any more."""

    @abstractmethod
    def epoch(self) -> int:
        """How often garbage was collected; an index from another epoch is doubtful."""

    @abstractmethod
    def sweep(self, keep: Collection[bytes], before: float, *, dry_run: bool = False) -> Swept:
        """Remove what is not in `keep` and was last written before that time; a new epoch."""

    @abstractmethod
    def digests(self) -> Iterator[bytes]:
        """Everything there is."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files."""

    # --- derived -------------------------------------------------------------------------

    def put(self, content: bytes) -> bytes:
        """Store one content and return its digest."""
        digest = sha256(content).digest()
        self.write([(digest, content)])
        return digest

    def verify(self) -> Iterator[tuple[bytes, str]]:
        """Read everything; the digests that fail, and how."""
        for digest in self.digests():
            try:
                self.get(digest)
            except (Damaged, NotFound) as error:
                yield digest, str(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Swept(NamedTuple):
    """What a collection removed, or would."""

    blobs: int
    bytes: int


def checked(digest: bytes, content: bytes) -> bytes:
    """Return `content` if the digest is its own."""
    if sha256(content).digest() != digest:
        raise Damaged(f"blob `{digest.hex()}` is damaged: its bytes are not what was stored")
    return content


def missing(digest: bytes) -> NotFound:
    """The error for a blob that is not there."""
    return NotFound(f"no blob `{digest.hex()}` in this store")


class MemoryBlobs(Blobs):
    """Contents in the memory of this process."""

    def __init__(self) -> None:
        self.id = new_id()
        self._lock = threading.Lock()
        self._contents: dict[bytes, tuple[bytes, float]] = {}
        self._references: set[Reference] = set()
        self._epoch = 0
        self._closed = False

    def _open(self) -> None:
        if self._closed:
            raise Closed("this blob store is closed")

    def write(
        self, contents: Iterable[tuple[bytes, bytes]], references: Iterable[Reference] = ()
    ) -> None:
        self._open()
        now = time.time()
        with self._lock:
            for digest, content in contents:
                self._contents[digest] = (bytes(content), now)
            self._references.update(references)

    def get(self, digest: bytes) -> bytes:
        self._open()
        found = self._contents.get(digest)
        if found is None:
            raise missing(digest)
        return checked(digest, found[0])

    def has(self, digests: Collection[bytes]) -> set[bytes]:
        self._open()
        return {digest for digest in digests if digest in self._contents}

    def size(self, digest: bytes) -> int:
        return len(self.get(digest))

    def references(self) -> Iterator[Reference]:
        self._open()
        with self._lock:
            return iter(sorted(self._references))

    def drop_references(self, store: str, log: str | None = None) -> None:
        with self._lock:
            self._references = {
                r
                for r in self._references
                if r.store != store or (log is not None and r.log != log)
            }

    def epoch(self) -> int:
        return self._epoch

    def sweep(self, keep: Collection[bytes], before: float, *, dry_run: bool = False) -> Swept:
        self._open()
        with self._lock:
            dead = [d for d, (_, at) in self._contents.items() if d not in keep and at < before]
            freed = sum(len(self._contents[digest][0]) for digest in dead)
            if not dry_run:
                for digest in dead:
                    del self._contents[digest]
                self._epoch += 1
        return Swept(len(dead), freed)

    def digests(self) -> Iterator[bytes]:
        self._open()
        return iter(list(self._contents))

    def close(self) -> None:
        self._closed = True
