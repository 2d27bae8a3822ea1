"""The tray in front of the blob database: what lies in it is stored like all else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest

from backtrail.errors import Conflict, StoreFailed
from backtrail.files.contents import content_tray, sweep
from backtrail.files.contents.blobs import Reference
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.trees import digest_of
from backtrail.stores.disk import sync as syncing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "blobs.db"


@pytest.fixture
def blobs(path: Path) -> Iterator[SQLiteBlobs]:
    """A store that has written once, as the first content goes into the database."""
    with SQLiteBlobs(path) as opened:
        opened.put(b"first")
        yield opened


def rows(path: Path) -> int:
    """How many contents are in the database."""
    connection = apsw.Connection(str(path))
    count: int = connection.execute("SELECT count(*) FROM blobs").get
    connection.close()
    return count


def file(path: Path) -> Path:
    return path.with_name("blobs.db-tray")


def lay(blobs: SQLiteBlobs, content: bytes, log: str = "log") -> bytes:
    digest = digest_of(content)
    blobs.write([(digest, content)], [Reference("store", log, digest)])
    return digest


def test_a_little_is_laid_into_the_tray(blobs: SQLiteBlobs, path: Path) -> None:
    """It is there for this process and for others, before the database has it."""
    digest = lay(blobs, b"little")
    assert rows(path) == 1
    with SQLiteBlobs(path) as other:
        for one in (blobs, other):
            assert one.get(digest) == b"little"
            assert one.size(digest) == 6
            assert one.has([digest, bytes(32)]) == {digest}
            assert set(one.digests()) == {digest, digest_of(b"first")}
            assert list(one.references()) == [Reference("store", "log", digest)]


def test_each_content_and_reference_is_told_once(blobs: SQLiteBlobs) -> None:
    """What is in the database and in the tray is one thing."""
    reference = Reference("store", "log", digest_of(b"first"))
    blobs.write([], [reference], epoch=blobs.epoch())
    blobs.copy_references("store", "log", "copy")
    lay(blobs, b"first")
    assert sorted(blobs.digests()) == [digest_of(b"first")]
    assert sorted(blobs.references()) == [reference._replace(log="copy"), reference]


def test_what_one_process_moves_the_other_finds(blobs: SQLiteBlobs, path: Path) -> None:
    """A process that saw a content in the tray finds it in the database later."""
    with SQLiteBlobs(path) as other:
        digest = lay(blobs, b"little")
        assert other.get(digest) == b"little"
        other.drop_references("nobody")
        assert rows(path) == 2
        assert blobs.get(digest) == b"little"
        later = lay(blobs, b"later")
        assert other.get(later) == b"later"


def test_closing_empties_the_tray(path: Path) -> None:
    with SQLiteBlobs(path) as opened:
        opened.put(b"first")
        lay(opened, b"little")
    assert rows(path) == 2


def test_a_full_tray_is_emptied(blobs: SQLiteBlobs, path: Path) -> None:
    """However much is laid, all of it is there, and the file keeps its length."""
    contents = [os.urandom(40_000) for _ in range(40)]
    digests = [lay(blobs, content) for content in contents]
    assert file(path).stat().st_size == content_tray.SIZE
    assert [blobs.get(digest) for digest in digests] == contents
    assert rows(path) > 20


def test_who_stores_once_needs_no_tray(path: Path) -> None:
    with SQLiteBlobs(path) as opened:
        lay(opened, b"once")
        assert rows(path) == 1
    assert not file(path).exists()


def test_a_removed_content_leaves_no_trace(blobs: SQLiteBlobs, path: Path) -> None:
    secret = os.urandom(20).hex().encode()
    digest = lay(blobs, secret)
    assert secret in file(path).read_bytes()
    blobs.remove([digest])
    assert not any(secret in part.read_bytes() for part in path.parent.iterdir())
    assert lay(blobs, b"later") in blobs.has([digest_of(b"later")])


def test_erasing_takes_nothing_that_others_lay_meanwhile(
    blobs: SQLiteBlobs, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = lay(blobs, b"secret")
    real = sweep.erase
    with SQLiteBlobs(path) as other:
        other.put(b"first")

        def erase(*args: Any) -> None:
            real(*args)
            lay(other, b"meanwhile")

        monkeypatch.setattr(sweep, "erase", erase)
        blobs.remove([digest])
        assert b"meanwhile" not in file(path).read_bytes()
        assert other.get(digest_of(b"meanwhile")) == b"meanwhile"


def test_references_are_refused_if_something_was_removed(blobs: SQLiteBlobs) -> None:
    """The tray takes no reference to what may be gone."""
    epoch = blobs.epoch()
    blobs.remove([blobs.put(b"gone")])
    root = digest_of(b"root")
    with pytest.raises(Conflict):
        blobs.write([(root, b"root")], [Reference("store", "log", root)], epoch=epoch)
    assert list(blobs.references()) == []


def test_what_others_remove_is_seen_before_the_next_reference(
    blobs: SQLiteBlobs, path: Path
) -> None:
    """Also by who was just told that nothing was removed, and by others' records behind that."""
    epoch = blobs.epoch()

    def refer(log: str) -> None:
        blobs.write([], [Reference("store", log, digest_of(b"first"))], epoch=epoch)

    refer("one")
    refer("two")
    with SQLiteBlobs(path) as other:
        other.drop_references("store", "one")
        other.drop_references("store", "two")
        assert other.sweep(lambda _roots, _get: set(), before=1e12).blobs == 1
        other.put(b"again")
        lay(other, b"behind")
        with pytest.raises(Conflict):
            refer("three")


# --- crashes and damage ------------------------------------------------------------------

DYING = """
import os, sys
from backtrail.files.contents.sqlite import SQLiteBlobs
blobs = SQLiteBlobs(sys.argv[1])
for content in (b"first", b"one", b"two", b"three"):
    blobs.put(content)
os._exit(1)
"""


@pytest.fixture
def left(path: Path) -> Path:
    """A tray with three contents, whose process died."""
    subprocess.run([sys.executable, "-c", DYING, str(path)], check=False)
    assert rows(path) == 1
    return path


def found(path: Path) -> list[bytes]:
    with SQLiteBlobs(path) as opened:
        contents = [opened.get(digest) for digest in opened.digests()]
        # The first transaction moves all of it.
        opened.drop_references("nobody")
        assert {opened.get(digest) for digest in opened.digests()} == set(contents)
    assert rows(path) == len(contents)
    return sorted(contents)


def test_a_dead_process_leaves_its_contents(left: Path) -> None:
    assert found(left) == [b"first", b"one", b"three", b"two"]


def test_another_process_goes_on_behind_them(left: Path) -> None:
    with SQLiteBlobs(left) as opened:
        opened._wrote = True
        opened.put(b"four")
        assert rows(left) == 1
    assert found(left) == [b"first", b"four", b"one", b"three", b"two"]


def test_a_damaged_header_hides_nothing(left: Path) -> None:
    with file(left).open("r+b") as opened:
        opened.write(b"\xff" * 20)
    assert found(left) == [b"first", b"one", b"three", b"two"]


@pytest.mark.parametrize("lost", [b"one", b"two", b"three"])
def test_a_damaged_record_hides_no_other(left: Path, lost: bytes) -> None:
    """Nor is what comes behind it overwritten."""
    data = bytearray(file(left).read_bytes())
    data[data.index(lost)] ^= 1
    file(left).write_bytes(data)
    with SQLiteBlobs(left) as opened:
        opened._wrote = True
        opened.put(b"four")
    assert found(left) == sorted({b"first", b"one", b"two", b"three", b"four"} - {lost})


def test_a_damaged_head_hides_no_other(left: Path) -> None:
    data = bytearray(file(left).read_bytes())
    at = data.index(b"BTRC", data.index(b"one"))
    data[at : at + 20] = bytes(20)
    file(left).write_bytes(data)
    assert found(left) == [b"first", b"one", b"three"]


def test_a_file_cut_short_is_made_whole(left: Path) -> None:
    """A crash may have left less than all of it."""
    data = file(left).read_bytes()
    file(left).write_bytes(data[: data.index(b"two") + 1])
    with SQLiteBlobs(left) as opened:
        opened._wrote = True
        opened.put(b"four")
        assert file(left).stat().st_size == content_tray.SIZE
    assert found(left) == [b"first", b"four", b"one"]


def test_leftovers_of_the_last_round_do_not_count(blobs: SQLiteBlobs, path: Path) -> None:
    """What was moved and removed does not come back from the bytes that are still there."""
    digest = lay(blobs, b"old and long" * 100)
    blobs.drop_references("store")
    blobs.sweep(lambda roots, get: (), 4e9)
    assert b"old and long" in file(path).read_bytes()
    lay(blobs, b"new")
    with SQLiteBlobs(path) as other:
        assert not other.has([digest])
        assert set(other.digests()) == {digest_of(b"new")}


# --- the disk ----------------------------------------------------------------------------


def test_without_room_for_it_the_database_takes_all(blobs: SQLiteBlobs, path: Path) -> None:
    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with patch.object(os, "pwrite", full):
        digest = lay(blobs, b"little")
    assert rows(path) == 2
    assert blobs.get(digest) == b"little"


def test_a_failed_write_is_told_and_does_no_harm(blobs: SQLiteBlobs) -> None:
    one = lay(blobs, b"one")
    real = os.pwrite

    def short(fd: int, data: bytes, at: int) -> int:
        return real(fd, data[: len(data) // 2], at)

    with patch.object(os, "pwrite", short), pytest.raises(StoreFailed, match="space"):
        lay(blobs, b"lost" * 100)
    two = lay(blobs, b"two")
    assert (blobs.get(one), blobs.get(two)) == (b"one", b"two")
    assert not blobs.has([digest_of(b"lost" * 100)])


def test_a_failed_sync_is_told(blobs: SQLiteBlobs) -> None:
    lay(blobs, b"one")

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    with patch.object(syncing, "data_sync", refuse), pytest.raises(StoreFailed, match="tray"):
        lay(blobs, b"two")
    with pytest.raises(StoreFailed, match="tray"):
        lay(blobs, b"three")


def test_a_read_only_store_shows_what_lies_there(left: Path) -> None:
    """Who may only read sees what a dead process left."""
    real = os.open

    def refuse(name: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if str(name).endswith("-tray") and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "read-only")
        return real(name, flags, *args, **kwargs)

    with patch.object(os, "open", refuse), SQLiteBlobs(left) as opened:
        assert opened.get(digest_of(b"two")) == b"two"


def test_the_database_is_synced_before_the_tray_is_emptied(blobs: SQLiteBlobs, path: Path) -> None:
    """Otherwise a power cut between the two would take what was acknowledged."""
    lay(blobs, b"little")
    order: list[str] = []
    sync, write = syncing.data_sync, os.pwrite

    def noted_sync(fd: int) -> None:
        order.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        sync(fd)

    def noted_write(fd: int, data: bytes, at: int) -> int:
        order.append(f"write {at}")
        return write(fd, data, at)

    with patch.object(syncing, "data_sync", noted_sync), patch.object(os, "pwrite", noted_write):
        blobs.drop_references("nobody")
    assert order[:2] == ["sync blobs.db-wal", "write 0"]


def test_a_forked_child_reads_and_writes(blobs: SQLiteBlobs) -> None:
    digest = lay(blobs, b"parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert blobs.get(digest) == b"parent"
            lay(blobs, b"child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert blobs.get(digest_of(b"child")) == b"child"
    assert blobs.get(lay(blobs, b"again")) == b"again"
