"""What a session says about files that it cannot take back as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backtrail import Session, open_store
from backtrail.files.depot import opened
from backtrail.files.trees import digest_of
from backtrail.stores.memory import MemoryStore, NullStore

from .conftest import shell
from .test_cleaning import said


def given_up(session: Session, *, before: int) -> None:
    """Drop what the session relied on up to an event, as the budget does."""
    trees = [
        bytes.fromhex(e.data["tree"]) for e in session.events(until=before) if "tree" in e.data
    ]
    with opened(session.store) as depot:
        for store, log in {(r.store, r.log) for r in depot.blobs.references()}:
            depot.blobs.drop_references(store, log, trees)
        depot.blobs.remove([*trees, digest_of(b"one\ntwo\nthree\n")])


def test_a_checkpoint_of_a_point_that_was_given_up(session: Session, project: Path) -> None:
    """It marks the conversation, and the session says that the files are gone."""
    shell(session, "echo new > README", project)
    said(session)
    given_up(session, before=2)
    session.checkpoint("late", at=2)
    assert [p.what for p in session.problems] == ["given up"]
    assert "event 2" in session.problems[0].detail


def test_a_checkpoint_keeps_a_point_that_others_still_have(session: Session, project: Path) -> None:
    """Its contents are relied on again, whatever kept them until then."""
    with opened(session.store) as depot:
        (first,) = depot.blobs.references()
        depot.blobs.drop_references(first.store, first.log)
        session.checkpoint("late", at=2)
        assert list(depot.blobs.references()) == [first]
    assert session.problems == []


def test_a_diff_with_a_content_that_was_given_up(session: Session, project: Path) -> None:
    """It is not shown as a file that was not there."""
    shell(session, "echo new > README", project)
    with opened(session.store) as depot:
        depot.blobs.remove([digest_of(b"one\ntwo\nthree\n")])
    (file,) = session.diff(2).files
    assert (file.status, file.insertions, file.deletions) == ("modified", 0, 0)
    assert file.text == "the content of README was given up\n"


@pytest.mark.parametrize("dry_run", [True, False])
def test_files_that_are_not_captured_stay(project: Path, tmp_path: Path, dry_run: bool) -> None:
    """The outcome says so, unless no caller asked for them to be captured."""
    store = open_store(f"file:{tmp_path}/store")
    store.contents = tmp_path / "link"
    store.contents.symlink_to(tmp_path)
    with store, Session.create(store, "s", cwd=project) as session:
        said(session)
        done = session.rewind(0, dry_run=dry_run)
        assert len(done.warnings) == 1 and "is a link" in done.warnings[0]
        assert session.rewind(0, scope="conversation").warnings == []
    for quiet in (Session.create(MemoryStore(), files=False), Session.create(NullStore())):
        with quiet:
            said(quiet)
            assert quiet.rewind(0, dry_run=dry_run).warnings == []


def test_aside_finds_a_free_name(session: Session, project: Path) -> None:
    """A name that is taken is left, and the next one is used."""
    shell(session, "echo mine > README", project)
    (project / "README").write_text("theirs\n")
    (project / "README.rewind-1").write_text("taken\n")
    done = session.rewind(before=2, on_conflict="aside")
    assert (project / "README").read_text() == "theirs\n"
    assert (project / "README.rewind-1").read_text() == "taken\n"
    assert (project / "README.rewind-1-2").read_text() == "one\ntwo\nthree\n"
    assert [file.reason for file in done.files if file.action == "create"] == ["beside README"]


def test_nothing_to_write_aside(session: Session, project: Path) -> None:
    """A file that was not there then: the reason says so."""
    shell(session, "echo mine > new", project)
    (project / "new").write_text("theirs\n")
    (file,) = session.rewind(before=2, on_conflict="aside").conflicts
    assert "nothing was there then" in file.reason


def test_a_path_can_be_passed_back_as_it_is_shown(session: Session, project: Path) -> None:
    """Where no file of that very name is known; else the name stands for itself."""
    odd = os.fsencode(project) + b"/\xff"
    with session.tool("sh"), open(odd, "wb") as file:
        file.write(b"1\n")
    (shown,) = (change.path for change in session.rewind(before=2, dry_run=True).files)
    assert shown == "\\xff"
    assert [file.path for file in session.diff(2, paths=[shown]).files] == [shown]
    session.rewind(before=2, paths=[shown])
    assert not os.path.exists(odd)
    session.undo()
    with session.tool("sh"):
        (project / "\\xff").write_text("literal\n")
    done = session.rewind(before=2, paths=["\\xff"])
    assert [file.path for file in done.files] == ["\\\\xff"]
    assert os.path.exists(odd)
