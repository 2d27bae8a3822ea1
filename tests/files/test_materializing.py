"""Materializing: the files of a point as a new directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backtrail import AlreadyExists, Checkpoint, InvalidData, NotFound, Session
from backtrail.files import materialize
from backtrail.files.depot import opened
from backtrail.files.trees import digest_of

from .conftest import shell
from .world import look


def test_a_checkpoint_becomes_a_directory(session: Session, project: Path, tmp_path: Path) -> None:
    """By itself, or its tree as text or bytes; an empty directory may be there."""
    shell(session, "ln -s README link; mkdir empty .git; chmod 750 src; : > .git/HEAD", project)
    point = session.checkpoint("x")
    before = look(project)
    shell(session, "rm -r src README", project)
    assert point.tree is not None
    (tmp_path / "copy 1").mkdir()
    forms: list[str | bytes | Checkpoint] = [point, point.tree, bytes.fromhex(point.tree)]
    for n, tree in enumerate(forms):
        left = materialize(session.store, tree, tmp_path / f"copy {n}")
        assert [step.path for step in left] == [b".git"]
        seen = look(tmp_path / f"copy {n}")
        assert seen == {path: what for path, what in before.items() if not path.startswith(".git")}


def test_a_directory_that_was_private_stays_so(session: Session, tmp_path: Path) -> None:
    """An empty one may be filled; who could not look into it cannot afterwards."""
    (tmp_path / "copy").mkdir(0o700)
    materialize(session.store, session.checkpoint("x"), tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "copy" / "README").exists()


def test_nothing_is_made_where_it_cannot_be(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """A directory with something in it, a content that is gone, what names no tree."""
    point = session.checkpoint("x")
    with pytest.raises(AlreadyExists):
        materialize(session.store, point, project)
    for wrong in ("nonsense", "00", b"short"):
        with pytest.raises(InvalidData, match="not the digest"):
            materialize(session.store, wrong, tmp_path / "copy")
    with pytest.raises(NotFound, match="not captured"):
        materialize(session.store, replace(point, tree=None), tmp_path / "copy")
    with opened(session.store) as depot:
        depot.blobs.remove([digest_of(b"one\ntwo\nthree\n")])
    names = set(tmp_path.iterdir())
    with pytest.raises(NotFound, match="README"):
        materialize(session.store, point, tmp_path / "copy")
    assert set(tmp_path.iterdir()) == names
