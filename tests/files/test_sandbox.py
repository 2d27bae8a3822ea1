"""Folders that a sandbox makes to mount something over them have no author."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from backtrail import Session
from tests.talking import user

POINTS = (".agents", ".aws", ".codex", ".git")


def appear(project: Path) -> None:
    for name in POINTS:
        (project / name).mkdir()


def vanish(project: Path) -> None:
    for name in POINTS:
        (project / name).rmdir()


def changed(session: Session) -> list[str]:
    """Every path that any event says to have changed."""
    return [f.path for turn in session.changes() for call in turn.calls for f in call.files]


def test_mount_points_of_a_sandbox_are_no_changes(session: Session, project: Path) -> None:
    """A look while they are there, and a look when they are gone."""
    with session.tool("bash"):
        appear(project)
        (project / "new").write_text("x")
        session.checkpoint("meanwhile")
        vanish(project)
    appear(project)
    session.append(user("next"))
    vanish(project)
    session.append(user("last"))
    assert changed(session) == ["new"]
    with session.tool("bash"):
        appear(project)
    done = session.rewind(2)
    assert [file.path for file in done.files] == ["new"]
    assert done.warnings == []
    assert all((project / name).is_dir() for name in POINTS)


def test_mount_points_where_the_agent_was_started_are_no_changes(
    session: Session, project: Path
) -> None:
    """A sandbox makes them in its own folder, which may be one of the project's."""
    sub = project / "deep" / "sub"
    sub.mkdir(parents=True)
    (sub / "old").write_text("x")
    session.append(user("begin"))
    with session.tool("bash"):
        appear(sub)
        (sub / "new").write_text("x")
        time.sleep(0.05)
    session.append(user("next"))
    assert changed(session) == ["deep/sub/old", "deep/sub/new"]
    with session.tool("bash"):
        (sub / ".codex" / "inside").write_text("x")
    assert changed(session)[2:] == ["deep/sub/.codex/inside"]
    done = session.rewind(3)
    assert done.warnings == []
    assert sorted(path.name for path in sub.iterdir()) == [".agents", ".aws", ".git", "old"]


def test_one_such_folder_alone_is_somebodys_work(session: Session, project: Path) -> None:
    """Below the root only all of them together are a sandbox's."""
    (project / "sub").mkdir()
    (project / "sub" / "old").write_text("x")
    session.append(user("begin"))
    with session.tool("bash"):
        (project / "sub" / ".agents").mkdir()
    assert changed(session) == ["sub/old", "sub/.agents"]


@pytest.mark.parametrize("name", [".agents", ".aws", ".codex"])
def test_what_is_in_such_a_folder_is_captured(session: Session, project: Path, name: str) -> None:
    """Also if the folder was seen empty before, and its root has not changed since."""
    with session.tool("bash"):
        (project / name).mkdir()
        # Beyond what the clock may not distinguish.
        time.sleep(0.05)
        session.checkpoint("empty")
        (project / name / "inside").write_text("x")
    assert changed(session) == [f"{name}/inside"]
    with session.tool("bash"):
        (project / name / "inside").unlink()
    assert changed(session)[1:] == [f"{name}/inside"]
    session.rewind(2)
    assert not (project / name).exists()


def test_a_new_repository_is_seen(session: Session, project: Path) -> None:
    """It has something in it, and is not captured; if it goes, it is lost, and that is said."""
    with session.tool("bash"):
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    assert changed(session) == [".git"]
    with session.tool("bash") as call:
        subprocess.run(["rm", "-rf", ".git"], cwd=project, check=True)
    assert call.event is not None
    assert call.event.data["files"]["lost"] == [".git"]
