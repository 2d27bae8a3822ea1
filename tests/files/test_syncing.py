"""When contents reach the disk: before the files they were read from can change, at the latest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session, open_store
from backtrail.files.workspace.index import Index
from backtrail.stores.disk import sync
from tests.talking import user

CONTENTS = "blobs.db-wal"
LOG = "store.db-wal"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were synced, in order; none is synced in the background."""
    found: list[str] = []
    real = sync.data_sync

    def note(fd: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        real(fd)

    monkeypatch.setattr(sync, "data_sync", note)
    monkeypatch.setattr(sync.background, "add", lambda file: None)
    yield found


def change(session: Session, path: Path, text: str, *, declared: bool = True) -> None:
    with session.tool("edit", paths=[path] if declared else None):
        path.write_text(text)


def test_a_call_ends_without_waiting_for_the_disk(
    session: Session, project: Path, synced: list[str]
) -> None:
    """What it left is in its files, and in the log within the same quarter of a second."""
    change(session, project / "README", "one\n")
    synced.clear()
    change(session, project / "README", "two\n")
    assert synced == [CONTENTS]
    change(session, project / "src" / "main.py", "three\n")
    assert synced == [CONTENTS]


def test_a_call_that_may_change_a_file_waits_until_it_is_safe(
    session: Session, project: Path, synced: list[str]
) -> None:
    """A call that declares other paths need not, one that declares none must."""
    change(session, project / "README", "one\n")
    synced.clear()
    with session.tool("edit", paths=[project / "src" / "main.py"]):
        assert synced == []
    with session.tool("edit", paths=[project / "new"]):
        assert synced == []
    with session.tool("edit", paths=[project / "README"]):
        assert synced == [CONTENTS]
    change(session, project / "README", "two\n")
    synced.clear()
    with session.tool("edit", paths=[project / "src"]):
        assert synced == [CONTENTS]
    change(session, project / "README", "three\n")
    synced.clear()
    with session.tool("bash"):
        assert synced == [CONTENTS]


def test_what_a_person_left_is_safe_before_a_call_begins(
    session: Session, project: Path, synced: list[str]
) -> None:
    """Only this process may have it then."""
    (project / "README").write_text("mine\n")
    with session.tool("edit", paths=[project / "README"]):
        assert synced == [CONTENTS]


def test_a_flush_of_the_log_is_one_of_what_it_names(
    session: Session, project: Path, synced: list[str]
) -> None:
    """Contents first."""
    change(session, project / "README", "one\n")
    synced.clear()
    session.store.flush()
    assert synced == [CONTENTS, LOG]


def test_a_synced_store_syncs_contents(tmp_path: Path, project: Path, synced: list[str]) -> None:
    """With the call that made them, before its event."""
    with (
        open_store(f"sqlite:///{tmp_path}/store.db", durability="synced") as store,
        Session.create(store, "t", cwd=project) as session,
    ):
        session.append(user("begin"))
        synced.clear()
        change(session, project / "README", "one\n")
        assert synced == [CONTENTS, LOG]


def test_the_index_vouches_for_nothing_that_is_not_safe(
    session: Session, project: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is saved after the contents are synced."""
    change(session, project / "README", "one\n")
    real = Index.save

    def save(self: Index, path: Path) -> None:
        assert synced and synced[-1] == CONTENTS
        synced.append("index")
        real(self, path)

    monkeypatch.setattr(Index, "save", save)
    synced.clear()
    session.close()
    assert "index" in synced
