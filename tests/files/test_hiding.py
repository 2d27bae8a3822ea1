"""What was captured stays captured: nothing that a call makes hides a folder from a scan."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from backtrail import Session, SessionInfo, open_store
from tests.files.test_own_stores import not_kept, said

PRECIOUS = b"precious\n"
ID = "0" * 32 + "\n\n"


def _marker(src: Path) -> None:
    (src / ".backtrail-store").write_text("")


def _marker_with_id(src: Path) -> None:
    (src / ".backtrail-store").write_text(ID)


def _marker_folder(src: Path) -> None:
    (src / ".backtrail-store").mkdir()


def _forged_store(src: Path) -> None:
    _marker_with_id(src)
    (src / "sessions").mkdir(exist_ok=True)
    (src / "lock").touch()


def _forged_contents(src: Path) -> None:
    _marker(src)
    (src / "blobs.db").write_bytes(b"")


def _real_store(src: Path) -> None:
    with open_store(f"file:{src}") as store:
        store.create(SessionInfo(id="o"))


def _repository(src: Path) -> None:
    subprocess.run(["git", "init", "-q", src], check=True)


def _bare_repository(src: Path) -> None:
    for name in ("objects", "refs"):
        (src / name).mkdir()
    (src / "HEAD").write_text("ref: refs/heads/main\n")


def _git_folder(src: Path) -> None:
    (src / ".git").mkdir()


def _git_file(src: Path) -> None:
    (src / ".git").write_text("gitdir: /nowhere\n")


def _cache_tag(src: Path) -> None:
    (src / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")


def _environment(src: Path) -> None:
    (src / "pyvenv.cfg").write_text("home = /usr\n")


def _tool_beside(src: Path) -> None:
    for name in ("Cargo.toml", "composer.json", "Podfile", "mix.exs"):
        (src.parent / name).write_text("")


def _rules(src: Path) -> None:
    (src.parent / ".backtrailignore").write_text("*\n")
    (src / ".backtrailignore").write_text("*\n")
    (src / ".gitignore").write_text("*\n")


VEILS: list[Callable[[Path], None]] = [
    _marker, _marker_with_id, _marker_folder, _forged_store, _forged_contents, _real_store,
    _repository, _bare_repository, _git_folder, _git_file, _cache_tag, _environment, _tool_beside,
    _rules,
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose names a rule might take for something else."""
    root = tmp_path / "project"
    for folder in ("src", "venv", "target", "vendor", "sessions", "src/sessions", "src/memory"):
        (root / folder).mkdir(parents=True)
        (root / folder / "app.py").write_bytes(PRECIOUS)
    (root / "src/lock").write_bytes(PRECIOUS)
    return root


def _files(root: Path) -> dict[str, bytes]:
    found = {*root.rglob("app.py"), root / "src/lock"}
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.mark.parametrize("declared", [False, True], ids=["shell", "declared"])
@pytest.mark.parametrize("when", ["same call", "earlier call", "before the prompt"])
@pytest.mark.parametrize("veil", VEILS, ids=lambda veil: veil.__name__.strip("_"))
def test_nothing_in_a_folder_hides_it(
    root: Path, tmp_path: Path, veil: Callable[[Path], None], when: str, declared: bool
) -> None:
    """A call that changes captured files is taken back, whatever was put beside them."""
    before = _files(root)
    with Session.create(f"sqlite:///{tmp_path}/a.db", "s", cwd=root) as session:
        session.append(said("one"))
        with session.tool("sh", {}):
            (root / "other").write_text("work")
        if when == "before the prompt":
            veil(root / "src")
        if when == "earlier call":
            with session.tool("sh", {}):
                veil(root / "src")
        begin = session.append(said("two"))
        paths = list(before) if declared else None
        with session.tool("sh", {}, paths=paths):
            if when == "same call":
                veil(root / "src")
            for path in before:
                if path != "src/lock" or veil is not _real_store:
                    (root / path).write_bytes(b"destroyed")
        changed = {file.path for file in session.diff().files}
        session.rewind(begin)
        assert _files(root) == before
        assert set(before) - {"src/lock"} <= changed


@pytest.mark.parametrize("when", ["at first", "later"])
def test_a_lock_file_does_not_hide_a_database(root: Path, tmp_path: Path, when: str) -> None:
    """A project's own database is captured, whatever lies beside it."""
    database = root / "dev.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE t(x)")
        connection.execute("INSERT INTO t VALUES ('precious')")
    connection.close()
    before = database.read_bytes()
    if when == "at first":
        (root / "dev.db-lock").write_text("")
    with Session.create(f"sqlite:///{tmp_path}/a.db", "s", cwd=root) as session:
        begin = session.append(said("one"))
        (root / "dev.db-lock").write_text("")
        with session.tool("sh", {}):
            database.write_bytes(b"destroyed")
            (root / "dev.db-wal").write_bytes(b"written after")
        session.rewind(begin)
        assert database.read_bytes() == before
        assert not (root / "dev.db-wal").exists()


@pytest.mark.parametrize("veil", [_marker, _marker_with_id, _marker_folder])
def test_a_project_that_brings_a_marker(
    root: Path, tmp_path: Path, veil: Callable[[Path], None]
) -> None:
    """A marker that was there before the first scan hides nothing but itself."""
    veil(root / "src")
    before = _files(root)
    with Session.create(f"sqlite:///{tmp_path}/a.db", "s", cwd=root) as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}):
            for path in before:
                (root / path).write_bytes(b"destroyed")
        assert not_kept(session).keys() == {"src/.backtrail-store"}
        session.rewind(begin, mode="exact")
        assert _files(root) == before


def test_files_beside_a_store_are_captured(root: Path, tmp_path: Path) -> None:
    """What looks like a store hides a store's own names, and nothing else in the folder."""
    (root / "data").mkdir()
    (root / "data/app.py").write_bytes(PRECIOUS)
    _real_store(root / "data")
    with Session.create(f"sqlite:///{tmp_path}/a.db", "s", cwd=root) as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}):
            (root / "data/app.py").write_bytes(b"destroyed")
        assert [file.path for file in session.rewind(begin).files] == ["data/app.py"]
        assert (root / "data/app.py").read_bytes() == PRECIOUS
        assert {"data/sessions", "data/.backtrail-store"} <= not_kept(session).keys()


@pytest.mark.parametrize("url", ["file:{}/data", "file:{}/new/data", "sqlite:///{}/x.db"])
@pytest.mark.parametrize("when", ["at first", "in a call"])
def test_real_stores_are_left_out(root: Path, tmp_path: Path, url: str, when: str) -> None:
    """Another session's store in the workspace stays as it is, whenever it was made."""
    url = url.format(root)

    def work(text: str) -> None:
        with Session.open(url, "theirs", cwd=tmp_path / "elsewhere") as theirs:
            theirs.append(said(text))

    (tmp_path / "elsewhere").mkdir()
    if when == "at first":
        work("first")
    with Session.create(f"sqlite:///{tmp_path}/a.db", "s", cwd=root) as session:
        begin = session.append(said("one"))
        with session.tool("sh", {}):
            work("second")
        session.append(said("two"))
        with session.tool("sh", {}):
            work("third")
        assert [file.path for file in session.diff().files if file.path != "new"] == []
        session.rewind(begin, mode="exact")
    said_there = ["first"] if when == "at first" else []
    with Session.resume(url, "theirs") as theirs:
        assert [m["content"] for m in theirs.messages()] == [*said_there, "second", "third"]
