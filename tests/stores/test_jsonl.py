"""What is special to the JSONL store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backtrail.events import NewEvent, SessionInfo
from backtrail.stores.jsonl import JSONLStore
from backtrail.stores.jsonl.file import FIRST


def test_purge_finds_copies_beyond_a_session_that_is_gone(tmp_path: Path) -> None:
    """A fork of a fork holds what its grandparent said, also when the parent is deleted."""
    store = JSONLStore(tmp_path)
    store.create(SessionInfo(id="a"))
    (event,) = store.append("a", [NewEvent("x", {"secret": "s3cret"})])
    store.create(SessionInfo(id="b", parent_id="a", relation="fork", fork_seq=1), base=("a", 1))
    store.create(SessionInfo(id="c", parent_id="b", relation="fork", fork_seq=1), base=("b", 1))
    store.delete("b")
    store.purge("a", [event.seq])
    assert [e.data for e in store.read("c")] == [{"purged": True}]
    store.close()


def test_a_session_is_on_the_disk_before_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork's record, its events and their names are synced before its log gets its name."""
    reported: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def noting_sync(fd: int) -> None:
        reported.append(("sync", os.readlink(f"/proc/self/fd/{fd}").removeprefix(f"{tmp_path}/")))
        fsync(fd)

    def noting_rename(source: Path, target: Path) -> None:
        reported.append(("rename", target.name))
        rename(source, target)

    with JSONLStore(tmp_path) as store:
        store.create(SessionInfo("a"))
        store.append("a", [NewEvent("test", {"text": "x" * 3_000_000}) for _ in range(2)])
        monkeypatch.setattr(os, "fsync", noting_sync)
        monkeypatch.setattr(os, "rename", noting_rename)
        store.create(SessionInfo("b", parent_id="a", relation="fork"), base=("a", 2))
        assert [len(event.data["text"]) for event in store.read("b")] == [3_000_000] * 2
    at = reported.index(("rename", "messages.jsonl"))
    before = [name.partition(".jsonl.")[0] for _, name in reported[:at]]
    assert sorted(before[:-1]) == ["sessions/b/.messages", "sessions/b/metadata.json"]
    assert before[-1] == "sessions/b"
    assert reported[at + 1 :] == [("sync", "sessions/b"), ("sync", "sessions")]


def test_a_tail_reads_no_more_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a page had nearly all that was asked for, the next one is not longer."""
    asked: list[int] = []
    pread = os.pread

    def noting_read(fd: int, count: int, at: int) -> bytes:
        asked.append(count)
        return pread(fd, count, at)

    with JSONLStore(tmp_path) as store:
        store.create(SessionInfo("a"))
        for _ in range(10):
            store.append("a", [NewEvent("test", {"text": "x" * 3_000}) for _ in range(20)])
        monkeypatch.setattr(os, "pread", noting_read)
        assert [event.seq for event in store.tail("a", 20)] == list(range(181, 201))
        assert sum(asked) < 3 * FIRST
        assert [event.seq for event in store.tail("a", 150)] == list(range(51, 201))


def test_a_record_from_before_there_were_roots(tmp_path: Path) -> None:
    """Its folder is its root, and stays so until the record says otherwise."""
    folder = os.path.realpath(tmp_path / "somewhere")
    with JSONLStore(tmp_path / "store") as store:
        store.create(SessionInfo(id="old", cwd=folder))
    path = tmp_path / "store" / "sessions" / "old" / "metadata.json"
    fields = json.loads(path.read_text())
    del fields["root"]
    path.write_text(json.dumps(fields))
    with JSONLStore(tmp_path / "store") as store:
        assert store.info("old").root == folder
        assert [info.id for info in store.sessions(cwd=folder)] == ["old"]
