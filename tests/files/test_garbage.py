"""Collecting garbage: what goes, what stays, and how much may be kept."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.errors import DiskLow, InvalidData, NotFound, StoreFailed
from backtrail.files.contents.blobs import Blobs, MemoryBlobs, Reference
from backtrail.files.contents.garbage import (
    BUDGET,
    Point,
    budget,
    check_budget,
    check_floor,
    default_budget,
    drop,
    free_floor,
    mark_and_sweep,
)
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.trees import Entry, Tree, digest_of, encode_tree

DAY = 24 * 3600.0


@pytest.fixture(params=["memory", "sqlite"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blobs]:
    with MemoryBlobs() if request.param == "memory" else SQLiteBlobs(tmp_path / "b.db") as opened:
        yield opened


def file(blobs: Blobs, content: bytes) -> Entry:
    """A file in a tree."""
    return Entry("file", 0o644, len(content), blobs.put(content))


def tree(blobs: Blobs, entries: Tree) -> bytes:
    """A stored directory."""
    return blobs.put(encode_tree(entries))


class Sample(NamedTuple):
    """A root with a directory in it, and everything it is made of."""

    root: bytes
    inner: bytes
    parts: set[bytes]


def sample(blobs: Blobs, name: bytes) -> Sample:
    """A tree of two levels; `shared` is in each."""
    own, shared = file(blobs, b"own " + name), file(blobs, b"shared")
    inner = tree(blobs, {b"own": own, b"shared": shared})
    top = {
        b"inner": Entry("directory", 0o755, 0, inner),
        b"link": Entry("link", 0o777, 0, b"shared"),
        b"left out": Entry("skipped", 0o644, 9, b"over the limit"),
        b".git": Entry("opaque", 0o755, 0, b""),
        b"name": file(blobs, name),
    }
    root = tree(blobs, top)
    return Sample(root, inner, {root, inner, own.value, shared.value, top[b"name"].value})


def refer(blobs: Blobs, root: bytes, log: str = "log") -> Reference:
    reference = Reference("store", log, root)
    blobs.write([], [reference])
    return reference


# --- what goes ---------------------------------------------------------------------------


def test_what_is_reached_stays(blobs: Blobs) -> None:
    """Trees referred to, and those given, are whole afterwards; the rest is gone."""
    a, b, c = (sample(blobs, name) for name in (b"a", b"b", b"c"))
    loose = blobs.put(b"loose")
    refer(blobs, a.root)
    done = mark_and_sweep(blobs, [b.root], grace=0)
    assert set(blobs.digests()) == a.parts | b.parts
    assert done.blobs == len(c.parts - a.parts) + 1
    assert done.bytes > 0
    assert (done.problems, done.held) == ({}, False)
    assert loose not in set(blobs.digests())
    assert mark_and_sweep(blobs, [b.root], grace=0).blobs == 0


def test_what_dropped_references_held_goes(blobs: Blobs) -> None:
    """What only they relied on goes; one root may have another reference."""
    a, b = sample(blobs, b"a"), sample(blobs, b"b")
    dead = [refer(blobs, a.root, "dead"), refer(blobs, b.root, "dead")]
    alive = refer(blobs, b.root, "alive")
    drop(blobs, dead)
    mark_and_sweep(blobs, grace=0)
    assert list(blobs.references()) == [alive]
    assert set(blobs.digests()) == b.parts


def test_dry_run_reports_the_same_and_changes_nothing(blobs: Blobs) -> None:
    """A dry run counts what references to be dropped would let go of, too."""
    a, b, c = (sample(blobs, name) for name in (b"a", b"b", b"c"))
    pairs = ((a.root, "dead"), (b.root, "dead"), (b.root, "alive"), (c.root, "dead"))
    dead = [ref for ref in [refer(blobs, *pair) for pair in pairs] if ref.log == "dead"]
    before = set(blobs.digests()), list(blobs.references()), blobs.epoch()
    reported = mark_and_sweep(blobs, [c.root], without=dead, grace=0, dry_run=True)
    assert (set(blobs.digests()), list(blobs.references()), blobs.epoch()) == before
    drop(blobs, dead)
    done = mark_and_sweep(blobs, [c.root], grace=0)
    assert (reported.blobs, reported.bytes) == (done.blobs, done.bytes)
    assert set(blobs.digests()) == b.parts | c.parts


def test_only_some_may_go(blobs: Blobs) -> None:
    """Of what nothing relies on, and single contents can be kept."""
    a, b = sample(blobs, b"a"), sample(blobs, b"b")
    refer(blobs, a.root)
    loose, kept = blobs.put(b"loose"), blobs.put(b"kept")
    mark_and_sweep(blobs, [], [kept], only={loose, kept, *a.parts}, grace=0)
    assert set(blobs.digests()) == a.parts | b.parts | {kept}


def test_grace_spares_the_young(blobs: Blobs) -> None:
    """What was written within the grace stays; by default that is long enough to refer."""
    sample(blobs, b"a")
    assert mark_and_sweep(blobs).blobs == 0
    assert mark_and_sweep(blobs, grace=60).blobs == 0
    time.sleep(2.1)
    blobs.put(b"young")
    assert mark_and_sweep(blobs, grace=2).blobs == 5
    assert len(list(blobs.digests())) == 1


def test_a_file_that_looks_like_a_tree(blobs: Blobs) -> None:
    """A content that is a file here and a tree there is followed as a tree."""
    a = sample(blobs, b"a")
    as_file = Entry("file", 0o644, 9, a.inner)
    outer = tree(blobs, {b"copy": as_file, b"inner": Entry("directory", 0o755, 0, a.inner)})
    other = tree(blobs, {b"a copy": as_file})
    mark_and_sweep(blobs, [other, outer], grace=0)
    inner = {a.inner, digest_of(b"own a"), digest_of(b"shared")}
    assert set(blobs.digests()) == {outer, other} | inner


# --- what cannot be read -----------------------------------------------------------------


def test_a_missing_tree_costs_nothing_else(blobs: Blobs) -> None:
    """It is reported; everything else that is reached stays, and the rest goes."""
    a, b = sample(blobs, b"a"), sample(blobs, b"b")
    blobs.put(b"loose")
    for each in (a, b):
        refer(blobs, each.root)
    blobs.remove([a.inner])
    done = mark_and_sweep(blobs, grace=0)
    assert list(done.problems) == [a.inner]
    assert not done.held
    assert set(blobs.digests()) == (a.parts - {a.inner, digest_of(b"own a")}) | b.parts


def test_a_missing_root_is_reported(blobs: Blobs) -> None:
    """A reference to nothing does not stop the collection."""
    b = sample(blobs, b"b")
    refer(blobs, digest_of(b"never stored"))
    refer(blobs, b.root)
    done = mark_and_sweep(blobs, grace=0)
    assert list(done.problems) == [digest_of(b"never stored")]
    assert isinstance(done.problems[digest_of(b"never stored")], NotFound)
    assert set(blobs.digests()) == b.parts


def test_a_damaged_tree_holds_the_sweep(tmp_path: Path) -> None:
    """What it held cannot be known, so nothing goes until nothing refers to it."""
    with SQLiteBlobs(tmp_path / "b.db") as blobs:
        a, b = sample(blobs, b"a"), sample(blobs, b"b")
        blobs.put(b"loose")
        for each in (a, b):
            refer(blobs, each.root, each.root.hex())
        before = set(blobs.digests())
        # With this all of it is in the database.
        blobs.drop_references("nobody")
        connection = apsw.Connection(str(blobs.path))
        query = "UPDATE blobs SET content = zeroblob(length(content)) WHERE digest = ?"
        connection.execute(query, (a.inner,))
        connection.close()
        done = mark_and_sweep(blobs, grace=0)
        assert done.held
        assert list(done.problems) == [a.inner]
        assert (done.blobs, set(blobs.digests())) == (0, before)
        blobs.drop_references("store", a.root.hex())
        done = mark_and_sweep(blobs, grace=0)
        assert not done.held
        assert set(blobs.digests()) == b.parts


def test_a_root_that_is_no_tree_holds_the_sweep(blobs: Blobs) -> None:
    """A reference to something else is reported like damage."""
    refer(blobs, blobs.put(b"not a tree"))
    blobs.put(b"loose")
    done = mark_and_sweep(blobs, grace=0)
    assert done.held
    assert len(done.problems) == 1
    assert len(list(blobs.digests())) == 2


# --- the budget --------------------------------------------------------------------------

NOW = 1_000 * DAY


def point(n: int, days: float, label: str | None = None) -> Point:
    """A point so many days ago; root n holds the blobs n and n + 1, of ten bytes each."""
    root = b"%d" % n
    return Point(root, NOW - days * DAY, label, Reference("s", f"log {n}", root))


def contents(root: bytes) -> list[bytes]:
    return [b"blob %d" % (int(root) + more) for more in (0, 1)]


def holds(root: bytes, walked: set[bytes]) -> list[bytes]:
    if root in walked:
        return []
    walked.add(root)
    return [root, *contents(root)]


def weigh(digest: bytes) -> int:
    return 10 if digest.startswith(b"blob") else 0


def dropped(points: list[Point], limit: int) -> list[str]:
    found = budget(points, limit, holds, weigh, now=NOW)
    return [reference.log for reference in found]


def test_budget_drops_the_oldest_first() -> None:
    """As many of the newest stay as fit; what they share counts once."""
    points = [point(n, 50 - n) for n in range(4)]
    assert dropped(points, 50) == []
    assert dropped(points, 49) == ["log 0"]
    assert dropped(points, 30) == ["log 0", "log 1"]
    assert dropped(points, 0) == ["log 0", "log 1", "log 2", "log 3"]


def test_budget_never_drops_labels_or_the_last_week() -> None:
    """They stay even if they do not fit, and what they hold counts."""
    points = [point(0, 90, "release"), point(10, 80), point(20, 8), point(30, 6.9), point(40, 0)]
    assert dropped(points, 0) == ["log 10", "log 20"]
    assert dropped(points, 79) == ["log 10", "log 20"]
    assert dropped(points, 80) == ["log 10"]
    assert dropped(points, 100) == []


def test_budget_keeps_what_frees_nothing() -> None:
    """A point whose contents stay for another one's sake stays as well."""
    shared = point(5, 90)
    points = [shared, point(7, 70), point(5, 60, "release")]
    assert dropped(points, 0) == ["log 7"]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 60), st.booleans()), max_size=25),
    st.integers(0, 400),
)
def test_budget_fits_or_has_nothing_left_to_drop(
    rows: list[tuple[int, float, bool]], limit: int
) -> None:
    """What stays fits, or is protected; and no more is dropped than is needed."""
    rows.sort(key=lambda row: -row[1])
    points = [point(n, days, "label" if label else None) for n, days, label in rows]
    gone = set(budget(points, limit, holds, weigh, now=NOW))
    protected = {p.reference for p in points if p.label or p.at >= NOW - 7 * DAY}
    assert not gone & protected

    def weight(stay: set[Reference]) -> int:
        return 10 * len({blob for reference in stay for blob in contents(reference.root)})

    stay = {p.reference for p in points} - gone
    assert weight(stay) <= max(limit, weight(protected))
    if gone:
        newest = max((p for p in points if p.reference in gone), key=lambda p: p.at)
        assert weight(stay | {newest.reference}) > limit


# --- the disk ----------------------------------------------------------------------------


def disk(total: int, free: int) -> AbstractContextManager[object]:
    """A disk of so many bytes, in blocks of one."""
    numbers = os.statvfs_result((1, 1, total, free, free, 0, 0, 0, 0, 255))
    return patch.object(os, "statvfs", lambda path: numbers)


def test_default_budget_is_a_share_of_the_disk(tmp_path: Path) -> None:
    """10 GB, or 5 % of a small disk."""
    for total, wanted in ((1 << 40, 10**10), (10**11, 5 * 10**9)):
        with disk(total, total):
            assert default_budget(tmp_path) == wanted


def test_the_budget_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment, in bytes or larger units."""
    for text, wanted in (("1000", 1000), ("2kB", 2000), (" 20 GB", 20 * 10**9), ("1t", 10**12)):
        monkeypatch.setenv(BUDGET, text)
        assert default_budget(tmp_path) == wanted
    for text in ("", "much", "-1", "1.5GB"):
        monkeypatch.setenv(BUDGET, text)
        with pytest.raises(InvalidData, match=BUDGET):
            default_budget(tmp_path)


def test_over_budget_says_what_helps(tmp_path: Path) -> None:
    """Until then nothing is captured."""
    check_budget(10**7, tmp_path, 10**7)
    with pytest.raises(DiskLow, match=r"11 MB.*10 MB.*collect"):
        check_budget(11 * 10**6, tmp_path, 10**7)
    with disk(1 << 40, 1 << 40), pytest.raises(DiskLow):
        check_budget(10**10 + 1, tmp_path)


def test_floor_stops_before_the_disk_is_full(tmp_path: Path) -> None:
    """1 GB, or 2 % of a small disk, stays free; the error says how much there is."""
    for total, floor in ((1 << 40, 10**9), (10 << 30, (10 << 30) // 50)):
        with disk(total, floor):
            assert free_floor(tmp_path) == floor
            assert check_floor(tmp_path) == floor
        with disk(total, floor - 1), pytest.raises(StoreFailed, match="must stay free"):
            check_floor(tmp_path)
    assert check_floor(tmp_path, 0) > 0
    with pytest.raises(StoreFailed):
        check_floor(tmp_path, 1 << 62)
    with pytest.raises(StoreFailed, match="free space"):
        check_floor(tmp_path / "none")


# --- a whole history ---------------------------------------------------------------------


def test_many_states_collected_at_random(blobs: Blobs) -> None:
    """Any subset of references stays whole, whatever is collected and written again."""
    dice = random.Random(5)
    states = [sample(blobs, b"%d" % n) for n in range(20)]
    content = {digest: blobs.get(digest) for digest in blobs.digests()}
    for _ in range(15):
        stay = dice.sample(states, dice.randint(0, 6))
        blobs.drop_references("store")
        for state in stay:
            parts = [(digest, content[digest]) for digest in sorted(state.parts)]
            blobs.write(parts, [Reference("store", os.urandom(3).hex(), state.root)])
        mark_and_sweep(blobs, grace=0)
        assert set(blobs.digests()) == set().union(*(state.parts for state in stay))
