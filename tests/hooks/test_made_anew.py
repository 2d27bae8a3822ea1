"""A project folder that is made anew at its path, as hooks and `record` see it."""

from __future__ import annotations

import shutil
from pathlib import Path

from .calling import Agent, World


def made_anew(project: Path) -> None:
    shutil.rmtree(project)
    project.mkdir()
    (project / "fresh.txt").write_text("fresh")


def test_a_new_session_is_captured_in_a_folder_made_anew(world: World) -> None:
    """By hooks and by `record`; the old session refuses the folder, and says so."""
    old = Agent(world, session="old")
    (world.project / "a.txt").write_text("a")
    old.prompt("begin")
    old.bash(lambda: (world.project / "a.txt").write_text("agent"), "t1")
    made_anew(world.project)
    fresh = world.project / "fresh.txt"
    new = Agent(world, session="new")
    new.prompt("begin")
    new.bash(lambda: fresh.write_text("changed"), "t2")
    assert world.misses() == []
    with world.session("claude-code:new") as session:
        assert [file.path for file in session.undo().files] == ["fresh.txt"]
    assert fresh.read_text() == "fresh"
    assert world.run("record", "--", "sh", "-c", "echo recorded > fresh.txt").returncode == 0
    assert world.run("undo", "--yes").returncode == 0
    assert fresh.read_text() == "fresh"
    old.prompt("go on")
    assert "relocate" in world.misses()[-1].why
    with world.session("claude-code:old") as session:
        id = session.id
    done = world.run("undo", "--yes", "--session", id)
    assert done.returncode != 0 and "relocate" in done.stderr, done
    assert {path.name for path in world.project.iterdir()} == {"fresh.txt"}
