"""What the rules of the blob contract share: opening, and contents to store."""

from __future__ import annotations

import random
from collections.abc import Collection
from hashlib import sha256

from ...files.contents.blobs import Blobs, Reference
from ...files.trees import Get
from ..places import PlaceBase

LATER = 4e9
"""A time after every stamp."""


class BlobContractBase(PlaceBase[Blobs]):
    """The settings and tools of `BlobContract`."""


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
