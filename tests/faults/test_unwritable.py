"""Stores that cannot be written to, or whose files are taken away under them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from backtrail import Damaged, Session, StoreFailed, open_store
from backtrail.events import NewEvent, SessionInfo
from backtrail.testing.store.base import child, joined

NOBODY = 65534

URLS = ("file:{}/store", "sqlite:///{}/agent.db")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own that is soon full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("url", URLS, ids=["jsonl", "sqlite"])
def test_a_full_disk_keeps_no_session_from_a_turn(small: Path, url: str) -> None:
    """The lease can be had, and a session that goes on without saving says so."""
    store = open_store(url.format(small))
    with store, Session.create(store, "s", on_error="record") as session:
        session.append({"role": "user", "content": "hi"})
        full = small / "full"
        with full.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        with session.turn("x" * 90000):
            pass
        assert {problem.what for problem in session.problems} == {"not saved"}
        with store.lease("s"):
            pass
        full.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_database_that_may_only_be_read_can_be_looked_at() -> None:
    """Counts and the index are not stored then; what would write is `StoreFailed`."""
    # The folders that tests get are closed to others.
    with TemporaryDirectory() as place:
        _look_as_nobody(Path(place))


def _look_as_nobody(place: Path) -> None:
    url = f"sqlite:///{place}/agent.db"
    with open_store(url) as store, Session.create(store, "s") as session:
        session.append({"role": "user", "content": "hello"})
    subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)

    def look() -> None:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        with open_store(url) as store:
            assert [info.message_count for info in store.sessions()] == [1]
            assert store.info("s").message_count == 1
            assert [hit.session_id for hit in store.search("hello")] == ["s"]
            assert len(list(store.read("s"))) == store.info("s").head
            for call in (store.flush, lambda: store.create(SessionInfo(id="new"))):
                with pytest.raises(StoreFailed):
                    call()

    assert joined([child(look)]) == [0]


def test_a_database_that_was_removed_acknowledges_nothing_more(tmp_path: Path) -> None:
    """What is written to files without a name is lost, so it is not acknowledged for long."""
    store = open_store(f"sqlite:///{tmp_path}/agent.db")
    store.create(SessionInfo(id="s"))
    store.append("s", [NewEvent("note", {})])
    for file in tmp_path.glob("agent.db*"):
        if file.is_file():
            file.unlink()
    store.append("s", [NewEvent("note", {})])
    with pytest.raises(StoreFailed, match="removed"):
        store.flush()
    with pytest.raises(StoreFailed, match="removed"):
        store.append("s", [NewEvent("note", {})])
    store.close()


def test_a_removed_database_is_noticed_in_the_background(tmp_path: Path) -> None:
    """No flush is needed for it."""
    store = open_store(f"sqlite:///{tmp_path}/agent.db")
    store.create(SessionInfo(id="s"))
    for file in tmp_path.glob("agent.db*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(StoreFailed, match="removed"):
        for _ in range(3000):
            store.append("s", [NewEvent("note", {})])
            time.sleep(0.01)
    store.close()


def test_a_log_deleted_by_another_is_no_failure_of_the_disk(tmp_path: Path) -> None:
    """A writer that has such a log open can still flush."""
    url = f"file:{tmp_path}/store"
    with open_store(url) as one, open_store(url) as two:
        one.create(SessionInfo(id="s"))
        one.append("s", [NewEvent("note", {})])
        two.delete("s")
        one.flush()


def test_a_log_that_is_a_pipe_is_damaged(tmp_path: Path) -> None:
    """No call waits for a writer at its other end."""
    with open_store(f"file:{tmp_path}/store") as store:
        store.create(SessionInfo(id="s"))
        os.mkfifo(tmp_path / "store/sessions/s/pipe.jsonl")
        for reverse in (False, True):
            with pytest.raises(Damaged):
                list(store.read("s", log="pipe", reverse=reverse))
        with pytest.raises(Damaged):
            list(store.pages("s", log="pipe"))
        with pytest.raises(StoreFailed):
            store.append("s", [NewEvent("note", {})], log="pipe")
        assert store.logs("s") == ["messages"]
