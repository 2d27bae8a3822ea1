"""The syncer stops acknowledging when its file is gone, and looks without costing the next sync."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import NewEvent, SessionInfo, StoreFailed, open_store
from backtrail.stores.disk.sync import is_removed

NEW = [NewEvent("user_message", {"n": 1})]


@pytest.fixture(params=["by its name", "by its links"])
def asking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to ask; the second is that of systems without /proc."""
    if request.param == "by its links":

        def absent(path: str) -> str:
            raise FileNotFoundError(path)

        monkeypatch.setattr("backtrail.stores.disk.sync.os.readlink", absent)
    yield request.param


@pytest.mark.parametrize("name", ["a", "a (deleted)", "ü \n"])
def test_a_file_is_removed_when_it_has_no_name(tmp_path: Path, asking: str, name: str) -> None:
    """Whatever it is called, wherever it was moved, and not while another name is left."""
    path = tmp_path / name
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert not is_removed(fd)
        path = path.rename(tmp_path / f"{name} moved (deleted)")
        assert not is_removed(fd)
        other = tmp_path / "other"
        os.link(path, other)
        path.unlink()
        assert not is_removed(fd)
        other.unlink()
        assert is_removed(fd)
    finally:
        os.close(fd)


def test_a_removed_database_acknowledges_nothing_more(tmp_path: Path, asking: str) -> None:
    """An append to a database whose files are gone fails, and so does every later one."""
    folder = tmp_path / "data"
    store = open_store(f"sqlite:///{folder}/x.db", durability="synced")
    store.create(SessionInfo("s"))
    store.append("s", NEW)
    shutil.rmtree(folder)
    for _ in range(2):
        with pytest.raises(StoreFailed, match="removed"):
            store.append("s", NEW)
    store.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux shows it by the name")
def test_a_sync_does_not_ask_for_the_times_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fstat` between two writes makes the second sync slower, so there is none."""
    asked: list[int] = []
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        asked.append(fd)
        return real(fd)

    with open_store(f"sqlite:///{tmp_path}/x.db", durability="synced") as store:
        store.create(SessionInfo("s"))
        store.append("s", NEW)
        monkeypatch.setattr("backtrail.stores.disk.sync.os.fstat", fstat)
        for _ in range(5):
            store.append("s", NEW)
        assert not asked
        monkeypatch.undo()
