"""Rules of sharing blobs: threads, processes, and a sweep among them."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial
from pathlib import Path

from ...errors import Conflict
from ...files.contents.blobs import Blobs, Reference
from ...files.trees import Get
from ..store.base import child, joined
from ..store.sharing import run
from .base import LATER, BlobContractBase, Roots, blob, named, refer, some

WRITERS, ROUNDS = 4, 25


def group(n: int) -> list[tuple[bytes, bytes]]:
    """Contents that are referred to together, by the first; groups overlap."""
    return [blob(10_000 + n), *some(6, 3 * (n % 20)), blob(500 + n % 3, 100_000)]


def root(n: int) -> bytes:
    """The first content of a group."""
    return blob(10_000 + n)[0]


GROUPS = {root(n): named(group(n)) for n in range(WRITERS * ROUNDS)}


class Groups:
    """A `keep` that knows what belongs to the first content of a group."""

    def __init__(self) -> None:
        self.kept: set[bytes] = set()

    def __call__(self, roots: Collection[bytes], get: Get) -> set[bytes]:
        for first in roots:
            self.kept |= GROUPS[first]
        return self.kept


def relying(blobs: Blobs, writer: int) -> None:
    """Refer to group after group, writing only what is not there yet."""
    for round in range(ROUNDS):
        n = writer * ROUNDS + round
        reference = refer(root(n), f"log-{writer}")
        while True:
            epoch = blobs.epoch()
            there = blobs.has(GROUPS[root(n)])
            new = [(digest, content) for digest, content in group(n) if digest not in there]
            try:
                blobs.write(new, [reference], epoch=epoch, relies=GROUPS[root(n)])
                break
            except Conflict:
                continue


def check_whole(blobs: Blobs, references: Collection[Reference]) -> None:
    """Everything referred to is there and can be read."""
    assert set(blobs.references()) == set(references)
    for reference in references:
        for digest in GROUPS[reference.root]:
            blobs.get(digest)


EVERY = [refer(root(w * ROUNDS + n), f"log-{w}") for w in range(WRITERS) for n in range(ROUNDS)]


class BlobSharingRules(BlobContractBase):
    """Threads and processes."""

    def test_threads_write_the_same(self, tmp_path: Path) -> None:
        """Many threads, through two objects, with contents in common: each is whole."""
        blobs = self.open(tmp_path)
        other = self.second(blobs, tmp_path)
        contents = [*some(300), *some(5, 1000, 3 << 20)]

        def work(n: int) -> None:
            mine = contents[n * 20 :] + contents[: n * 20]
            (other if n % 2 else blobs).write(mine, [refer(mine[0][0], str(n))])

        run(work, WRITERS)
        assert sorted(blobs.digests()) == sorted(named(contents))
        assert len(list(blobs.references())) == WRITERS
        assert list(blobs.verify()) == []

    def test_threads_write_while_others_sweep(self, tmp_path: Path) -> None:
        """A writer that skips what is there and refers to it loses nothing to a sweep."""
        blobs = self.open(tmp_path)
        other = self.second(blobs, tmp_path)
        done = threading.Event()

        def work(n: int) -> None:
            if n < WRITERS:
                relying(blobs, n)
                return
            while not done.is_set():
                other.sweep(Groups(), LATER)
                blobs.write(some(3, 99_000))

        sweeping = threading.Thread(target=work, args=(WRITERS,))
        sweeping.start()
        try:
            run(work, WRITERS)
        finally:
            done.set()
            sweeping.join()
        check_whole(blobs, EVERY)

    def test_processes_write_while_others_sweep(self, tmp_path: Path) -> None:
        """The same between processes."""
        self.need_shared()
        blobs = self.open(tmp_path)

        def work(n: int) -> None:
            with self.make(tmp_path / "place") as own:
                relying(own, n)

        pids = [child(partial(work, n)) for n in range(WRITERS)]
        for _ in range(30):
            blobs.sweep(Groups(), LATER)
            blobs.write(some(3, 99_000))
        assert joined(pids) == [0] * WRITERS
        blobs.sweep(Groups(), LATER)
        check_whole(blobs, EVERY)
        assert set(blobs.digests()) == set().union(*GROUPS.values())

    def test_processes_may_be_forked_from_a_user_of_the_store(self, tmp_path: Path) -> None:
        """A blob store that a forked child inherited works in both, and loses nothing."""
        self.need_shared()
        blobs = self.open(tmp_path)
        blobs.write(some(3))

        def work() -> None:
            for n in range(20):
                blobs.write([blob(100 + n, 2000)], [refer(blob(100 + n, 2000)[0])])
            blobs.close()

        pid = child(work)
        for n in range(20):
            blobs.write([blob(200 + n, 2000)], [refer(blob(200 + n, 2000)[0])])
        assert joined([pid]) == [0]
        assert blobs.sweep(Roots(), LATER).blobs == 3
        assert set(blobs.digests()) == named(some(20, 100, 2000) + some(20, 200, 2000))
        assert list(blobs.verify()) == []
