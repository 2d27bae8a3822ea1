"""Work above the folder that an agent runs in: the project is captured, and goes back whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backtrail import Session, open_store

from .calling import Agent, World


@pytest.fixture
def sub(world: World) -> Path:
    """A folder of a project under version control, which has files above it and beside it."""
    (world.project / ".git").mkdir()
    (world.project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (world.project / "top.txt").write_text("top\n")
    (world.project / "other").mkdir()
    (world.project / "other" / "o.txt").write_text("other\n")
    sub = world.project / "sub"
    sub.mkdir()
    (sub / "s.txt").write_text("sub\n")
    return sub


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, by the test's own walk."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


SCRIPT = "echo new > ../newtop.txt; echo changed >> ../top.txt; rm ../other/o.txt; echo s > s.txt"


def test_record_in_a_subfolder_takes_back_what_it_did_above(world: World, sub: Path) -> None:
    """`undo` keeps its promise for every file of the project."""
    before = contents(world.project)
    done = world.run("record", "--", "sh", "-c", SCRIPT, cwd=sub)
    assert done.returncode == 0, done.stderr
    assert contents(world.project) != before
    (info,) = world.sessions()
    assert (info.cwd, info.root) == (str(sub.resolve()), str(world.project.resolve()))
    undone = world.run("undo", "--yes", cwd=sub)
    assert undone.returncode == 0, undone.stderr
    assert contents(world.project) == before
    redone = world.run("redo", "--yes", cwd=world.project)
    assert redone.returncode == 0, redone.stderr
    assert (world.project / "newtop.txt").read_text() == "new\n"
    assert not (world.project / "other" / "o.txt").exists()


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini"])
def test_an_agent_in_a_subfolder_has_the_project_for_a_workspace(
    world: World, sub: Path, name: str
) -> None:
    """A shell call and an edit above its folder go back with the turn, as real hooks saw them."""
    before = contents(world.project)
    agent = Agent(world, name, more={"cwd": str(sub)})
    pre, post, say, end = (
        ("BeforeTool", "AfterTool", "BeforeAgent", "AfterAgent")
        if name == "gemini"
        else ("PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop")
    )
    agent.hook("SessionStart", source="startup")
    agent.hook(say, prompt="tidy up")
    shell = {"tool_name": "run", "tool_input": {"command": SCRIPT}, "tool_use_id": "c1"}
    agent.hook(pre, **shell)
    (world.project / "newtop.txt").write_text("new\n")
    (world.project / "other" / "o.txt").unlink()
    (sub / "s.txt").write_text("s\n")
    agent.hook(post, tool_response={}, **shell)
    agent.hook(end)
    (info,) = world.sessions()
    assert (info.cwd, info.root) == (str(sub.resolve()), str(world.project.resolve()))
    with world.session(f"{name}:s1") as session:
        session.undo()
    assert contents(world.project) == before


def test_a_session_is_found_from_everywhere_in_its_project(world: World, sub: Path) -> None:
    """By the folder it ran in, by its root, and from the folders between and beside."""
    world.run("record", "--title", "mine", "--", "sh", "-c", SCRIPT, cwd=sub)
    (info,) = world.sessions()
    deep = sub / "deep"
    deep.mkdir()
    for folder in (sub, world.project, world.project / "other", deep):
        ran = json.loads(world.run("status", "--json", cwd=folder).stdout)
        assert ran["session"]["id"] == info.id, folder
        changed = {row["path"] for row in ran["last_turn"]}
        assert changed == {"newtop.txt", "top.txt", "other/o.txt", "sub/s.txt"}
    with open_store(world.url) as store:
        assert store.latest(sub).id == store.latest(world.project).id == info.id
    with Session.latest(world.url, cwd=world.project) as session:
        assert (session.info().cwd, session.info().root) == (info.cwd, info.root)
    with Session.resume(world.url, info.id, cwd=info.root) as session:
        assert (session.info().cwd, session.info().root) == (info.cwd, info.root)


def test_paths_on_the_command_line_begin_at_the_shells_folder(world: World, sub: Path) -> None:
    """`restore`, `diff` and `log` mean the file that the shell means by that name."""
    (world.project / "s.txt").write_text("another of this name\n")
    script = "echo one > s.txt; echo two > ../s.txt; echo three > ../top.txt"
    world.run("record", "--", "sh", "-c", script, cwd=sub)
    ran = json.loads(world.run("diff", "--json", "--", "s.txt", cwd=sub).stdout)
    assert [row["path"] for row in ran["files"]] == ["sub/s.txt"]
    ran = json.loads(world.run("log", "--json", "--", "../s.txt", cwd=sub).stdout)
    assert {row["path"] for row in ran["changes"]} == {"s.txt"}
    assert world.run("restore", "s.txt", "--yes", cwd=sub).returncode == 0
    assert (sub / "s.txt").read_text() == "sub\n"
    assert (world.project / "s.txt").read_text() == "two\n"
    assert world.run("restore", "../s.txt", "--yes", cwd=sub).returncode == 0
    assert (world.project / "s.txt").read_text() == "another of this name\n"
    assert (world.project / "top.txt").read_text() == "three\n"


def test_a_purge_in_a_folder_is_of_the_file_that_the_shell_means(world: World, sub: Path) -> None:
    """Another one of this name, at the root, is kept."""
    (world.project / ".env").write_text("ROOT=1\n")
    (sub / ".env").write_text("SUB=1\n")
    script = "echo ROOT=2 > ../.env; echo SUB=2 > .env"
    world.run("record", "--", "sh", "-c", script, cwd=sub)
    done = world.run("purge", "--path", ".env", "--yes", cwd=sub)
    assert done.returncode == 0, done.stderr
    assert world.run("restore", "../.env", "--yes", cwd=sub).returncode == 0
    assert (world.project / ".env").read_text() == "ROOT=1\n"
    assert world.run("restore", ".env", "--yes", cwd=sub).returncode != 0
    assert (sub / ".env").read_text() == "SUB=2\n"


def test_an_agent_in_a_nested_repository_has_that_for_a_workspace(world: World, sub: Path) -> None:
    """While one that starts above it captures both."""
    inner = world.project / "vendor" / "lib"
    (inner / "src").mkdir(parents=True)
    (inner / ".git").write_text("gitdir: ../../.git/modules/lib\n")
    (inner / "lib.py").write_text("x = 1\n")
    world.run("record", "--", "sh", "-c", "echo 2 > ../lib.py", cwd=inner / "src")
    assert world.sessions()[0].root == str(inner.resolve())
    before = contents(world.project)
    world.run("record", "--", "sh", "-c", "echo 3 > ../vendor/lib/lib.py", cwd=sub)
    assert world.sessions()[0].root == str(world.project.resolve())
    assert world.run("undo", "--yes", cwd=sub).returncode == 0
    assert contents(world.project) == before
    assert (inner / "lib.py").read_text() == "2\n"


def test_the_person_may_want_the_folder_alone(world: World, sub: Path) -> None:
    """`root = "cwd"` in their settings."""
    world.env["BACKTRAIL_ROOT"] = "cwd"
    world.run("record", "--", "sh", "-c", SCRIPT, cwd=sub)
    (info,) = world.sessions()
    assert (info.cwd, info.root) == (str(sub.resolve()),) * 2
    assert world.run("undo", "--yes", cwd=sub).returncode == 0
    assert (sub / "s.txt").read_text() == "sub\n"
    assert (world.project / "newtop.txt").read_text() == "new\n"


def test_a_project_that_is_too_large_is_captured_in_the_folder_and_that_is_said(
    world: World, sub: Path
) -> None:
    """By `record` at once, and by the one account of what is not captured ever after."""
    world.env["BACKTRAIL_ROOT_FILES"] = "2"
    done = world.run("record", "--", "sh", "-c", SCRIPT, cwd=sub)
    root = str(world.project.resolve())
    assert f"only {sub.resolve()} is captured, not {root}: over 2 files" in done.stderr
    agent = Agent(world, more={"cwd": str(sub)})
    agent.begin()
    agent.prompt("go")
    for info in world.sessions():
        assert info.root == str(sub.resolve())
        with Session.resume(world.url, info.id) as session:
            rows = session.not_captured()
        assert [row for row in rows if row[0] == root] == [
            (root, "over 2 files, so only the folder of the agent is captured", 0)
        ]


def test_a_session_keeps_the_root_it_began_with(world: World, sub: Path) -> None:
    """Also if a nearer repository is made around its folder meanwhile."""
    agent = Agent(world, more={"cwd": str(sub)})
    agent.begin()
    agent.prompt("go")
    (sub / ".git").mkdir()
    (sub / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    agent.bash(lambda: (world.project / "top.txt").write_text("changed\n"), "c1")
    agent.stop()
    (info,) = world.sessions()
    assert info.root == str(world.project.resolve())
    with world.session() as session:
        session.undo()
    assert (world.project / "top.txt").read_text() == "top\n"


def test_a_project_that_moved_takes_the_agents_folder_along(world: World, sub: Path) -> None:
    """`relocate` names the new place of the root."""
    world.run("record", "--", "sh", "-c", SCRIPT, cwd=sub)
    moved = world.root / "moved"
    world.project.rename(moved)
    done = world.run("relocate", cwd=moved)
    assert done.returncode == 0, done.stderr
    (info,) = world.sessions()
    assert (info.cwd, info.root) == (str((moved / "sub").resolve()), str(moved.resolve()))
    assert world.run("undo", "--yes", cwd=moved / "sub").returncode == 0
    assert (moved / "top.txt").read_text() == "top\n"


def test_the_library_takes_a_folder_as_it_is_given(world: World, sub: Path) -> None:
    """A program that names a folder means that one; a root above it has to be named too."""
    with Session.create(world.url, "plain", cwd=sub) as session:
        assert session.info().root == session.info().cwd == str(sub.resolve())
        with session.tool("sh"):
            (sub / "s.txt").write_text("x\n")
            (world.project / "top.txt").write_text("x\n")
        assert {file.path for file in session.diff(0).files} <= {"s.txt"}
    with Session.create(world.url, "both", cwd=sub, root=world.project) as session:
        with session.turn("go"), session.tool("sh"):
            (world.project / "top.txt").write_text("y\n")
        assert session.info().root == str(world.project.resolve())
        fork = session.fork()
        assert (fork.info().cwd, fork.info().root) == (session.info().cwd, session.info().root)
        fork.close()
        session.undo()
    assert (world.project / "top.txt").read_text() == "x\n"
    assert os.listdir(sub) == ["s.txt"]


# --- what lies outside -------------------------------------------------------------------


def test_what_a_tool_names_outside_is_said_with_its_event_and_everywhere(
    world: World, sub: Path
) -> None:
    """In the log, the account, status, `show`, `log`, the plan, and with exit code 4."""
    far = world.root / "far.txt"
    agent = Agent(world, more={"cwd": str(sub)})
    agent.begin()
    agent.prompt("go")
    agent.write(far, "x\n", "c1")
    agent.write(sub / "s.txt", "changed\n", "c2")
    agent.stop()
    (outer, inner) = world.events("claude-code:s1", "action")
    assert outer.data["files"] == {"outside": [str(far.resolve())]}
    assert "outside" not in inner.data["files"]
    row = [str(far.resolve()), f"outside the workspace: Write, event {outer.seq}", 0]
    shown = dict(zip(("path", "reason", "size"), row, strict=True))
    with world.session() as session:
        assert tuple(row) in session.not_captured()
    for verb in (["status"], ["show"], ["log"], ["hooks", "status"]):
        ran = world.run(*verb, "--json", cwd=sub)
        assert shown in json.loads(ran.stdout)["not_captured"], verb
        assert str(far.resolve()) in world.run(*verb, cwd=sub).stdout, verb
    page = world.root / "page.html"
    world.run("export", "--html", "-o", str(page), cwd=sub)
    assert "Not captured" in page.read_text() and "far.txt" in page.read_text()
    planned = world.run("undo", "--dry-run", cwd=sub)
    assert planned.returncode == 0
    assert f"cannot be undone: {far.resolve()} is outside the workspace" in planned.stdout
    ran = json.loads(world.run("undo", "--dry-run", "--json", cwd=sub).stdout)
    assert ran["not_captured"] == [shown]
    undone = world.run("undo", "--yes", cwd=sub)
    assert undone.returncode == 4
    assert str(far.resolve()) in undone.stderr
    assert (sub / "s.txt").read_text() == "sub\n" and far.read_text() == "x\n"


def test_only_an_operations_own_events_count(world: World, sub: Path) -> None:
    """A turn that captured all goes back with exit code 0, whatever another one missed."""
    agent = Agent(world, more={"cwd": str(sub)})
    agent.begin()
    for number, path in enumerate((world.root / "far.txt", sub / "s.txt")):
        agent.prompt(f"turn {number}")
        agent.write(path, "changed\n", f"c{number}")
        agent.stop()
    assert world.run("undo", "--yes", cwd=sub).returncode == 0
    assert world.run("redo", "--yes", cwd=sub).returncode == 0
    assert world.run("undo", "--yes", cwd=sub).returncode == 0
    assert world.run("undo", "--yes", cwd=sub).returncode == 4


def test_a_link_that_leads_out_is_outside(world: World, sub: Path) -> None:
    """It is the target that changes."""
    far = world.root / "far"
    far.mkdir()
    (sub / "link").symlink_to(far)
    agent = Agent(world, more={"cwd": str(sub)})
    agent.begin()
    agent.prompt("go")
    agent.write(sub / "link" / "x.txt", "x\n", "c1")
    (event,) = world.events("claude-code:s1", "action")
    assert event.data["files"]["outside"] == [str((far / "x.txt").resolve())]


def test_a_write_that_failed_outside_is_not_said(world: World, sub: Path) -> None:
    """Nothing happened there."""
    agent = Agent(world, more={"cwd": str(sub)})
    agent.begin()
    agent.prompt("go")
    given = {"tool_name": "Write", "tool_input": {"file_path": "/etc/x"}, "tool_use_id": "c1"}
    agent.hook("PreToolUse", **given)
    agent.hook("PostToolUseFailure", error="no", **given)
    assert not [e for e in world.events() if "outside" in str(e.data)]
