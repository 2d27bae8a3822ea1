"""It says what it will do, what it did, and what it cannot do; and all can be taken back."""

from __future__ import annotations

import os

from .driver import Token
from .stage import Stage


def _edited(stage: Stage) -> Token:
    stage.start("a", "b", "c")
    with stage.turn() as token:
        stage.write("a", "agent\n")
        os.remove(stage.root / "b")
        stage.write("new", "new\n")
    return token


def preview_says_what_a_restore_does(stage: Stage) -> None:
    """What a restore would change could not be seen before."""
    token = _edited(stage)
    before = stage.state()
    shown = stage.driver.preview(token)
    stage.expect_state(before, "the preview changed something")
    stage.restore(token)
    after = stage.state()
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    stage.expect(shown == changed, f"it said {sorted(shown)} and did {sorted(changed)}")


def preview_names_only_the_agents_files(stage: Stage) -> None:
    """A person asked to take back only what the agent did, and to see that first."""
    token = _edited(stage)
    stage.write("c", "person\n")
    stage.expect(stage.driver.preview(token) == {"a", "b", "new"}, "others' files are in it")


def conflict_waits_for_a_decision(stage: Stage) -> None:
    """Where a person and the agent changed one file, the tool decided without a word."""
    token = _edited(stage)
    stage.write("a", "agent\nperson\n")
    stage.restore(token)
    stage.expect_files({"a": "agent\nperson\n", "b": "b\n"})
    reason = stage.driver.report().get("a", "")
    stage.expect("somebody else" in reason, f"it says {reason!r} about the conflict")


def every_path_of_a_restore_is_reported(stage: Stage) -> None:
    """A restore reported nothing: not what it restored, nor what it left."""
    token = _edited(stage)
    stage.restore(token)
    stage.expect(set(stage.driver.report()) == {"a", "b", "new"}, "paths are not reported")


def restore_can_be_undone(stage: Stage) -> None:
    """A restore by mistake, and hours of work were gone for good."""
    token = _edited(stage)
    before = stage.state()
    stage.restore(token)
    stage.driver.undo()
    stage.expect_state(before)


def undo_and_redo_go_back_and_forth(stage: Stage) -> None:
    """Keys pressed twice by accident took work back, and nothing brought it again."""
    token = _edited(stage)
    edited = stage.state()
    stage.restore(token)
    restored = stage.state()
    for _ in range(2):
        stage.driver.undo()
        stage.expect_state(edited, "after undo")
        stage.driver.redo()
        stage.expect_state(restored, "after redo")


def whole_restore_can_be_undone(stage: Stage) -> None:
    """The person's own files, overwritten by a restore of all, could not be had again."""
    token = _edited(stage)
    stage.write("c", "person\n")
    stage.write("precious", "person\n")
    before = stage.state()
    stage.driver.restore_all(token)
    stage.expect_file("c", "c\n")
    stage.driver.undo()
    stage.expect_state(before)


def deletion_that_cannot_be_undone_is_said(stage: Stage) -> None:
    """The tool offered to undo a deletion, and did not bring the files back."""
    stage.write(".gitignore", "node_modules/\n")
    stage.write("node_modules/left-pad/index.js", "pad\n")
    stage.start("package.json")
    with stage.turn() as token:
        stage.shell("rm -rf node_modules; echo x > package.json")
    stage.restore(token)
    stage.expect_file("package.json", "package.json\n")
    back = stage.read("node_modules/left-pad/index.js") == b"pad\n"
    said = "node_modules" in " ".join(stage.driver.warnings())
    stage.expect(back or said, "node_modules is gone, and nothing says so")


def what_is_not_captured_is_said(stage: Stage) -> None:
    """Snapshots held none of the changes, and the warning was hidden too."""
    stage.write(".gitignore", "dist/\n.venv/\n")
    stage.write(".venv/lib/x.py", "x\n")
    stage.start("a")
    stage.checkpoint()
    said = " ".join(stage.driver.warnings())
    stage.expect(".venv" in said, "it does not say that .venv is left out")


def one_file_alone_comes_back(stage: Stage) -> None:
    """It was all or nothing: one file could not be taken back alone."""
    token = _edited(stage)
    stage.driver.restore_paths(token, ["b"])
    stage.expect_files({"b": "b\n", "a": "agent\n", "new": "new\n"})


def second_restore_finds_nothing_to_do(stage: Stage) -> None:
    """Restoring twice to one point changed things again."""
    token = _edited(stage)
    stage.restore(token)
    state = stage.state()
    inode = os.stat(stage.root / "a").st_ino
    stage.restore(token)
    stage.expect_state(state)
    stage.expect(os.stat(stage.root / "a").st_ino == inode, "a was written again")
