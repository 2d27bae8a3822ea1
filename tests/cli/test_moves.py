"""What is not captured and was moved: one count in every verb, and nothing claimed of it."""

from __future__ import annotations

import os
from pathlib import Path

from .acting import Project, empty

MOVES = "mv .git .git_off; mv node_modules nm_old; mv big.bin huge.bin; echo two > app.py"


def prepared(folder: Path) -> Project:
    """A project with three things that are not captured, and a file that is."""
    project = empty(folder)
    project.write("app.py", "one\n")
    project.write(".git/HEAD", "ref: refs/heads/main\n")
    project.write("node_modules/x", "x\n")
    (project.root / "big.bin").touch()
    os.truncate(project.root / "big.bin", 22_000_000)
    return project


def test_a_move_counts_once_everywhere(tmp_path: Path) -> None:
    """Four things happened: three moves, and a line."""
    project = prepared(tmp_path)
    assert project.run("record", "--", "sh", "-c", MOVES).code == 0
    status, stat = project.run("status"), project.run("diff", "--stat")
    dry = project.run("undo", "--dry-run")
    assert "It changed 4 files, +1 −1" in status.lines
    assert "4 files, +1 −1" in stat.err
    assert "files: 4 files to change  +1 −1" in dry.lines
    for ran in (status.out, stat.out, project.run("show").out):
        for old, new in ((".git", ".git_off"), ("node_modules", "nm_old"), ("big.bin", "huge.bin")):
            assert f"?  {new}  not captured, moved from {old}\n" in ran
            assert f"?  {old}  " not in ran
    shown = project.run("diff").out
    assert "not captured nm_old, moved from node_modules\n" in shown
    rows = {row["path"]: row for row in project.run("status", "--json").json["last_turn"]}
    assert rows["nm_old"]["old_path"] == "node_modules"
    assert len(rows) == 4


def test_what_a_plan_moves_is_not_called_untouched(tmp_path: Path) -> None:
    """Neither before it is moved back, nor while it is planned; at home, it is as ever."""
    project = prepared(tmp_path)
    assert project.run("record", "--", "sh", "-c", MOVES).code == 0
    assert "Not captured: 3 paths" in project.run("status").lines
    assert "not captured: .git_off (" in project.run("undo", "--dry-run").err
    assert project.run("undo", "--yes").code == 0
    assert (project.root / "node_modules/x").read_text() == "x\n"
    assert "Not captured, so never touched: 3 paths" in project.run("status").lines


def test_what_took_the_place_of_a_moved_thing_was_added(tmp_path: Path) -> None:
    """The place was free by then."""
    project = prepared(tmp_path)
    command = "mv big.bin huge.bin; echo small > big.bin"
    assert project.run("record", "--", "sh", "-c", command).code == 0
    assert project.run("diff", "--stat").out.splitlines() == [
        "A  big.bin  +1 −0",
        "?  huge.bin  not captured, moved from big.bin",
    ]


def test_what_cannot_be_moved_back_is_named_and_is_no_success(tmp_path: Path) -> None:
    """Another repository has taken its place: both stay, and the exit code says so."""
    project = prepared(tmp_path)
    command = "mv .git .git_off; mkdir .git; echo new > .git/HEAD; echo two > app.py"
    assert project.run("record", "--", "sh", "-c", command).code == 0
    dry = project.run("undo", "--dry-run")
    row = ".git_off  version control, moved from .git"
    assert "would not be taken back, since it was not captured: 1 path" in dry.err
    assert row in dry.err
    assert "warning: cannot be undone: .git_off stays (" in dry.out
    done = project.run("undo", "--yes")
    assert done.code == 4
    assert "not taken back, since it was not captured: 1 path" in done.err
    assert row in done.err
    assert (project.root / "app.py").read_text() == "one\n"
    assert (project.root / ".git/HEAD").read_text() == "new\n"
    assert (project.root / ".git_off/HEAD").read_text() == "ref: refs/heads/main\n"
    assert project.run("redo", "--yes").code == 0
    again = project.run("undo", "--yes", "--json")
    assert [one["path"] for one in again.json["not_captured"]] == [".git_off"]
    assert again.code == 4
