"""A preview says what acting would do, and writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from backtrail import NotFound, Session
from backtrail.files.contents.purge import purge
from tests.files.conftest import shell
from tests.talking import user

SECRET = "TOKEN=the-only-copy\n"


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of a JSONL store's logs."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with two files."""
    root = tmp_path / "project"
    root.mkdir()
    (root / ".env").write_text(SECRET)
    (root / "app.py").write_text("one\ntwo\nthree\n")
    return root


VERBS: dict[str, Callable[[Session], object]] = {
    "undo": lambda s: s.undo(dry_run=True),
    "rewind": lambda s: s.rewind(before=2, dry_run=True),
    "exact": lambda s: s.rewind(before=2, mode="exact", dry_run=True),
    "merge": lambda s: s.undo(on_conflict="merge", dry_run=True),
    "aside": lambda s: s.undo(on_conflict="aside", dry_run=True),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_preview_appends_nothing(tmp_path: Path, project: Path, verb: str) -> None:
    """Neither what a person changed meanwhile nor that the session goes on."""
    url = f"file:{tmp_path}/store"
    with Session.create(url, "s", cwd=project) as session:
        session.append(user("go"))
        shell(session, "rm .env; sed -i s/one/ONE/ app.py", project)
    (project / "app.py").write_text("ONE\ntwo\nthree\nmine\n")
    before = contents(tmp_path / "store")
    with Session.open(url, "s") as session:
        VERBS[verb](session)
    assert contents(tmp_path / "store") == before


def test_a_preview_during_a_call_is_the_plan_of_the_act(tmp_path: Path, project: Path) -> None:
    """What the call did so far counts, and is in the log only when something is appended."""
    url = f"file:{tmp_path}/store"
    with Session.create(url, "s", cwd=project) as session:
        session.append(user("go"))
        with session.tool("bash"):
            (project / "made").write_text("x\n")
            before = contents(tmp_path / "store")
            plan = session.rewind(before=2, dry_run=True)
            assert contents(tmp_path / "store") == before
        assert [(file.path, file.action) for file in plan.files] == [("made", "delete")]
        done = session.rewind(before=2)
        assert [file.path for file in done.files] == ["made"]
        assert not (project / "made").exists()


def test_a_call_that_a_crash_left_open_is_in_the_preview(tmp_path: Path, project: Path) -> None:
    """And its event is appended by the act."""
    url = f"file:{tmp_path}/store"
    child = os.fork()
    if child == 0:
        session = Session.create(url, "s", cwd=project)
        session.append(user("go"))
        with session.tool("bash"):
            (project / "made").write_text("x\n")
            os._exit(0)
    os.waitpid(child, 0)
    before = contents(tmp_path / "store")
    for _ in range(2):
        with Session.open(url, "s") as session:
            plan = session.undo(dry_run=True)
        assert [(file.path, file.action) for file in plan.files] == [("made", "delete")]
        assert contents(tmp_path / "store") == before
    with Session.open(url, "s") as session:
        session.undo()
    assert not (project / "made").exists()


def test_what_cannot_be_brought_back_is_in_the_preview(tmp_path: Path, project: Path) -> None:
    """A content that was purged: the preview names it, and says that acting is refused."""
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=project) as session:
        session.append(user("go"))
        shell(session, "rm .env; sed -i s/one/ONE/ app.py", project)
        purge(session.store, "s", path=".env")
        plan = session.undo(dry_run=True)
        assert {file.path: file.action for file in plan.files} == {
            ".env": "conflict",
            "app.py": "write",
        }
        assert plan.error is not None and ".env" in plan.error
        assert (plan.to_dict()["can_rewind"], plan.to_dict()["error"]) == (False, plan.error)
        with pytest.raises(NotFound) as refused:
            session.undo()
        assert str(refused.value) == plan.error
        assert not (project / ".env").exists()
