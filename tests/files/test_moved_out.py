"""What was moved out of an opaque folder, or into the workspace: captured, and never removed."""

from __future__ import annotations

from pathlib import Path
from time import sleep

import pytest

from backtrail import Session
from backtrail.files.restore.conflicts import OnConflict
from backtrail.session.fileplans import Mode
from tests.files.conftest import shell
from tests.files.test_moved import repository, snapshot
from tests.talking import user

__all__ = ["repository"]

TICK = 0.03
"""Seconds after which what was made is older than a look, for any clock."""


def contents(seen: dict[str, tuple[str, int, bytes]]) -> set[bytes]:
    return {what for kind, _, what in seen.values() if kind == "file"}


OUT = {
    "repository": "mkdir bak; mv .git/* bak/; echo x > README",
    "package": "mv node_modules/left src/left; echo x > README",
    "file": "mv src/node_modules/right.js right.js",
    "onto a captured file": "mv src/node_modules/right.js README",
    "of what rules leave out": "mv private/diary diary",
    "from outside": "mv ../outside inside; echo x > README",
}


@pytest.mark.parametrize("choice", ["keep", "overwrite"])
@pytest.mark.parametrize("mode", ["mine", "exact"])
@pytest.mark.parametrize("command", OUT.values(), ids=OUT)
def test_what_no_call_made_stays_in_the_workspace(
    command: str, mode: Mode, choice: OnConflict, repository: Path, session: Session
) -> None:
    """Every byte of it is there after a rewind, also by force; it is named, and undo is exact."""
    (repository / "../outside").write_text("made elsewhere\n")
    sleep(TICK)
    point = session.append(user("now"))
    before = snapshot(repository)
    shell(session, command, repository)
    after = snapshot(repository)
    plan = session.rewind(point, mode=mode, on_conflict=choice, dry_run=True)
    done = session.rewind(point, mode=mode, on_conflict=choice)
    now = snapshot(repository)
    assert (contents(before) | contents(after)) - contents(now) <= {b"x\n"}
    assert now["README"] == before["README"]
    assert [(f.path, f.action) for f in done.files] == [(f.path, f.action) for f in plan.files]
    named = {f.path for f in done.files if f.action in ("conflict", "move") and f.reason}
    new = [path for path in now if path not in before and now[path][0] == "file"]
    assert new and set(new) <= named
    if done.files_changed:
        session.undo()
        assert snapshot(repository) == after
        session.redo()
        assert snapshot(repository) == now


def test_what_the_call_made_goes(repository: Path, session: Session) -> None:
    """Also where it was made in an opaque folder, and moved out by the same call."""
    sleep(TICK)
    point = session.append(user("now"))
    before = snapshot(repository)
    shell(session, "echo made > node_modules/made; mv node_modules/made src/made", repository)
    session.rewind(point)
    assert snapshot(repository) == before


def test_what_was_captured_moves_as_ever(repository: Path, session: Session) -> None:
    """A captured file or folder that was renamed is no stranger, edited or not."""
    sleep(TICK)
    point = session.append(user("now"))
    before = snapshot(repository)
    shell(
        session, "mv README r; echo more >> r; mv lib library; mv src/main.py main.py", repository
    )
    done = session.rewind(point)
    assert snapshot(repository) == before
    assert not done.conflicts


def test_a_tool_that_names_only_where_it_moved_to(repository: Path, session: Session) -> None:
    """The captured file that it moved is no stranger; its old name is not to be brought back."""
    sleep(TICK)
    point = session.append(user("now"))
    with session.tool("move", paths=["lib/renamed.py"]):
        (repository / "lib/deep/code.py").rename(repository / "lib/renamed.py")
    done = session.rewind(point)
    assert not (repository / "lib/renamed.py").exists()
    assert not done.conflicts


def test_another_process_knows_it_too(repository: Path, tmp_path: Path) -> None:
    """What came is known from the file that the processes share."""
    url = f"sqlite:///{tmp_path}/other.db"
    sleep(TICK)
    with Session.create(url, "s", cwd=repository) as session:
        point = session.append(user("now"))
    with Session.open(url, "s") as session:
        shell(session, "mkdir bak; mv .git/* bak/", repository)
    with Session.open(url, "s") as session:
        done = session.rewind(point.seq)
    assert (repository / "bak/HEAD").read_text().startswith("ref:")
    assert "bak/HEAD" in {file.path for file in done.conflicts}
