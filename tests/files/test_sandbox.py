"""Folders that a sandbox makes to mount something over them are nobody's work."""

from __future__ import annotations

import subprocess
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
    """Whoever looks while they are there, and whoever looks when they are gone."""
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


@pytest.mark.parametrize("name", [".agents", ".aws", ".codex"])
def test_what_is_in_such_a_folder_is_captured(session: Session, project: Path, name: str) -> None:
    """Also if the folder was seen empty before, and its root has not changed since."""
    with session.tool("bash"):
        (project / name).mkdir()
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
