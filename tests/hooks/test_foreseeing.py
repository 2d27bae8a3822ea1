"""A preview, and what only looks, change nothing that a later operation sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .calling import Agent, World
from .test_open_calls import opened


def open_marks() -> list[str]:
    """The open calls of this machine, as their files say."""
    return sorted(str(path) for path in Path(os.environ["BACKTRAIL_STATE"]).rglob("calls/*"))


def killed_at_work(world: World, agent: Agent) -> None:
    """The agent dies in a shell call, whose command goes on."""
    agent.begin()
    agent.prompt("write for a while")
    child = opened(world, agent, "t1")
    (world.project / "loop.txt").write_text("1\n")
    child.kill()
    child.communicate()


@pytest.mark.parametrize(
    "looks",
    [
        [],
        [["undo", "--dry-run"]],
        [["undo", "--dry-run", "--force"], ["rewind", "--last", "--dry-run"]],
        [["restore", "loop.txt", "--at", "1", "--dry-run"]],
        [["status"], ["diff"], ["show"], ["log"]],
    ],
    ids=["none", "undo", "by force and rewind", "restore", "what looks"],
)
def test_a_preview_does_not_change_what_is_done(
    world: World, agent: Agent, looks: list[list[str]]
) -> None:
    """The dead call goes on until something acts: what its command writes meanwhile is its own.

    Perhaps it is a person's, so late: it goes back if one says so.
    """
    killed_at_work(world, agent)
    marks, events = open_marks(), len(world.events())
    assert marks
    for look in looks:
        done = world.run(*look)
        assert done.returncode == 0, done
        if look[0] in ("undo", "rewind", "restore"):
            assert "loop.txt" in done.stdout
        assert open_marks() == marks, look
        assert len(world.events()) == events, look
    (world.project / "loop.txt").write_text("1\n2\n")
    (world.project / "end.txt").write_text("end\n")
    done = world.run("undo", "--yes", "--on-conflict", "overwrite")
    assert done.returncode == 0, done
    assert not (world.project / "loop.txt").exists()
    assert not (world.project / "end.txt").exists()


def test_a_preview_leaves_another_sessions_dead_call(world: World, agent: Agent) -> None:
    """It is not ended by a process that only looks, either."""
    killed_at_work(world, agent)
    other = Agent(world, session="s2")
    other.prompt("something")
    marks = open_marks()
    with world.session("claude-code:s2") as session:
        session.undo(dry_run=True)
        session.diff()
    assert open_marks() == marks


def test_by_force_the_preview_has_the_same_plan(world: World, agent: Agent) -> None:
    """What a call under way did so far goes back by force, and the preview says so."""
    agent.begin()
    agent.prompt("write for a while")
    child = opened(world, agent, "t1")
    try:
        (world.project / "loop.txt").write_text("1\n")
        with world.session() as session:
            marks, events = open_marks(), len(world.events())
            plan = session.undo(dry_run=True, force=True)
            assert (open_marks(), len(world.events())) == (marks, events)
            done = session.undo(force=True)
        assert [(f.path, f.action) for f in plan.files] == [("loop.txt", "delete")]
        assert plan.files == done.files
    finally:
        child.kill()
        child.communicate()


COUNTED = """
import sys
from backtrail.cli import main
opened = []
sys.addaudithook(lambda event, given: opened.append(given[0]) if event == "open" else None)
code = main(["status", "--json"])
print(opened.count(b"inner"), file=sys.stderr)
sys.exit(code)
"""


def test_status_looks_at_the_files_once(world: World, agent: Agent) -> None:
    """So that all it says is of one moment, without a second look."""
    inner = world.project / "inner"
    inner.mkdir()
    (inner / "file.txt").write_text("first\n")
    agent.begin()
    agent.prompt("write")
    agent.bash(lambda: (inner / "file.txt").write_text("second\n"), "t1")
    (inner / "other.txt").write_text("by a person\n")
    done = subprocess.run(
        [sys.executable, "-c", COUNTED],
        env=world.env, cwd=world.project, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "inner/other.txt" in done.stdout
    # The scan opens a folder to see whether it is as it was, and again if it is not.
    assert int(done.stderr.split()[-1]) <= 2
