"""A database or a lock that is closed while another thread is at it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.talking import outcome

from backtrail.errors import Closed, SessionBusy
from backtrail.events import SessionInfo
from backtrail.stores import open_store
from backtrail.stores.disk import database
from backtrail.stores.disk.database import Database
from backtrail.stores.disk.locks import FileLock


@pytest.mark.parametrize("step", ["enter", "connect"])
def test_a_store_is_closed_while_a_thread_begins_to_write(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread gets an error, and leaves no file open."""
    store = open_store(f"sqlite:///{tmp_path}/x.db")
    inside, go = threading.Event(), threading.Event()
    place, name = (Database, "enter") if step == "enter" else (database, "connect")
    real = getattr(place, name)

    def slow(*given: Any) -> Any:
        result = real(*given)
        inside.set()
        go.wait()
        return result

    monkeypatch.setattr(place, name, slow)
    reported: list[object] = []
    thread = threading.Thread(
        target=lambda: reported.append(outcome(lambda: store.create(SessionInfo(id="s"))))
    )
    thread.start()
    inside.wait()
    store.close()
    go.set()
    thread.join()
    assert [type(error) for error in reported] == [Closed]
    assert files_of(tmp_path) == []


def test_a_store_is_closed_while_a_thread_is_in_its_transaction(tmp_path: Path) -> None:
    """The transaction ends first, and what it wrote is there."""
    store = Database(tmp_path / "x.db", synced=False)
    inside, go = threading.Event(), threading.Event()

    def write() -> None:
        with store.writing() as execute:
            inside.set()
            go.wait()
            execute("INSERT INTO notes VALUES('', '/x', 'text', '')")

    reported: list[object] = []
    threads = [threading.Thread(target=lambda: reported.append(outcome(write)))]
    threads[0].start()
    inside.wait()
    threads.append(threading.Thread(target=store.close))
    threads[1].start()
    time.sleep(0.05)
    go.set()
    for thread in threads:
        thread.join()
    assert reported == [None]
    again = Database(tmp_path / "x.db", synced=False)
    with again.reading() as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("text",)]
    again.close()
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("holder", ["thread", "process"])
def test_a_lock_that_is_shut_while_a_thread_waits_for_it(holder: str, tmp_path: Path) -> None:
    """It ends with `Closed`, whomever it waited for, and opens no file."""
    lock, other = (FileLock(tmp_path / "lock", "it") for _ in range(2))
    held = lock if holder == "thread" else other
    held.acquire()
    reported: list[object] = []
    thread = threading.Thread(target=lambda: reported.append(outcome(lock.acquire)))
    thread.start()
    time.sleep(0.05)
    lock.shut()
    held.release()
    thread.join()
    other.close()
    assert [type(error) for error in reported] == [Closed]
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("end", ["close", "shut"])
def test_a_lock_is_not_closed_under_its_holder(end: str, tmp_path: Path) -> None:
    """Its file stays open and locked until it is released; then it is closed."""
    lock, other = (FileLock(tmp_path / "lock", "it") for _ in range(2))
    lock.acquire()
    number = lock.fd
    thread = threading.Thread(target=getattr(lock, end))
    thread.start()
    thread.join()
    assert os.readlink(f"/proc/self/fd/{number}") == str(tmp_path / "lock")
    with pytest.raises(SessionBusy):
        other.acquire(0)
    lock.release()
    other.acquire(0)
    other.release()
    other.close()
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_store_makes_no_file_after_it_was_closed(kind: str, tmp_path: Path) -> None:
    """A thread that comes too late, as the background may, does not make its lock again."""
    folder = tmp_path / "store"
    folder.mkdir()
    store = open_store(f"file:{folder}" if kind == "file" else f"sqlite:///{folder}/x.db")
    store.create(SessionInfo(id="s"))
    lock: FileLock = store._names if kind == "file" else store._database.lock  # type: ignore[attr-defined]
    store.close()
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(Closed):
        lock.acquire()
    assert list(folder.iterdir()) == []


def files_of(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    names = (f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd"))
    found = (os.readlink(name) for name in names if os.path.lexists(name))
    return sorted(name for name in found if name.startswith(str(folder)))
