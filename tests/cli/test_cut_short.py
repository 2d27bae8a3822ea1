"""An undo, redo or rewind that is killed in the middle: what the next command finishes, it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .acting import Project, files_in
from .stage import Stage

DYING = """
import os, signal, sys
from backtrail.cli import main
from backtrail.files.restore.steps import StepTaker
take = StepTaker.take

def die(self, index, step):
    if index >= 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return take(self, index, step)

StepTaker.take = die
main(sys.argv[1:])
"""


def killed(stage: Stage, *words: str) -> None:
    """Run a verb that dies when one of its files is back, and another is not."""
    done = subprocess.run(
        [sys.executable, "-c", DYING, *words], cwd=stage.project, env=stage.environment()
    )
    assert done.returncode == -9


@pytest.fixture
def turns(stage: Stage) -> Project:
    """Two turns, each of which changes two files."""
    project = Project(stage.folder)
    project.root.mkdir(exist_ok=True)
    for name in "ab":
        project.write(name, "0\n")
    with stage.session("work") as s:
        for turn in "12":
            s.append({"role": "user", "content": f"turn {turn}"})
            with s.tool("bash"):
                for name in "ab":
                    project.write(name, f"{turn}\n")
            s.append({"role": "assistant", "content": "done"})
    return project


def test_an_undo_that_was_cut_short_is_finished_and_no_other_one(turns: Project) -> None:
    """Run again, it takes back what it was to take back, and not the turn before as well."""
    killed(turns, "undo", "--yes")
    done = turns.run("undo", "--yes")
    assert done.code == 0, done
    assert done.err == "backtrail: finished an undo that was cut short\n"
    assert done.lines[0].startswith("took back the turn")
    assert "turn 2" in done.out and "turn 1" not in done.out
    assert done.lines[-1] == "take it back with: backtrail redo"
    assert files_in(turns.root) == {"a": "1\n", "b": "1\n"}
    assert turns.run("undo", "--yes").code == 0
    assert files_in(turns.root) == {"a": "0\n", "b": "0\n"}


def test_the_only_undo_that_was_cut_short_is_finished(turns: Project) -> None:
    """Where nothing else can be undone, that is no error."""
    turns.run("undo", "--yes")
    killed(turns, "undo", "--yes")
    done = turns.run("undo", "--yes", "--json")
    assert (done.code, done.json["finished"]["kind"]) == (0, "undone")
    assert files_in(turns.root) == {"a": "0\n", "b": "0\n"}
    again = turns.run("undo", "--yes")
    assert again.code != 0 and "nothing to undo" in again.err


def test_a_redo_that_was_cut_short_is_finished(turns: Project) -> None:
    """Run again, it is the same redo."""
    turns.run("undo", "--yes")
    turns.run("undo", "--yes")
    killed(turns, "redo", "--yes")
    done = turns.run("redo", "--yes")
    assert done.code == 0, done
    assert "finished a redo that was cut short" in done.err
    assert done.lines[0].startswith("did again the turn") and "turn 1" in done.out
    assert files_in(turns.root) == {"a": "1\n", "b": "1\n"}


def test_status_says_what_it_finished(turns: Project) -> None:
    """So that the undo after it is known to be another one."""
    killed(turns, "undo", "--yes")
    assert "finished an undo that was cut short" in turns.run("status").err
    assert files_in(turns.root) == {"a": "1\n", "b": "1\n"}
    assert "finished" not in turns.run("status").err
    done = turns.run("undo", "--yes")
    assert done.lines[0].startswith("took back the turn") and "turn 1" in done.out


def test_another_verb_says_what_was_finished_before_it(turns: Project) -> None:
    """A rewind that was cut short, then an undo: that takes the rewind back."""
    killed(turns, "rewind", "@-1", "--yes")
    done = turns.run("undo", "--yes")
    assert done.code == 0, done
    assert "finished a rewind that was cut short" in done.err
    assert "took back the rewind" in done.out
    assert files_in(turns.root) == {"a": "2\n", "b": "2\n"}


def test_a_preview_finishes_nothing(turns: Project) -> None:
    """It says that something is unfinished."""
    killed(turns, "undo", "--yes")
    before = files_in(turns.root)
    done = turns.run("undo", "--dry-run")
    assert "is not finished" in done.out + done.err
    assert files_in(turns.root) == before


def test_files_that_a_finished_undo_kept_are_named(turns: Project) -> None:
    """What a person saved before it was finished is kept, and how to decide on it is said."""
    killed(turns, "undo", "--yes")
    left = "b" if files_in(turns.root)["b"] == "2\n" else "a"
    turns.write(left, "mine\n")
    done = turns.run("undo", "--yes")
    assert done.code == 4, done
    assert f"kept {left}" in done.out + done.err
    assert files_in(turns.root)[left] == "mine\n"
