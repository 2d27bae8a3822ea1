"""Capture: contents as they were at one moment, stored once, and never believed too early."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from pathlib import Path

import pytest

from backtrail.errors import Conflict, StoreFailed
from backtrail.files.contents.blobs import MemoryBlobs, Reference
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.trees import flatten
from backtrail.files.workspace import reader as module
from backtrail.files.workspace.index import Index
from backtrail.files.workspace.reader import Capture
from backtrail.files.workspace.scan import Scanner
from backtrail.files.workspace.verdicts import Limits
from tests.files.scanning import Site, plainly, settle, truth


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


class Watched(MemoryBlobs):
    """Says what is written, and fails when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.slices: list[int] = []
        self.synced: list[bool] = []
        self.under_way = self.most = 0
        self.delay = 0.0
        self.failing = False
        self.later = False
        self.guard = threading.Lock()

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        contents = list(contents)
        size = sum(len(content) for _, content in contents)
        with self.guard:
            self.slices.append(size)
            self.synced.append(sync)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        time.sleep(self.delay)
        with self.guard:
            self.under_way -= 1
        if self.failing and (sync is False or not self.later):
            raise StoreFailed("no space left")
        super().write(contents, references, epoch=epoch, relies=relies, sync=sync)


def import_all(
    site: Site, blobs: MemoryBlobs, limits: Limits | None = None
) -> tuple[bytes, Capture]:
    capture = Capture(blobs)
    site.index.epoch = blobs.epoch()
    with site.opened() as fd:
        digest = Scanner(site.index, capture).scan(fd)
    return digest, capture


def test_what_waits(site: Site) -> None:
    """`pending` until it is stored and synced; nothing waits where nothing changed."""
    (site / "a").write_text("x")
    digest, capture = import_all(site, site.blobs)
    before = capture.pending
    assert not site.blobs.has([digest])
    capture.finish([Reference("s", "l", digest)])
    assert (before, capture.pending) == (True, False)
    assert list(site.blobs.references()) == [Reference("s", "l", digest)]
    assert not import_all(site, site.blobs)[1].pending


def test_each_content_is_stored_once(site: Site) -> None:
    """However many files have it, and however often it is read."""
    for name in "abc":
        (site / name).write_text("same")
    blobs = Watched()
    _, capture = import_all(site, blobs)
    capture.finish()
    assert capture.written == 2
    _, capture = import_all(site, blobs)
    assert not capture.pending


def test_a_large_import_goes_in_slices(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads, a bounded number at a time, and synced at the end only."""
    monkeypatch.setattr(module, "_SLICE", 1000)
    for number in range(100):
        (site / f"f{number}").write_bytes(os.urandom(300))
    blobs = Watched()
    blobs.delay = 0.002
    digest, capture = import_all(site, blobs)
    assert capture.pending
    capture.finish()
    assert len(blobs.slices) > 20
    # All but the tree of the root, which is one content.
    assert sorted(blobs.slices)[-2] < 1300
    assert blobs.synced == [False] * (len(blobs.slices) - 1) + [True]
    assert 1 <= blobs.most <= 2
    assert capture.written == 101
    assert plainly(dict(flatten(blobs.get, digest))) == truth(site.root)
    assert not [t for t in threading.enumerate() if t.name.startswith("backtrail-import")]


@pytest.mark.parametrize("limit", [1000, 10**9])
def test_a_store_that_fails_fails_the_scan(
    site: Site, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """In a thread or at the end: no file is called unreadable, and the index is not believed."""
    monkeypatch.setattr(module, "_SLICE", limit)
    for number in range(50):
        (site / f"f{number}").write_bytes(os.urandom(300))
    blobs = Watched()
    blobs.failing = True

    def attempt() -> None:
        _, capture = import_all(site, blobs)
        capture.finish()

    with pytest.raises(StoreFailed, match="no space"):
        attempt()
    assert site.index.doubtful
    assert not site.reasons()
    assert not [t for t in threading.enumerate() if t.name.startswith("backtrail-import")]
    blobs.failing = False
    known = set(site.index.digests())
    site.index.doubt(known - blobs.has(known))
    digest, capture = import_all(site, blobs)
    capture.finish()
    assert plainly(dict(flatten(blobs.get, digest))) == truth(site.root)


def test_a_thread_that_fails_after_the_scan(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last slice is stored in the background; `finish` reports."""
    monkeypatch.setattr(module, "_SLICE", 1000)
    (site / "a").write_bytes(os.urandom(1001))
    blobs = Watched()
    blobs.delay, blobs.failing, blobs.later = 0.1, True, True
    _, capture = import_all(site, blobs)
    assert not site.index.doubtful
    with pytest.raises(StoreFailed, match="no space"):
        capture.finish()
    assert site.index.doubtful


def test_believing_the_index_would_lose_contents(site: Site) -> None:
    """The rule above bites: without doubt, the tree names blobs that were never stored."""
    (site / "a").write_text("x")
    blobs = Watched()
    blobs.failing = True
    digest, capture = import_all(site, blobs)
    with pytest.raises(StoreFailed):
        capture.finish()
    blobs.failing = False
    again, capture = import_all(site, blobs)
    capture.finish()
    assert again == digest
    assert not blobs.has([digest])


# --- collected meanwhile -----------------------------------------------------------------


def test_references_hold_only_what_is_there(site: Site) -> None:
    """Something the tree relies on was removed since the index was believed."""
    (site / "a").write_text("x")
    (site / "b").write_text("y")
    digest = settle(site)
    content = site.paths(digest)[b"a"].value
    (site / "b").write_text("z")
    new, capture = import_all(site, site.blobs)
    site.blobs.remove({content})
    with pytest.raises(Conflict):
        capture.finish([Reference("s", "l", new)])
    assert not list(site.blobs.references())
    assert site.index.doubtful
    known = set(site.index.digests())
    site.index.doubt(known - site.blobs.has(known))
    new, capture = import_all(site, site.blobs)
    capture.finish([Reference("s", "l", new)])
    assert plainly(site.paths(new)) == truth(site.root)


def test_a_collection_of_other_things_does_no_harm(site: Site) -> None:
    """The epoch moved, but all that the tree relies on is there."""
    (site / "a").write_text("x")
    settle(site)
    garbage = site.blobs.put(b"garbage")
    (site / "a").write_text("y")
    new, capture = import_all(site, site.blobs)
    site.blobs.remove({garbage})
    capture.finish([Reference("s", "l", new)])
    assert list(site.blobs.references()) == [Reference("s", "l", new)]


# --- files that do not hold still --------------------------------------------------------


@pytest.fixture
def meddling(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], object]], None]:
    """Does something after each read of a file."""

    def install(meddle: Callable[[int], object]) -> None:
        real = os.read
        count = [0]

        def read(fd: int, size: int) -> bytes:
            content = real(fd, size)
            count[0] += 1
            meddle(count[0])
            return content

        monkeypatch.setattr(os, "read", read)

    return install


def test_a_file_changed_under_the_read_is_read_again(
    site: Site, meddling: Callable[[Callable[[int], object]], None]
) -> None:
    """The numbers that are kept go with the content that is kept."""
    (site / "a").write_text("old")

    def once(count: int) -> None:
        if count == 1:
            (site / "a").write_text("a new one")

    meddling(once)
    digest = site.scan()
    assert site.blobs.get(site.paths(digest)[b"a"].value) == b"a new one"
    assert site.paths(digest)[b"a"].size == 9


def test_a_mode_changed_under_the_read_is_seen(
    site: Site, meddling: Callable[[Callable[[int], object]], None]
) -> None:
    """It is the mode after the read that goes with the numbers."""
    (site / "a").write_text("x")
    meddling(lambda count: (site / "a").chmod(0o711))
    assert site.paths(site.scan())[b"a"].mode == 0o711


def test_a_file_that_never_holds_still_is_one_of_its_states(
    site: Site, meddling: Callable[[Callable[[int], object]], None]
) -> None:
    """And looked at again next time, however late that is."""
    # No time is young enough to be racy by itself.
    site.limits = Limits(granularity=-(10**12))
    (site / "a").write_text("x")
    meddling(lambda count: (site / "a").write_text("x" * (count + 1)))
    found = site.paths(site.scan())[b"a"]
    assert len(site.blobs.get(found.value)) == found.size
    assert site.index.root is not None
    assert site.index.root.files[b"a"].racy


def test_a_file_that_grows_over_the_limit_under_the_read(
    site: Site, meddling: Callable[[Callable[[int], object]], None]
) -> None:
    """It is skipped, and no more than the limit is read at a time."""
    site.limits = Limits(file_size=100)
    (site / "a").write_bytes(b"x" * 90)
    meddling(lambda count: (site / "a").write_bytes(b"x" * (90 + 20 * count)))
    assert site.paths(site.scan())[b"a"].value == b"over 100 bytes"


def test_a_file_that_vanishes_under_the_scan(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone, not unreadable."""
    (site / "a").write_text("x")
    (site / "b").write_text("y")
    real = os.open

    def vanish(path: object, *args: int, **more: int) -> int:
        if path == b"a":
            (site / "a").unlink(missing_ok=True)
        return real(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", vanish)
    assert site.paths(site.scan()).keys() == {b"b"}
    assert site.reasons() == {}
    assert site.scan() == site.fresh()


# --- the real store ----------------------------------------------------------------------


def test_into_sqlite_and_back(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files, small ones, in threads; all of it is there for who opens the store again."""
    monkeypatch.setattr(module, "_SLICE", 100_000)
    (site / "d").mkdir()
    for number in range(60):
        (site / f"d/f{number}").write_bytes(os.urandom(10_000 + number))
    (site / "big").write_bytes(os.urandom(3_000_000))
    with SQLiteBlobs(tmp_path / "blobs.db") as blobs:
        index = Index(blobs.id, blobs.epoch())
        capture = Capture(blobs)
        with site.opened() as fd:
            digest = Scanner(index, capture).scan(fd)
        capture.finish([Reference("s", "l", digest)])
    with SQLiteBlobs(tmp_path / "blobs.db") as blobs:
        assert plainly(dict(flatten(blobs.get, digest))) == truth(site.root)
        big = (site / "big").read_bytes()
        assert blobs.get(sha256(big).digest()) == big
        assert list(blobs.references()) == [Reference("s", "l", digest)]
