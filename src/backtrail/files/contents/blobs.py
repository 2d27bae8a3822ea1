"""Blobs: bytes named by their SHA-256. The contract, and the plain implementation.

Besides bytes, a blob store holds *references*: which log of which store relies on which
tree. They are written with the blobs and before the event that names the tree, so collecting
garbage reads them and never the logs.

Two rules make it safe to skip writing what is there already:

- Everything that removes blobs moves the *epoch*, in the same transaction. A writer that asked
  `has` in one epoch gives that epoch to `write` together with its references: they are stored
  only if nothing was removed since, or if all they rely on is still there.
- A sweep asks, in each transaction that removes, for what the references of that moment
  hold. A reference stored a moment before is honoured, one stored later finds the epoch moved.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Self

from ..._startup.frozen import NamedTuple
from ..._startup.hashing import sha256
from ...errors import Closed, Conflict, Damaged, NotFound
from ...events import new_id
from ...stores.disk import forks
from ..trees import EMPTY, EMPTY_DIGEST, Get


class Reference(NamedTuple):
    """A log of a store relies on a tree: it may not be collected."""

    store: str
    log: str
    root: bytes


class Swept(NamedTuple):
    """What a sweep removed, or would: how many blobs, and how long they were together."""

    blobs: int
    bytes: int


Keep = Callable[[Collection[bytes], Get], Container[bytes]]
"""Given roots, and a way to read blobs: all that may not be removed.

It is called more than once, each time with the roots of references that it has not seen,
and answers for all it has ever been given. After the first time it is called inside a
transaction, so it only reads, and only through what it is given.
"""


class Blobs(ABC):
    """Where contents live. Many threads and processes may use one.

    After `close` every method raises `Closed`; what the disk refuses is `StoreFailed`.
    """

    id: str
    """Names this store of blobs, made once; an index made for another is not believed."""

    far: bool = False
    """Whether contents come across a network, so that `fetch` has something to do."""

    @abstractmethod
    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        """Store contents, given with their digests, and then the references to them.

        All of it survives a power cut when this returns; with `sync=False` only once
        `flush`, or a later write that syncs, has returned. A content that is there already
        only has its stamp set to now. Digests are believed here and checked by `get`.

        Many contents become several transactions, in any order; the references come with
        the last. A process killed before leaves contents that nothing refers to.

        Args:
            epoch: when the caller found that all else the references hold is there.
            relies: what that is. Looked for again if the epoch moved, or if none is given.

        Raises:
            Conflict: something may be gone (the epoch moved and `relies` is empty) or is
                gone; no reference is stored. Ask `has`, write what is missing, try again.
        """

    @abstractmethod
    def get(self, digest: bytes) -> bytes:
        """A content, checked against its digest: `NotFound`, or `Damaged`."""

    @abstractmethod
    def has(self, digests: Collection[bytes]) -> set[bytes]:
        """Which of these are there. To rely on the answer, see `write`."""

    @abstractmethod
    def size(self, digest: bytes) -> int:
        """The length of a content; `NotFound` if it is not there."""

    @abstractmethod
    def digests(self) -> Iterator[bytes]:
        """Everything there is, in no order; what comes or goes meanwhile may be missed."""

    @abstractmethod
    def references(self) -> Iterator[Reference]:
        """What logs rely on, oldest first."""

    @abstractmethod
    def drop_references(
        self, store: str, log: str | None = None, roots: Collection[bytes] | None = None
    ) -> None:
        """A store, one log of it, or a log at some roots, relies on nothing any more.

        A power cut may take the dropping back; the next collection repeats it.
        """

    @abstractmethod
    def copy_references(self, store: str, log: str, new_log: str) -> None:
        """`new_log` relies on all that `log` relies on; survives a power cut."""

    @abstractmethod
    def epoch(self) -> int:
        """A number that grows whenever blobs are removed, never otherwise."""

    @abstractmethod
    def sweep(self, keep: Keep, before: float, *, dry_run: bool = False) -> Swept:
        """Remove what `keep` does not hold and was last written before that time.

        `keep` is asked about every reference there is at the moment of each removal.
        Removal goes in slices, each whole or not at all, so that writers get in between
        and a sweep that is killed has removed some garbage and nothing else.
        """

    @abstractmethod
    def remove(self, digests: Collection[bytes]) -> None:
        """Erase contents, referenced or not, so that no trace stays in any file."""

    @abstractmethod
    def used(self) -> int:
        """The bytes that all this takes on the disk."""

    @abstractmethod
    def flush(self) -> None:
        """Return when everything written so far survives a power cut."""

    @property
    def dirty(self) -> bool:
        """Whether a `flush` may have something to do."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Let go of files. May be repeated."""

    # --- derived -------------------------------------------------------------------------

    def put(self, content: bytes) -> bytes:
        """Store one content and return its digest."""
        digest = sha256(content).digest()
        self.write([(digest, content)])
        return digest

    def fetch(self, digests: Collection[bytes]) -> None:
        """Bring contents near that are about to be read, where they are far; else do nothing."""
        return None

    def verify(self) -> Iterator[tuple[bytes, str]]:
        """Read everything; the digests that fail, and how. Empty: the store as a whole."""
        for digest in self.digests():
            try:
                self.get(digest)
            except Damaged as error:
                yield digest, str(error)
            except NotFound:
                # Removed since it was listed.
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- for implementations -----------------------------------------------------------------


def checked(digest: bytes, content: bytes) -> bytes:
    """Return `content` if the digest is its own."""
    if sha256(content).digest() != digest:
        raise damaged(digest, "its bytes are not what was stored")
    return content


def damaged(digest: bytes, why: str) -> Damaged:
    """The error for a blob that cannot be read as it was."""
    return Damaged(f"blob `{digest.hex()}` is damaged: {why}")


def missing(digest: bytes) -> NotFound:
    """The error for a blob that is not there."""
    return NotFound(f"no blob `{digest.hex()}` in this store")


def gone(digests: Collection[bytes]) -> Conflict:
    """The error for references to what was removed, or may have been."""
    what = "blobs were removed"
    if digests:
        some = next(iter(digests)).hex()
        what = f"{len(digests)} blobs are gone (one is `{some}`)"
    return Conflict(f"{what} since they were found: ask `has` again, and write what is missing")


# --- in memory ---------------------------------------------------------------------------


class CachedBlobs:
    """Fetches blobs and keeps the small ones: trees are asked for again and again."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._kept: dict[bytes, bytes] = {EMPTY_DIGEST: EMPTY}

    def __call__(self, digest: bytes) -> bytes:
        found = self._kept.get(digest)
        if found is None:
            found = self._get(digest)
            self.keep({digest: found})
        return found

    def keep(self, contents: Mapping[bytes, bytes]) -> None:
        """What is stored, and will be asked for."""
        if len(self._kept) > _MOST_KEPT:
            self._kept = {EMPTY_DIGEST: EMPTY}
        for digest, content in contents.items():
            if len(content) < _SMALL:
                self._kept[digest] = content


_MOST_KEPT = 2000
_SMALL = 100_000


class MemoryBlobs(Blobs):
    """Contents in the memory of this process."""

    def __init__(self) -> None:
        self.id = new_id()
        self.after_fork()
        self._contents: dict[bytes, bytes] = {}
        self._stamps: dict[bytes, float] = {}
        self._references: dict[Reference, None] = {}
        self._epoch = 0
        self._closed = False
        forks.register(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()

    def _open(self) -> threading.RLock:
        if self._closed:
            raise Closed("this blob store is closed")
        return self._lock

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        self._open()
        # Outside the lock: the caller's iterator may take long.
        given = [(digest, bytes(content)) for digest, content in contents]
        referring = list(references)
        with self._lock:
            now = time.time()
            for digest, content in given:
                self._contents.setdefault(digest, content)
                self._stamps[digest] = now
            if epoch is None or epoch != self._epoch:
                lost = set(relies) - self._contents.keys()
                if lost or (epoch is not None and not relies):
                    raise gone(lost)
            self._references.update(dict.fromkeys(referring))

    def get(self, digest: bytes) -> bytes:
        self._open()
        found = self._contents.get(digest)
        if found is None:
            raise missing(digest)
        return checked(digest, found)

    def has(self, digests: Collection[bytes]) -> set[bytes]:
        self._open()
        return {digest for digest in digests if digest in self._contents}

    def size(self, digest: bytes) -> int:
        self._open()
        found = self._contents.get(digest)
        if found is None:
            raise missing(digest)
        return len(found)

    def digests(self) -> Iterator[bytes]:
        with self._open():
            return iter(list(self._contents))

    def references(self) -> Iterator[Reference]:
        with self._open():
            return iter(list(self._references))

    def drop_references(
        self, store: str, log: str | None = None, roots: Collection[bytes] | None = None
    ) -> None:
        with self._open():
            for reference in list(self._references):
                if (
                    reference.store == store
                    and (log is None or reference.log == log)
                    and (roots is None or reference.root in roots)
                ):
                    del self._references[reference]

    def copy_references(self, store: str, log: str, new_log: str) -> None:
        with self._open():
            for reference in list(self._references):
                if (reference.store, reference.log) == (store, log):
                    self._references[reference._replace(log=new_log)] = None

    def epoch(self) -> int:
        self._open()
        return self._epoch

    def sweep(self, keep: Keep, before: float, *, dry_run: bool = False) -> Swept:
        with self._open():
            asked = {reference.root for reference in self._references}
            kept = keep(asked, self.get)
            # `keep` may write, and this thread may enter the lock again.
            while new := {reference.root for reference in self._references} - asked:
                kept = keep(new, self.get)
                asked |= new
            dead = [d for d, at in self._stamps.items() if at < before and d not in kept]
            freed = sum(len(self._contents[digest]) for digest in dead)
            if not dry_run:
                self.remove(dead)
        return Swept(len(dead), freed)

    def remove(self, digests: Collection[bytes]) -> None:
        with self._open():
            there = self.has(digests)
            for digest in there:
                del self._contents[digest], self._stamps[digest]
            self._epoch += bool(there)

    def used(self) -> int:
        with self._open():
            return sum(map(len, self._contents.values()))

    def flush(self) -> None:
        self._open()

    def close(self) -> None:
        self._closed = True
