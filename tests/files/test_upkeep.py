"""Room is made in the background: what was deleted goes by itself, and no caller waits for it."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, open_store
from backtrail.files import collect
from backtrail.stores import due

from ..talking import child

BIG = os.urandom(300_000)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests run in says nothing about collecting."""
    monkeypatch.delenv("BACKTRAIL_COLLECT", raising=False)


def wait_until(holds: Callable[[], bool]) -> None:
    """Return once something holds, which another process brings about."""
    end = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


class Place:
    """A store and its contents, looked at and changed behind its back."""

    def __init__(self, folder: Path, scheme: str) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        lies = folder / "store"
        self.url = f"file:{lies}" if scheme == "file" else f"sqlite:///{lies}.db"
        self.contents = lies / "blobs" if scheme == "file" else Path(f"{lies}.db-files")
        self.note = self.contents / "upkeep"
        self.log = lies / "retention.log" if scheme == "file" else Path(f"{lies}.db-retention.log")

    def work(self, id: str, content: bytes, cwd: Path | None = None) -> None:
        """A session that captures a file."""
        root = cwd or self.root
        root.mkdir(exist_ok=True)
        (root / "big").write_bytes(content)
        with Session.create(self.url, id, cwd=root) as s:
            s.append({"role": "user", "content": "go"})

    def delete(self, id: str) -> None:
        with open_store(self.url) as store:
            store.delete(id)

    def age(self) -> None:
        """Let all contents be written two hours ago."""
        with sqlite3.connect(self.contents / "blobs.db") as database:
            database.execute("UPDATE blobs SET stamp = stamp - 7200")
        database.close()

    def noted(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.note.read_bytes())
        return found

    def come(self) -> None:
        """Let the time come that is noted."""
        row = self.noted()
        row["due"] = {name: [at - 7200 for at in times] for name, times in row["due"].items()}
        row["not_before"] = 0
        self.note.write_text(json.dumps(row))

    def size(self) -> int:
        """The bytes of contents that are there, by their rows.

        A process of its own asks: a second SQLite in this one would, when it closes the file,
        drop the locks of the first.
        """
        return int(child(_SIZE, f"file:{self.contents}/blobs.db?mode=ro"))


_SIZE = """if True:
    import sqlite3, sys
    with sqlite3.connect(sys.argv[1], uri=True, timeout=20) as database:
        print(database.execute("SELECT coalesce(sum(size), 0) FROM blobs").fetchone()[0])
    """


@pytest.fixture(params=["file", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


def full(place: Place) -> None:
    """Contents of a deleted session, old enough, and a time that has come."""
    place.work("gone", BIG)
    place.work("stays", b"small")
    place.delete("gone")
    place.age()
    place.come()


def test_what_was_deleted_goes_by_itself(place: Place) -> None:
    """Once its time has come, and the next session closes; what is needed stays."""
    place.work("gone", BIG)
    place.work("stays", b"small")
    assert not place.note.exists()
    place.delete("gone")
    (moments,) = place.noted()["due"].values()
    assert time.time() + 3500 < moments[0] < time.time() + 3700
    place.age()
    Session.resume(place.url, "stays").close()
    assert place.size() > len(BIG)
    place.come()
    Session.resume(place.url, "stays").close()
    wait_until(lambda: place.size() < len(BIG))
    wait_until(place.log.exists)
    assert json.loads(place.log.read_bytes().splitlines()[-1])["collected"]["sessions"] == ["gone"]
    assert place.noted()["due"] == {}
    (place.root / "big").write_bytes(b"by hand")
    with Session.resume(place.url, "stays") as s:
        s.rewind(next(s.events(kinds=("user_message",))), mode="exact")
    assert (place.root / "big").read_bytes() == b"small"


def test_it_is_begun_once(place: Place) -> None:
    """By the first that comes; if that is killed, by another one ten minutes later."""
    full(place)
    with open_store(place.url) as store:
        # No collection may run while the lock is held, as by another process.
        fd = os.open(place.contents / "upkeep-lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert [due.start(store) for _ in range(3)] == [True, False, False]
        assert place.noted()["not_before"] > time.time() + 500
        assert sum(map(len, place.noted()["due"].values())) == 1
        os.close(fd)
        place.come()
        assert due.start(store)
    wait_until(lambda: place.size() < len(BIG))


def test_a_deletion_meanwhile_is_not_forgotten(place: Place) -> None:
    """A collection that began before it leaves its time as it is."""
    full(place)
    place.work("later", os.urandom(50_000), place.root.parent / "other")
    began = time.time()
    place.delete("later")
    with open_store(place.url) as store:
        due.settled(store, began, full=False)
    (moments,) = place.noted()["due"].values()
    assert [moment > began for moment in moments] == [True]


def test_the_budget_makes_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture stops where the contents of deleted sessions fill it, and goes on after."""
    full(place)
    # Not the deletion, but the lack of room begins it.
    place.note.unlink()
    monkeypatch.setenv("BACKTRAIL_BUDGET", "200000")
    with Session.resume(place.url, "stays") as s:
        (place.root / "new").write_bytes(b"new")
        s.append({"role": "user", "content": "not captured"})
        assert any("budget" in p.detail.lower() for p in s.problems), s.problems
        wait_until(lambda: place.size() < len(BIG))
        wait_until(lambda: not place.noted()["due"])
        event = s.append({"role": "user", "content": "captured"})
        assert "tree" in event.data


def test_a_full_disk_does_not_put_off_a_deletion(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection too early for it makes no room; that is due in its hour all the same."""
    monkeypatch.setenv("BACKTRAIL_BUDGET", "200kB")
    place.work("gone", BIG)
    place.delete("gone")
    ((due_at,),) = place.noted()["due"].values()
    with open_store(place.url) as store:
        assert collect(store).over_budget
    assert place.size() > len(BIG)
    noted = place.noted()
    assert noted["due"][due.name_of(store)] == [due_at]
    assert noted["not_before"] <= due_at


def test_it_can_be_switched_off(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is begun, and `collect` is all there is."""
    full(place)
    monkeypatch.setenv("BACKTRAIL_COLLECT", "off")
    with open_store(place.url) as store:
        assert not due.start(store)
    assert place.noted()["not_before"] == 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"due": 5}', b"\xff" * 99, b"[1]"])
def test_a_torn_note_costs_nothing(place: Place, content: bytes) -> None:
    """It is read as none, and the next deletion writes it anew."""
    place.work("gone", BIG)
    place.note.write_bytes(content)
    with open_store(place.url) as store:
        assert not due.start(store)
        store.delete("gone")
    assert len(place.noted()["due"]) == 1


def test_a_link_in_its_place_is_not_followed(place: Place, tmp_path: Path) -> None:
    """A store may have come with a stranger's project; deleting works all the same."""
    place.work("gone", BIG)
    (tmp_path / "theirs").write_text("untouched")
    place.note.symlink_to(tmp_path / "theirs")
    place.delete("gone")
    assert (tmp_path / "theirs").read_text() == "untouched"


def test_a_pipe_in_its_place_is_not_waited_for(place: Place) -> None:
    """Neither to read the note nor to write it."""
    place.work("gone", BIG)
    place.note.unlink(missing_ok=True)
    os.mkfifo(place.note)
    place.delete("gone")
    with open_store(place.url) as store:
        assert not due.start(store)


def test_killing_it_is_harmless(place: Place) -> None:
    """At any moment; the next one finishes, and the files of others come back as they were."""
    full(place)
    words = [sys.executable, "-m", "backtrail.files.workspace.upkeep", place.url, "", "", ""]
    for wait in (0.05, 0.15, 0.25, 0.3):
        process = subprocess.Popen(words)
        time.sleep(wait)
        process.kill()
        process.wait()
    assert subprocess.run(words, check=False).returncode == 0
    assert place.size() < len(BIG)
    (place.root / "big").write_bytes(b"by hand")
    with Session.resume(place.url, "stays") as s:
        s.rewind(next(s.events(kinds=("user_message",))), mode="exact")
    assert (place.root / "big").read_bytes() == b"small"


def test_a_store_in_memory_begins_nothing() -> None:
    """No other process can open it."""
    with open_store("memory:") as store:
        assert not due.start(store)
