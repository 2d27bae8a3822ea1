"""A store in the directory that is watched over: never captured, never restored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backtrail import Session, SessionInfo, open_store
from backtrail.events import Json
from backtrail.exchange.command import fingerprint
from tests.agent.tooling import context, run

OURS = "a store of ours"


def said(text: str) -> dict[str, Json]:
    """A message of the user."""
    return {"role": "user", "content": text}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that one works in."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "f").write_text("0")
    monkeypatch.chdir(root)
    return root


def not_kept(session: Session) -> dict[str, str]:
    """What the session does not capture, and why."""
    return {path: reason for path, reason, _ in session.not_captured()}


@pytest.mark.parametrize("mode", ["mine", "exact"])
@pytest.mark.parametrize("url", ["file:.", "sqlite:///agent.db"])
def test_going_back_leaves_the_store_in_the_root(root: Path, url: str, mode: str) -> None:
    """The files go back; sessions made since stay, also others'."""
    with Session.open(url, "a", cwd=".") as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}):
            (root / "f").write_text("1")
            (root / "g").write_text("new")
            with Session.open(url, "sub") as sub:
                sub.append(said("acknowledged"))
            session.store.memory(root).write("a note")
        done = session.rewind(begin, mode="exact" if mode == "exact" else "mine")
        assert {file.path: file.action for file in done.files} == {"f": "write", "g": "delete"}
        assert (root / "f").read_text() == "0"
        own = {"sessions", "blobs", "memory", "lock", ".backtrail-store"}
        if url != "file:.":
            own = {"agent.db", "agent.db-lock", "agent.db-files"}
        found = not_kept(session)
        assert own <= found.keys()
        assert set(found.values()) == {OURS}
    with Session.resume(url, "sub") as sub:
        assert [m["content"] for m in sub.messages()] == ["acknowledged"]
    assert open_store(url).memory(root).read() == "a note"


def test_another_store_in_the_root(root: Path, tmp_path: Path) -> None:
    """It is known by its marker, wherever the session itself is kept."""
    with open_store("file:.") as other, open_store(f"sqlite:///{tmp_path}/s.db") as store:
        other.create(SessionInfo(id="first"))
        with Session.create(store, "s", cwd=root) as session:
            begin = session.append(said("one"))
            other.create(SessionInfo(id="second"))
            assert session.rewind(begin, mode="exact").files == []
            assert other.info("second").id == "second"
            assert {"sessions", "lock", ".backtrail-store"} == not_kept(session).keys()


def test_contents_kept_in_the_root(root: Path, tmp_path: Path) -> None:
    """The user's files beside them are watched all the same, and nothing else is."""
    store = open_store(f"sqlite:///{tmp_path}/s.db", blobs=str(root))
    with store, Session.create(store, "s", cwd=root) as session:
        session.append(said("one"))
        with session.tool("sh", {}):
            (root / "lock-file").write_text("mine")
        session.append(said("two"))
        with session.fork(into=tmp_path / "other"):
            assert sorted(os.listdir(tmp_path / "other")) == ["f", "lock-file"]
        found = not_kept(session)
        assert set(found.values()) == {OURS}
        assert {".backtrail-store", "blobs.db", "catalogue.db"} <= found.keys()
        assert [call.files[0].path for turn in session.changes() for call in turn.calls] == [
            "lock-file"
        ]


def test_names_of_a_store_are_free_where_there_is_none(root: Path, tmp_path: Path) -> None:
    """`sessions`, `lock` or `hooks` of one's own are captured as anything else."""
    for name in ("sessions/a", "hooks/b", "lock", "index-1", "blobs/c"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("mine")
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=root) as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}):
            (root / "sessions/a").write_text("changed")
        assert not_kept(session) == {}
        assert [file.path for file in session.rewind(begin).files] == ["sessions/a"]


def test_what_a_store_in_the_root_does_not_take(root: Path) -> None:
    """A folder that only contents would have is the user's where these lie elsewhere."""
    (root / "hooks").mkdir()
    (root / "hooks/x").write_text("mine")
    with Session.open("file:.", "a", cwd=".") as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}):
            (root / "hooks/x").write_text("changed")
        assert [file.path for file in session.rewind(begin).files] == ["hooks/x"]


def test_declared_paths_do_not_reach_into_the_store(root: Path) -> None:
    """A call that names files of the store changes nothing that a rewind would touch."""
    with Session.open("file:.", "a", cwd=".") as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}, paths=["lock", "sessions/a/note", "f"]):
            (root / "lock").write_text("x")
            (root / "sessions/a/note").write_text("x")
            (root / "f").write_text("1")
        assert [file.path for file in session.rewind(begin).files] == ["f"]


def test_a_store_made_where_files_are_watched(root: Path, tmp_path: Path) -> None:
    """It is no change of the call that made it, and stays when that is taken back."""
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=root) as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}), open_store("file:.") as other:
            other.create(SessionInfo(id="o"))
        assert session.rewind(begin, mode="exact").files == []
        assert Session.resume("file:.", "o").id == "o"


def test_a_part_of_a_store_is_not_watched_over(root: Path, tmp_path: Path) -> None:
    """A session that works in a store's own folder captures nothing, and says so."""
    open_store("file:.").close()
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=root / "sessions") as session:
        session.append(said("one"))
        assert "belongs to a store" in session.problems[0].detail


def test_looking_around_in_a_root_with_a_store(root: Path) -> None:
    """Tools and `record` see the user's files, and nothing of the store."""
    with open_store("file:.") as store:
        before = fingerprint(os.fsencode(root))
        store.create(SessionInfo(id="o"))
        assert fingerprint(os.fsencode(root)) == before
        (root / "f").write_text("more")
        assert fingerprint(os.fsencode(root)) != before
        assert run(context(root), "glob", pattern="**/*") == "f"
