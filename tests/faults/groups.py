"""Groups of blobs for the fault tests, and what must be true of them afterwards.

A *group* is a root and the contents it stands for; groups overlap, so that writers find
some of their contents there and skip them. Whoever refers to a root relies on its group.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from functools import cache
from hashlib import sha256
from pathlib import Path

import apsw
from tests.faults.kill import Violation

from backtrail.errors import Conflict, Damaged, NotFound
from backtrail.files.contents.blobs import Blobs, Reference
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.trees import Get

LATER = 4e9

Body = Callable[[Callable[[str], None]], None]
"""What a child does; it is given a way to report."""


@cache
def content(n: int) -> bytes:
    """The n-th content: mostly small, some in pieces, some that cannot be compressed."""
    dice = random.Random(n)
    length = 2_500_000 if n % 40 == 7 else dice.choice([10, 300, 5000, 40_000])
    return b"%d " % n + (dice.randbytes(length) if n % 3 else b"text " * (length // 5))


def root_of(n: int) -> bytes:
    """What stands for a group: the numbers of its contents."""
    dice = random.Random(-n)
    return b"group %d:" % n + b",".join(b"%d" % dice.randrange(400) for _ in range(8))


def numbers(root: bytes) -> list[int]:
    return [int(part) for part in root.partition(b":")[2].split(b",")]


def named(data: bytes) -> bytes:
    return sha256(data).digest()


@cache
def digest_of(n: int) -> bytes:
    """The digest of a content."""
    return named(content(n))


@cache
def know() -> None:
    """Make the contents before children are forked, which would make them holding locks."""
    for n in range(440):
        digest_of(n)


class Groups:
    """A `keep` that reads which contents a root stands for."""

    def __init__(self) -> None:
        self.kept: set[bytes] = set()

    def __call__(self, roots: Collection[bytes], get: Get) -> set[bytes]:
        for root in roots:
            self.kept.add(root)
            self.kept.update(digest_of(n) for n in numbers(get(root)))
        return self.kept


def write_group(blobs: Blobs, n: int, log: str, pause: float = 0.0) -> None:
    """Refer to a group, having written only what was not there a moment before.

    Of each second one all is written, and the root comes by itself, as a little later.
    """
    root = root_of(n)
    parts = {named(data): data for data in [*map(content, numbers(root)), root]}
    while True:
        epoch = blobs.epoch()
        if n % 2:
            blobs.write(parts.items())
            new = [(named(root), root)]
        else:
            there = blobs.has(parts)
            new = [(digest, data) for digest, data in parts.items() if digest not in there]
        time.sleep(pause)
        try:
            blobs.write(new, [Reference("s", log, named(root))], epoch=epoch, relies=parts)
            return
        except Conflict:
            continue


def check(path: Path, acknowledged: Collection[str], where: str) -> None:
    """All that was acknowledged is referred to, all that is referred to is whole."""
    connection = apsw.Connection(str(path))
    found = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    if found != [("ok",)]:
        raise Violation(f"{where}: {found}")
    with SQLiteBlobs(path) as blobs:
        references = list(blobs.references())
        wanted = {named(root_of(int(n))) for n in acknowledged}
        if lost := wanted - {reference.root for reference in references}:
            raise Violation(f"{where}: {len(lost)} references are lost")
        try:
            for reference in references:
                for n in numbers(blobs.get(reference.root)):
                    blobs.get(digest_of(n))
        except (NotFound, Damaged) as error:
            raise Violation(f"{where}: {error}") from error
        if problems := list(blobs.verify()):
            raise Violation(f"{where}: {problems}")
