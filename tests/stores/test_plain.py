"""A store with just the abstract methods: all verbs of a session work on it, files included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backtrail import Session, Store, copy_sessions, open_store
from backtrail.events import Json
from backtrail.files import collect, verify


def handed_on(name: str) -> Callable[..., Json]:
    def call(self: Json, *given: Json, **named: Json) -> Json:
        return getattr(self.behind, name)(*given, **named)

    return call


def plain(place: Path, **more: Json) -> Store:
    """A store that another package makes: twelve methods, and nothing said about itself."""
    methods = {name: handed_on(name) for name in Store.__abstractmethods__}
    kind = type("Plain", (Store,), {**methods, **more})
    made: Store = kind()
    made.behind = open_store(f"sqlite:///{place}/behind.db")  # type: ignore[attr-defined]
    return made


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a").write_bytes(b"one")
    return root


@pytest.mark.parametrize("more", [{}, {"url": "mine:somewhere"}], ids=["unnamed", "url"])
def test_files_go_back(tmp_path: Path, project: Path, data: Path, more: dict[str, Json]) -> None:
    """Also when the store is opened again; two stores do not share a place."""
    with plain(tmp_path, **more) as store, Session.create(store, "s", cwd=project) as s:
        said = s.append({"role": "user", "content": "go"})
        with s.tool("bash"):
            (project / "a").write_bytes(b"two")
        assert s.problems == []
        s.rewind(said)
        assert (project / "a").read_bytes() == b"one"
        s.undo()
        assert (project / "a").read_bytes() == b"two"
    with plain(tmp_path, **more) as again, Session.resume(again, "s") as s:
        s.rewind(said, mode="exact")
        assert (project / "a").read_bytes() == b"one"
        with s.fork(into=tmp_path / "copy") as fork:
            assert (tmp_path / "copy" / "a").read_bytes() == b"one"
            assert fork.problems == []
        assert verify(again) == []
        assert collect(again, grace=0).blobs >= 0
        s.undo()
        assert (project / "a").read_bytes() == b"two"
    (kept,) = (data / "backtrail" / "contents").iterdir()
    assert (kept / "blobs.db").is_file()
    (tmp_path / "other").mkdir()
    other = dict.fromkeys(more, "mine:elsewhere")
    with plain(tmp_path / "other", **other) as store, Session.create(store, cwd=project) as s:
        s.checkpoint("here")
    assert len(list((data / "backtrail" / "contents").iterdir())) == 2


def test_a_place_of_its_own_counts(tmp_path: Path, project: Path, data: Path) -> None:
    """A store that sets `contents` is asked for no other."""
    own = {"contents": tmp_path / "mine", "url": "mine:x"}
    with plain(tmp_path, **own) as store, Session.create(store, "s", cwd=project) as s:
        s.checkpoint("here")
    assert (tmp_path / "mine" / "blobs.db").is_file() and not data.exists()


def test_contents_are_copied_there_and_back(tmp_path: Path, project: Path) -> None:
    """As between any two stores."""
    with open_store(f"sqlite:///{tmp_path}/src.db") as src, plain(tmp_path) as store:
        with Session.create(src, "s", cwd=project) as s:
            s.checkpoint("here")
        (project / "a").write_bytes(b"two")
        assert copy_sessions(src, store).missing == 0
        with Session.resume(store, "s") as s:
            s.rewind("here", mode="exact")
        assert (project / "a").read_bytes() == b"one"
