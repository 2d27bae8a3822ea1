"""Blob stores: the contract on each, and what is peculiar to the one in SQLite."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import apsw
import pytest
import zstandard

from backtrail.errors import Damaged, NotFound, Unsupported
from backtrail.files.contents import rows as sqlite_rows
from backtrail.files.contents import sqlite
from backtrail.files.contents.blobs import Blobs, Keep, MemoryBlobs, Reference, Swept
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.stores import open_store
from backtrail.testing import BlobContract


class TestMemoryBlobs(BlobContract):
    """In this process only."""

    persistent = False
    shared = False

    def make(self, place: Path) -> Blobs:
        return MemoryBlobs()


class TestSQLiteBlobs(BlobContract):
    """One database."""

    def make(self, place: Path) -> Blobs:
        return SQLiteBlobs(place / "blobs.db")


# --- the contract can fail ---------------------------------------------------------------


class RefreshesNoStamp(SQLiteBlobs):
    """What is there is not written again at all."""

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        given = dict(contents)
        new = given.keys() - self.has(given)
        fresh = [(digest, given[digest]) for digest in new]
        super().write(fresh, references, epoch=epoch, relies=relies, sync=sync)


class BelievesItsDigests(SQLiteBlobs):
    """What is read is not checked."""

    def get(self, digest: bytes) -> bytes:
        with patch.object(sqlite_rows, "checked", lambda digest, content: content):
            return super().get(digest)


class KeepsItsEpoch(SQLiteBlobs):
    """Removals do not show."""

    def epoch(self) -> int:
        return 1


class IgnoresTheEpoch(SQLiteBlobs):
    """References are stored whatever was removed."""

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        super().write(contents, references, sync=sync)


class SweepsByOldMarks(SQLiteBlobs):
    """References made during a sweep are not looked at."""

    def sweep(self, keep: Keep, before: float, *, dry_run: bool = False) -> Swept:
        kept = keep({reference.root for reference in self.references()}, self.get)
        return super().sweep(lambda roots, get: kept, before, dry_run=dry_run)


class RefersFirst(SQLiteBlobs):
    """References are stored before the contents."""

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        super().write([], references, epoch=epoch)
        super().write(contents)


BROKEN: dict[type[SQLiteBlobs], str] = {
    RefreshesNoStamp: "test_sweep_spares_what_was_written_since",
    BelievesItsDigests: "test_get_checks_the_digest",
    KeepsItsEpoch: "test_epoch_moves_when_something_goes",
    IgnoresTheEpoch: "test_write_does_not_refer_to_what_may_be_gone",
    SweepsByOldMarks: "test_sweep_asks_about_references_made_meanwhile",
    RefersFirst: "test_write_that_fails_leaves_no_reference",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda kind: kind.__name__)
def test_contract_finds(broken: type[SQLiteBlobs], tmp_path: Path) -> None:
    """Each broken store breaks the rule it was made for."""

    class Contract(BlobContract):
        def make(self, place: Path) -> Blobs:
            return broken(place / "blobs.db")

    contract = Contract()
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            getattr(contract, BROKEN[broken])(tmp_path)
    finally:
        contract.teardown_method()


# --- the database, behind the store's back -----------------------------------------------


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[SQLiteBlobs]:
    with SQLiteBlobs(tmp_path / "blobs.db") as opened:
        yield opened


def raw(blobs: SQLiteBlobs) -> apsw.Connection:
    """A connection of our own."""
    connection = apsw.Connection(str(blobs.path))
    connection.create_scalar_function("flipped", _flipped, 1)
    return connection


def _flipped(*values: Any) -> bytes:
    content = cast(bytes, values[0])
    return content[:-1] + bytes([content[-1] ^ 16])


def test_rows_hold_what_was_written(blobs: SQLiteBlobs) -> None:
    """Text is compressed, noise is not, and large contents lie in pieces of 1 MB."""
    text, noise, large = b"line of text\n" * 1000, os.urandom(5000), os.urandom(2_500_000)
    for content in (text, noise, large):
        blobs.put(content)
    connection = raw(blobs)
    rows = connection.execute(
        "SELECT digest, size, codec, chunks, content, stamp FROM blobs ORDER BY n"
    ).fetchall()
    assert [row[0] for row in rows] == [sha256(c).digest() for c in (text, noise, large)]
    assert [row[1:4] for row in rows] == [
        (13_000, 1, None),
        (5000, 0, None),
        (2_500_000, 0, 1),
    ]
    assert zstandard.ZstdDecompressor().decompress(cast(bytes, rows[0][4])) == text
    assert rows[1][4:5] + rows[2][4:5] == (noise, b"")
    assert all(abs(cast(float, row[5]) - time.time()) < 10 for row in rows)
    pieces = connection.execute("SELECT content FROM chunks ORDER BY key").fetchall()
    assert [len(cast(bytes, piece)) for (piece,) in pieces] == [1 << 20, 1 << 20, 402_848]
    assert b"".join(cast(bytes, piece) for (piece,) in pieces) == large
    assert connection.execute("SELECT count(*) FROM pending").get == 0
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    assert connection.execute("PRAGMA auto_vacuum").get == 2
    connection.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_many_are_packed_as_one_is(blobs: SQLiteBlobs, at_once: bool) -> None:
    """Together or one by one, short, long, random or empty: each row is as if written alone."""
    some = [b"", b"short", b"text " * 50, os.urandom(900), bytes(200_000)]
    contents = [bytes(content) + str(n).encode() for n in range(60) for content in some]
    with patch.object(sqlite_rows, "_at_once", lambda: at_once):
        assert list(sqlite_rows.pack_all(contents)) == [
            sqlite_rows.pack(content) for content in contents
        ]
        blobs.write([(sha256(content).digest(), content) for content in contents])
    assert len(list(blobs.digests())) == len(set(contents)) > 2 * sqlite_rows.ROWS
    assert all(blobs.get(sha256(content).digest()) == content for content in contents)


def test_many_at_once_refresh_what_is_there(blobs: SQLiteBlobs) -> None:
    """Two writers may store the same: rows that another was faster with get a new stamp."""
    contents = [str(n).encode() for n in range(3 * sqlite_rows.ROWS + 1)]
    given = [(sha256(content).digest(), content) for content in contents]
    blobs.write(given)
    raw(blobs).execute("UPDATE blobs SET stamp = 1")
    with patch.object(SQLiteBlobs, "has", lambda self, digests: set()):
        blobs.write(given)
    assert raw(blobs).execute("SELECT count(*) FROM blobs WHERE stamp > 1").get == len(given)


def test_has_works_without_arrays(blobs: SQLiteBlobs) -> None:
    """A build of SQLite without them gives the same answers."""
    digests = {blobs.put(b"%d" % n) for n in range(50)}
    asked = digests | {os.urandom(32) for _ in range(50)}
    assert blobs.has(asked) == digests
    with patch.object(sqlite_rows, "_ARRAYS", False):
        assert blobs.has(asked) == digests


def test_files_are_private(blobs: SQLiteBlobs) -> None:
    """Only the user can read them."""
    blobs.put(b"secret")
    for path in blobs.path.parent.glob("blobs.db*"):
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_other_databases_are_refused(tmp_path: Path) -> None:
    """A store of events is not a store of blobs, nor the other way round."""
    open_store(f"sqlite:///{tmp_path}/events.db").close()
    SQLiteBlobs(tmp_path / "blobs.db").close()
    with pytest.raises(Unsupported, match="another program"):
        SQLiteBlobs(tmp_path / "events.db")
    with pytest.raises(Unsupported, match="another program"):
        open_store(f"sqlite:///{tmp_path}/blobs.db")


DAMAGE = {
    "content": "UPDATE blobs SET content = zeroblob(length(content))",
    "a flipped bit": "UPDATE blobs SET content = flipped(content)",
    "cut short": "UPDATE blobs SET content = substr(content, 1, 9)",
    "size": "UPDATE blobs SET size = size + 1",
    "a huge size": "UPDATE blobs SET size = 1 << 60",
    "a negative size": "UPDATE blobs SET size = -1",
    "codec": "UPDATE blobs SET codec = 1 - codec",
    "unknown codec": "UPDATE blobs SET codec = 9",
}


@pytest.mark.parametrize("kind", ["text", "noise", "large"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_costs_one_blob(blobs: SQLiteBlobs, damage: str, kind: str) -> None:
    """A damaged blob is `Damaged`, reported by `verify`, and the others are fine."""
    content = {
        "text": b"line of text\n" * 500,
        "noise": os.urandom(700),
        "large": os.urandom(200_000),
    }[kind]
    digest = blobs.put(content)
    others = [blobs.put(b"other %d" % n) for n in range(5)] + [blobs.put(os.urandom(100_000))]
    connection = raw(blobs)
    query = DAMAGE[damage]
    if kind == "large" and "SET content" in query:
        query = query.replace("blobs", "chunks") + " WHERE key = 1 << 20"
    else:
        query += " WHERE n = 1"
    connection.execute(query)
    assert connection.changes() == 1
    connection.close()
    with pytest.raises(Damaged, match=digest.hex()):
        blobs.get(digest)
    assert [found for found, _ in blobs.verify()] == [digest]
    for other in others:
        blobs.get(other)


def test_lost_piece_is_damage(blobs: SQLiteBlobs) -> None:
    """A large content of which a piece is gone is `Damaged`."""
    digest = blobs.put(os.urandom(3_000_000))
    connection = raw(blobs)
    connection.execute("DELETE FROM chunks WHERE key = (1 << 20) + 1")
    connection.close()
    with pytest.raises(Damaged, match="bytes are there"):
        blobs.get(digest)


def test_damage_in_the_file_costs_one_blob(tmp_path: Path) -> None:
    """Bytes of one content overwritten in the file itself: the others can be read."""
    contents = [os.urandom(40_000) for _ in range(30)]
    with SQLiteBlobs(tmp_path / "blobs.db") as blobs:
        digests = [blobs.put(content) for content in contents]
        connection = raw(blobs)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()
    data = bytearray((tmp_path / "blobs.db").read_bytes())
    at = data.index(contents[7][20_000:20_100])
    data[at : at + 100] = bytes(100)
    (tmp_path / "blobs.db").write_bytes(data)
    with SQLiteBlobs(tmp_path / "blobs.db") as blobs:
        with pytest.raises(Damaged, match=digests[7].hex()):
            blobs.get(digests[7])
        assert [digest for digest, _ in blobs.verify()] == [digests[7]]
        blobs.remove([digests[7]])
        assert blobs.put(contents[7]) == digests[7]
        assert list(blobs.verify()) == []


def test_removed_contents_leave_no_trace(blobs: SQLiteBlobs) -> None:
    """After `remove` no file of the store holds a byte of them, however they went before."""
    swept = [b"swept-secret-%d-" % n + os.urandom(30) for n in range(300)]
    small = [b"small-secret-%d-" % n + os.urandom(30) for n in range(300)]
    large = b"large-secret" + os.urandom(2_400_000) + b"large-secret"
    kept = [blobs.put(os.urandom(3000)) for _ in range(20)]
    blobs.write([(sha256(c).digest(), c) for c in [*swept, *small, large]])
    old = [sha256(content).digest() for content in swept]
    rest = {*kept, *(sha256(c).digest() for c in [*small, large])}
    assert blobs.sweep(lambda roots, get: rest, 4e9).blobs == len(old)
    blobs.remove([sha256(content).digest() for content in [*small, large]])
    for path in blobs.path.parent.glob("blobs.db*"):
        data = path.read_bytes()
        for word in (b"swept-secret", b"small-secret", b"large-secret", large[5000:5030]):
            assert word not in data, (path, word)
    assert set(blobs.digests()) == set(kept)
    assert list(blobs.verify()) == []


def test_sweep_takes_pieces_of_dead_writers(blobs: SQLiteBlobs) -> None:
    """Pieces that were never finished go, once they are old."""
    connection = raw(blobs)
    connection.execute("INSERT INTO pending VALUES(5, 1000.0), (6, ?)", (time.time(),))
    for key in (5 << 20, (5 << 20) + 1, 6 << 20):
        connection.execute("INSERT INTO chunks VALUES(?, zeroblob(1000000))", (key,))
    blobs.sweep(lambda roots, get: (), time.time() - 60)
    assert connection.execute("SELECT n FROM pending").fetchall() == [(6,)]
    assert connection.execute("SELECT key >> 20 FROM chunks").fetchall() == [(6,)]
    connection.close()


def test_a_large_write_survives_losing_its_pieces(blobs: SQLiteBlobs) -> None:
    """A sweep that takes a slow writer for dead only makes it begin again."""
    large = os.urandom(7 << 20)
    real = sqlite_rows.goes_on
    calls = []

    def swept_once(*args: Any) -> bool:
        calls.append(args)
        if len(calls) == 2:
            # So it looks to a writer whose pieces a sweep removed just before.
            args[0]("DELETE FROM pending")
        return real(*args)

    with patch.object(sqlite, "goes_on", swept_once):
        digest = blobs.put(large)
    assert len(calls) > 3
    assert blobs.get(digest) == large


def test_files_shrink_when_blobs_go(blobs: SQLiteBlobs) -> None:
    """Free pages are given back to the disk."""
    keep = blobs.put(b"keep")
    for n in range(30):
        blobs.write([(sha256(c).digest(), c) for c in [os.urandom(300_000 + n)]])
    blobs.sweep(lambda roots, get: {keep}, 4e9)
    connection = raw(blobs)
    assert connection.execute("PRAGMA freelist_count").get == 0
    assert cast(int, connection.execute("PRAGMA page_count").get) < 20
    connection.close()


def test_readers_are_not_disturbed_by_a_sweep(blobs: SQLiteBlobs) -> None:
    """A content is read as a whole, or is not there."""
    large = os.urandom(3 << 20)
    digest = sha256(large).digest()
    seen = {"whole": 0, "gone": 0}
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                assert blobs.get(digest) == large
                seen["whole"] += 1
            except NotFound:
                seen["gone"] += 1

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        blobs.put(large)
        blobs.sweep(lambda roots, get: (), 4e9)
    done.set()
    reader.join()
    assert seen["whole"] and seen["gone"]
