"""Conflicts decided path by path, and acts that are what their preview showed."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import Conflict, InvalidData, Session
from backtrail.files.restore.conflicts import Decisions
from backtrail.session.fileplans import Scope
from tests.files.conftest import shell
from tests.talking import assistant, user

LINES = [f"line {n}\n" for n in range(12)]


@pytest.fixture
def worked(tmp_path: Path) -> Session:
    """A session that changed four files, and a person who changed them after it."""
    root = tmp_path / "project"
    root.mkdir()
    for name in "abcd":
        (root / name).write_text("".join(LINES))
    session = Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=root)
    session.append(user("go"))
    shell(session, "sed -i 's/^line 1$/theirs/' a b c d", root)
    session.append(assistant("done"))
    for name in "abcd":
        (root / name).write_text((root / name).read_text().replace("line 9\n", "mine\n"))
    return session


def test_each_conflict_has_its_own_decision(worked: Session, tmp_path: Path) -> None:
    """One is kept, one merged, one written beside, one overwritten: by their bytes."""
    root = tmp_path / "project"
    mine = "".join(LINES).replace("line 9\n", "mine\n")
    there = mine.replace("line 1\n", "theirs\n")
    decisions: Decisions = {"b": "merge", "c": "aside", "d": "overwrite"}
    with worked:
        plan = worked.undo(on_conflict=decisions, dry_run=True)
        done = worked.undo(on_conflict=decisions, expected=plan.plan)
    assert [(f.path, f.action) for f in plan.files] == [(f.path, f.action) for f in done.files]
    assert (root / "a").read_text() == there
    assert (root / "b").read_text() == mine
    assert (root / "c").read_text() == there
    assert (root / "c.rewind-1").read_text() == "".join(LINES)
    assert (root / "d").read_text() == "".join(LINES)
    assert [file.path for file in done.conflicts] == ["a", "c"]


def test_an_unknown_decision_is_refused(worked: Session) -> None:
    """Also for a path that is no conflict."""
    with worked, pytest.raises(InvalidData):
        worked.undo(on_conflict={"x": "burn"})  # type: ignore[dict-item]


@pytest.mark.parametrize("moved", ["disk", "log", "nothing"])
@pytest.mark.parametrize("scope", ["both", "conversation", "files"])
def test_only_the_plan_that_was_shown_is_carried_out(
    worked: Session, tmp_path: Path, moved: str, scope: Scope
) -> None:
    """A byte on the disk, or a message in the log, and the preview counts no more."""
    root = tmp_path / "project"
    with worked:
        plan = worked.rewind(before=2, scope=scope, dry_run=True)
        if moved == "disk":
            (root / "a").write_text("other\n")
        elif moved == "log":
            worked.append(user("one more"))
        before = {path.name: path.read_bytes() for path in root.iterdir()}
        # A rewind of one of both does not depend on the other.
        apart = ("disk", "conversation"), ("log", "files")
        if moved == "nothing" or (moved, scope) in apart:
            done = worked.rewind(before=2, scope=scope, expected=plan.plan)
            assert done.applied
            return
        with pytest.raises(Conflict, match="preview again"):
            worked.rewind(before=2, scope=scope, expected=plan.plan)
        assert {path.name: path.read_bytes() for path in root.iterdir()} == before
        assert not [e for e in worked.events() if e.kind == "rewound"]
