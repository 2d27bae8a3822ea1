"""What earlier versions left in trays is moved into the databases when they are opened."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import pytest

from backtrail import Session, open_store
from backtrail.errors import Damaged
from backtrail.files import verify
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.trees import digest_of
from backtrail.stores.disk import sync

from .tray_samples import (
    ALL_CONTENTS,
    CONTENTS,
    check_lines,
    contents_in,
    rows,
    tray_of,
    unpack,
)

HEADER = 20


@pytest.mark.parametrize("name", ["blobs", "blobs-moved"])
def test_contents_are_moved(tmp_path: Path, name: str) -> None:
    """At open, once; killed after the commit, the old process left them in both places."""
    database = unpack(name, tmp_path)
    there = 4 if name.endswith("moved") else 1
    assert rows(database, "SELECT count(*) FROM blobs") == [(there,)]
    SQLiteBlobs(database).close()
    assert rows(database, "SELECT count(*) FROM blobs") == [(4,)]
    assert tray_of(database).stat().st_size == HEADER
    tray_of(database).unlink()
    assert contents_in(database) == ALL_CONTENTS


@pytest.mark.parametrize("name", ["catalogue", "catalogue-moved"])
def test_lines_are_moved(tmp_path: Path, name: str) -> None:
    database = unpack(name, tmp_path)
    check_lines(database)
    assert tray_of(database).stat().st_size == HEADER
    tray_of(database).unlink()
    check_lines(database)


def test_a_session_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state of its files is there, also those that only the tray held."""
    monkeypatch.setenv("BACKTRAIL_STATE", str(tmp_path / "state"))
    unpack("session", tmp_path)
    url = f"sqlite:///{tmp_path}/store.db"
    laid = tray_of(tmp_path / "store.db-files" / "blobs.db").read_bytes()
    assert b"edit 2\n" in laid
    with open_store(url) as store:
        assert list(verify(store)) == []
        with Session.open(store, "s") as session:
            moved = session.relocate(tmp_path / "project")
            assert moved is not None
            session.append({"role": "user", "content": "go on"})
            edits = [event for event in session.events() if event.kind == "tool_result"]
            for n, edit in enumerate(edits, 1):
                session.rewind(edit, scope="files")
                assert (tmp_path / "project" / "a.txt").read_text() == f"edit {n}\n"


def test_a_purged_content_leaves_no_trace(tmp_path: Path) -> None:
    database = unpack("blobs", tmp_path)
    assert b"three" in tray_of(database).read_bytes()
    with SQLiteBlobs(database) as blobs:
        blobs.drop_references("store")
        blobs.remove([digest_of(b"three")])
    contents = [path.read_bytes() for path in tmp_path.iterdir()]
    # The name of a reference is gone with it, too.
    assert not any(b"three" in content for content in contents)


def test_the_database_is_synced_before_the_tray_is_emptied(tmp_path: Path) -> None:
    """Otherwise a power cut between the two would take what was acknowledged."""
    database = unpack("blobs", tmp_path)
    order: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, *args: Any) -> Any:
            order.append(f"{name} {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
            return real(fd, *args)

        return call

    with (
        patch.object(sync, "data_sync", noted("sync", sync.data_sync)),
        patch.object(os, "pwrite", noted("write", os.pwrite)),
        patch.object(os, "fsync", noted("fsync", os.fsync)),
        SQLiteBlobs(database),
    ):
        assert order == ["sync blobs.db-wal", "write blobs.db-tray", "fsync blobs.db-tray"]


# --- damage ------------------------------------------------------------------------------


def test_a_damaged_header_hides_nothing(tmp_path: Path) -> None:
    database = unpack("blobs", tmp_path)
    with tray_of(database).open("r+b") as opened:
        opened.write(b"\xff" * HEADER)
    assert contents_in(database) == ALL_CONTENTS


@pytest.mark.parametrize("lost", CONTENTS)
def test_a_damaged_record_hides_no_other(tmp_path: Path, lost: bytes) -> None:
    database = unpack("blobs", tmp_path)
    data = bytearray(tray_of(database).read_bytes())
    data[data.index(lost)] ^= 1
    tray_of(database).write_bytes(data)
    assert contents_in(database)[0] == ALL_CONTENTS[0] - {lost}


def test_a_tray_cut_short_gives_what_it_has(tmp_path: Path) -> None:
    """A crash may have left less than all of it."""
    database = unpack("blobs", tmp_path)
    data = tray_of(database).read_bytes()
    tray_of(database).write_bytes(data[: data.index(b"two") + 1])
    assert contents_in(database)[0] == {b"first", b"one"}


def test_records_of_another_generation_do_not_count(tmp_path: Path) -> None:
    """They were moved, and perhaps removed, before the tray was written again."""
    database = unpack("blobs", tmp_path)
    data = bytearray(tray_of(database).read_bytes())
    data[8:16] = bytes(range(8))
    data[16:20] = struct.pack("<I", crc32(data[:16]))
    tray_of(database).write_bytes(data)
    assert contents_in(database)[0] == {b"first"}


@pytest.mark.parametrize("name", ["blobs", "catalogue"])
def test_a_record_of_a_foreign_shape_is_damage(tmp_path: Path, name: str) -> None:
    """It stays where it is, and is reported at every open."""
    database = unpack(name, tmp_path)
    data = bytearray(tray_of(database).read_bytes())
    head, body = b"BTRC" + bytes(data[8:16]), b"\x93\x01\x02\x03"
    record = head + struct.pack("<II", len(body), crc32(body, crc32(head))) + body
    data[HEADER : HEADER + len(record)] = record
    tray_of(database).write_bytes(data)
    opening: Callable[[Path], object] = SQLiteBlobs if name == "blobs" else Catalogue
    for _ in range(2):
        with pytest.raises(Damaged):
            opening(database)
    assert tray_of(database).read_bytes() == data


# --- where nothing can be written --------------------------------------------------------


def refusing(name: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    """A folder in which no file can be opened for writing."""
    if "-tray" in str(name) and flags & (os.O_RDWR | os.O_WRONLY):
        raise OSError(errno.EROFS, "read-only")
    return REAL_OPEN(name, flags, *args, **kwargs)


REAL_OPEN = os.open


def test_a_read_only_store_shows_what_lies_there(tmp_path: Path) -> None:
    """And it is moved with the first transaction that finds the disk writable."""
    database = unpack("blobs", tmp_path)
    with SQLiteBlobs(database) as other:
        tray_of(database).unlink()
        unpack("blobs", tmp_path / "again")
        (tmp_path / "again" / "blobs.db-tray").rename(tray_of(database))
        other.remove([digest_of(content) for content in CONTENTS])
    with patch.object(os, "open", refusing):
        blobs = SQLiteBlobs(database)
    with blobs:
        for content in CONTENTS:
            digest = digest_of(content)
            assert blobs.get(digest) == content
            assert blobs.size(digest) == len(content)
            assert blobs.has([digest, bytes(32)]) == {digest}
        blobs.drop_references("nobody")
        assert rows(database, "SELECT count(*) FROM blobs") == [(4,)]
        blobs.remove([digest_of(b"one")])
        assert blobs.has([digest_of(b"one")]) == set()


def test_a_read_only_catalogue_shows_what_lies_there(tmp_path: Path) -> None:
    database = unpack("catalogue", tmp_path)
    with patch.object(os, "open", refusing):
        check_lines(database)
    assert tray_of(database).stat().st_size > HEADER
    check_lines(database)
    assert tray_of(database).stat().st_size == HEADER


def test_a_new_store_has_no_tray(tmp_path: Path) -> None:
    with SQLiteBlobs(tmp_path / "blobs.db") as blobs:
        for content in CONTENTS:
            blobs.put(content)
    Catalogue(tmp_path / "catalogue.db").close()
    assert not list(tmp_path.glob("*-tray"))
