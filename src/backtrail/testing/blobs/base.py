"""What the rules of the blob contract share: opening, and contents to store."""

from __future__ import annotations

import random
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

import pytest

from ...files.contents.blobs import Blobs, Reference
from ...files.trees import Get

LATER = 4e9
"""A time after every stamp."""


class BlobContractBase:
    """The settings and tools of `BlobContract`."""

    persistent = True
    """Whether opening a place again shows what was written there."""

    shared = True
    """Whether several processes can use one place at a time."""

    def make(self, place: Path) -> Blobs:
        """Open a blob store that keeps its data in `place`."""
        raise NotImplementedError("a blob contract needs `make`")

    # --- tools ---------------------------------------------------------------------------

    def open(self, tmp_path: Path) -> Blobs:
        """A blob store in this test's place; closed when the test ends."""
        place = tmp_path / "place"
        place.mkdir(exist_ok=True)
        blobs = self.make(place)
        self.__dict__.setdefault("_opened", []).append(blobs)
        return blobs

    def second(self, blobs: Blobs, tmp_path: Path) -> Blobs:
        """Another object on the same place; the same one where there is no other."""
        return self.open(tmp_path) if self.persistent else blobs

    def teardown_method(self) -> None:
        """Close what the test opened."""
        for blobs in self.__dict__.pop("_opened", []):
            blobs.close()

    def need_persistent(self) -> None:
        """Skip the test on stores that forget."""
        if not self.persistent:
            pytest.skip("the blob store is not persistent")

    def need_shared(self) -> None:
        """Skip the test on stores that one process has for itself."""
        if not (self.shared and self.persistent):
            pytest.skip("the blob store is not shared between processes")


def blob(n: int, length: int = 0) -> tuple[bytes, bytes]:
    """The n-th content and its digest; from `length` on it cannot be compressed."""
    content = b"content %d" % n + random.Random(n).randbytes(length)
    return sha256(content).digest(), content


def some(count: int, first: int = 0, length: int = 0) -> list[tuple[bytes, bytes]]:
    """Several contents with their digests."""
    return [blob(n, length) for n in range(first, first + count)]


def named(contents: Collection[tuple[bytes, bytes]]) -> set[bytes]:
    """The digests of contents."""
    return {digest for digest, _ in contents}


def refer(digest: bytes, log: str = "log", store: str = "store") -> Reference:
    """A reference to a content, which need not be a tree."""
    return Reference(store, log, digest)


class Roots:
    """A `keep` that holds the roots it is given, and remembers being asked."""

    def __init__(self, also: Collection[bytes] = ()) -> None:
        self.kept = set(also)
        self.calls: list[set[bytes]] = []

    def __call__(self, roots: Collection[bytes], get: Get) -> set[bytes]:
        self.calls.append(set(roots))
        for root in roots:
            get(root)
        self.kept.update(roots)
        return self.kept


def nothing(roots: Collection[bytes], get: Get) -> set[bytes]:
    """A `keep` that holds nothing at all."""
    return set()
