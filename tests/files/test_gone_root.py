"""A workspace whose folder is gone: made again for what comes into it, and for nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backtrail import Session, StoreFailed
from tests.files.test_places import said
from tests.files.test_poison import failing
from tests.files.world import look


@pytest.fixture
def gone(session: Session, project: Path) -> Session:
    """A session that changed a file of a folder which a person has removed since."""
    session.append(said("now"))
    with session.tool("bash"):
        (project / "README").write_text("changed\n")
        (project / "new").write_text("new\n")
    shutil.rmtree(project)
    return session


@pytest.mark.parametrize("verb", ["undo", "rewind", "restore"])
def test_nothing_is_made_where_nothing_comes(gone: Session, project: Path, verb: str) -> None:
    """The file stays as it is, which is gone; so does the folder."""
    if verb == "undo":
        preview, done = gone.undo(dry_run=True), gone.undo()
    elif verb == "rewind":
        preview, done = gone.rewind(1, dry_run=True), gone.rewind(1)
    else:
        preview = gone.rewind(1, scope="files", paths=["README"], dry_run=True)
        done = gone.rewind(1, scope="files", paths=["README"])
    assert [file.path for file in done.files if file.action == "conflict"] == ["README"]
    assert [(f.path, f.action) for f in preview.files] == [(f.path, f.action) for f in done.files]
    assert not project.exists()
    if verb == "undo":
        gone.redo()
        assert not project.exists()


def test_what_comes_into_it_can_be_taken_back(gone: Session, project: Path) -> None:
    """The folder is made for the files, and goes with them; each time."""
    gone.rewind(1, mode="exact")
    there = look(project)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    for _ in range(2):
        assert not gone.undo().conflicts
        assert not project.exists()
        assert not gone.redo().conflicts
        assert look(project) == there
    (project / "mine").write_text("mine\n")
    gone.undo()
    assert look(project).keys() == {"mine"}


def test_a_folder_that_was_there_stays(session: Session, project: Path) -> None:
    """However empty it is after an undo."""
    session.append(said("now"))
    with session.tool("bash"):
        for path in project.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    session.rewind(1, mode="exact")
    assert look(project)
    session.undo()
    assert project.is_dir() and not look(project)


def test_a_folder_made_for_what_failed_goes(gone: Session, project: Path) -> None:
    """Nothing came into it, so it is not there."""
    with failing(OSError(5, "broken"), at=0), pytest.raises(StoreFailed):
        gone.rewind(1, mode="exact")
    assert not project.exists()
