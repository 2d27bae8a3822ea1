"""Verifying: what is damaged or missing is named, and hides nothing else."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from backtrail import Damaged, Session, open_store
from backtrail.cli import main
from backtrail.files import verify
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.depot import opened
from backtrail.files.trees import digest_of
from backtrail.session.filepoints import last_tree

from .conftest import shell


def spoil(store_db: Path, *digests: bytes) -> None:
    """Change stored bytes behind the store's back."""
    settle(store_db)
    connection = apsw.Connection(f"{store_db}-files/blobs.db")
    for digest in digests:
        connection.execute(
            "UPDATE blobs SET content = zeroblob(length(content)) WHERE digest = ?", (digest,)
        )
    connection.close()


def settle(store_db: Path) -> None:
    """Have all of it in the database."""
    with SQLiteBlobs(f"{store_db}-files/blobs.db") as blobs:
        blobs.drop_references("nobody")


def lose(store_db: Path, digest: bytes) -> None:
    connection = apsw.Connection(f"{store_db}-files/blobs.db")
    connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
    connection.close()


MAIN = digest_of(b"print('hello')\n")
README = digest_of(b"one\ntwo\nthree\n")


def test_a_sound_store_has_no_problems(url: str, project: Path) -> None:
    """Also one that never had files; and looking makes none, but for a copy of those elsewhere."""
    with open_store(url) as store:
        assert verify(store) == []
        elsewhere = url.startswith("postgresql:")
        assert store.contents is None or elsewhere or not store.contents.exists()
        with Session.create(store, "s", cwd=project) as session:
            session.append({"role": "user", "content": "begin"})
            shell(session, "echo more >> README", project)
            assert verify(store) == []


def test_a_damaged_content_is_named(session: Session, project: Path, tmp_path: Path) -> None:
    """With its session and path; rewinds that do not need it work, others refuse."""
    point = session.checkpoint("x")
    shell(session, "echo x > README; echo y > src/main.py", project)
    spoil(tmp_path / "store.db", MAIN)
    (problem,) = verify(session.store)
    assert (problem.session_id, problem.log, problem.what) == ("s", "files", "damaged content")
    assert "src/main.py" in problem.detail and MAIN.hex() in problem.detail
    with pytest.raises(Damaged, match=r"src/main\.py"):
        session.rewind(point)
    session.rewind(point, scope="files", paths=["README"])
    assert (project / "README").read_text() == "one\ntwo\nthree\n"


def test_one_does_not_hide_another(session: Session, project: Path, tmp_path: Path) -> None:
    """Damaged and missing contents, trees, contents of no use, and logs are all reported."""
    store = session.store
    with Session.create(store, "t", cwd=project) as other:
        other.append({"role": "user", "content": "hello"})
    shell(session, "mkdir deep; echo z > deep/z", project)
    with opened(store) as depot:
        loose = depot.blobs.put(b"nobody needs this " * 10)
    # The newest one: only the first session has it.
    tree = last_tree(store, session.id)
    assert tree is not None
    spoil(tmp_path / "store.db", MAIN, loose, tree)
    lose(tmp_path / "store.db", README)
    session.close()
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        found = {(problem.session_id, problem.what) for problem in verify(store)}
    assert found == {
        ("s", "damaged content"), ("t", "damaged content"),
        ("s", "missing content"), ("t", "missing content"),
        ("s", "damaged tree"), ("", "damaged content"),
    }  # fmt: skip


def test_a_damaged_log_does_not_hide_contents(tmp_path: Path, project: Path) -> None:
    """Nor the other way round."""
    with Session.create(f"file:{tmp_path}/store", "s", cwd=project) as session:
        session.append({"role": "user", "content": "begin"})
    log = tmp_path / "store/sessions/s/messages.jsonl"
    log.write_bytes(log.read_bytes().replace(b"begin", b"BEGIN"))
    connection = apsw.Connection(f"{tmp_path}/store/blobs/blobs.db")
    connection.execute("DELETE FROM blobs WHERE digest = ?", (README,))
    connection.close()
    with open_store(f"file:{tmp_path}/store") as store:
        logs = {problem.log for problem in verify(store)}
    assert logs == {"messages", "files"}


def test_a_database_that_cannot_be_read(session: Session, tmp_path: Path) -> None:
    """It is a problem to report, as long as the logs can be read."""
    session.close()
    path = tmp_path / "store.db-files/blobs.db"
    path.write_bytes(b"no database" * 1000)
    path.with_name("blobs.db-wal").unlink()
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        (problem,) = verify(store)
    assert (problem.log, problem.what) == ("files", "unreadable")


def test_the_command_line_reports_contents_too(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each, and the exit code of damage."""
    session.close()
    assert main(["verify", f"sqlite:///{tmp_path}/store.db"]) == 0
    lose(tmp_path / "store.db", README)
    with opened(open_store(f"sqlite:///{tmp_path}/store.db")) as depot:
        loose = depot.blobs.put(b"nobody needs this " * 10)
    spoil(tmp_path / "store.db", loose)
    capsys.readouterr()
    assert main(["verify", f"sqlite:///{tmp_path}/store.db"]) == 6
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines[0].startswith("files: damaged content: ")
    assert lines[1].startswith("s/files: missing content: README: ")
