"""The first import of a project: begun early, and waited for by calls that need it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from backtrail import open_store
from backtrail.exchange.hooks.first_import import claimed, go_on, is_there
from backtrail.exchange.hooks.places import folder_of
from backtrail.files.depot import Depot
from backtrail.files.workspace.firstimport import PARTIAL

from .calling import Agent, World


def is_new(world: World) -> bool:
    """Whether the project was never imported."""
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        try:
            return workspace.is_new()
        finally:
            workspace.close()
            depot.close()


def imported(world: World) -> bool:
    """Wait for the import in the background."""
    deadline = time.monotonic() + 60
    while is_new(world):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_small_project_is_imported_at_once(world: World, agent: Agent) -> None:
    """The first prompt has its files."""
    (world.project / "a.txt").write_text("x")
    agent.prompt("first")
    (said,) = world.events("claude-code:s1", "user_message")
    assert "tree" in said.data


def test_a_large_one_goes_on_in_the_background(world: World) -> None:
    """What a hook has not done by its time, a process of its own does."""
    for number in range(3000):
        folder = world.project / f"d{number // 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_text(f"{number}")
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        try:
            assert not is_there(store, workspace, (store.url, "s"), 0.0)
        finally:
            workspace.close()
            depot.close()
    assert imported(world)


def test_while_it_runs_calls_are_captured_by_the_paths_they_name(
    world: World, agent: Agent
) -> None:
    """Others wait for it until the session's deadline, and then say that they were not."""
    world.env["BACKTRAIL_HOOK_WAIT"] = "0.3"
    path = world.project / "a.txt"
    path.write_text("one")
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        with claimed(store, workspace) as ours:
            assert ours
            agent.prompt("go", id="p1")
            agent.write(path, "two", "t1")
            agent.bash(lambda: None, "t2")
        workspace.close()
        depot.close()
    said, written, shell = world.events("claude-code:s1", "user_message", "action")
    assert said.data["files"] == {"missed": PARTIAL}
    assert written.data["files"]["partial"] is True
    assert shell.data["files"] == {"missed": PARTIAL}
    with world.session() as session:
        session.rewind(before=written.seq, scope="files")
    assert path.read_text() == "one"


def test_one_that_failed_is_not_tried_at_every_hook(world: World, agent: Agent) -> None:
    """It would cost the agent time; after a while it is tried again."""
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        failure = folder_of(store) / f"baseline-{workspace.place.n}.failed"
        failure.touch()
        workspace.close()
        depot.close()
    agent.prompt("not yet")
    os.utime(failure, (0, 0))
    agent.prompt("now")
    first, second = world.events("claude-code:s1", "user_message")
    assert first.data["files"] == {"missed": PARTIAL}
    assert "tree" in second.data


def test_it_is_done_once(world: World) -> None:
    """A second one sees that another is at it, or was."""
    (world.project / "a.txt").write_text("x")
    with open_store(world.url) as store:
        go_on(store, str(world.project))
        assert imported(world)
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        with claimed(store, workspace) as first, claimed(store, workspace) as second:
            assert (first, second) == (True, False)
        workspace.close()
        depot.close()


# --- calls that wait ---------------------------------------------------------------------


@pytest.fixture
def large(world: World) -> Path:
    """A project that takes longer to import than a hook has time for."""
    for number in range(4000):
        folder = world.project / f"d{number // 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_text(f"{number}")
    return world.project


def contents(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes, by the test's own walk."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_first_call_waits_for_the_import(world: World, agent: Agent, large: Path) -> None:
    """A fast model's first command in a large project is captured, and goes back."""
    # A hook alone has 40 % of it, which is not enough.
    world.env["BACKTRAIL_HOOK_TIMEOUT"] = "1.5"
    before = contents(large)

    def command() -> None:
        (large / "d0" / "f1").unlink()
        (large / "d1" / "f101").write_text("changed")
        (large / "new").write_text("new")

    agent.begin()
    agent.prompt("go")
    agent.bash(command, "c1")
    world.env["BACKTRAIL_HOOK_TIMEOUT"] = "60"
    agent.stop()
    (call,) = world.events("claude-code:s1", "action")
    assert "missed" not in call.data["files"], world.misses()
    with world.session() as session:
        assert session.not_captured() == []
        session.undo()
    assert contents(large) == before


def test_a_session_waits_until_one_deadline(world: World, agent: Agent) -> None:
    """All its calls together: one that comes after it does not wait again."""
    world.env["BACKTRAIL_HOOK_WAIT"] = "1"
    (world.project / "a.txt").write_text("one")
    took: list[float] = []
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        with claimed(store, workspace):
            agent.prompt("go")
            for number in range(2):
                began = time.monotonic()
                fields = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": f"c{number}"}
                agent.hook("PreToolUse", **fields)
                took.append(time.monotonic() - began)
                agent.hook("PostToolUse", tool_response={}, **fields)
        workspace.close()
        depot.close()
    assert took[0] >= 1 > took[1] - took[0] + 1
    first, second = world.events("claude-code:s1", "action")
    assert first.data["files"] == second.data["files"] == {"missed": PARTIAL}


def test_a_wait_does_not_count_as_the_hooks_own_time(world: World, agent: Agent) -> None:
    """A hook whose limit is shorter than the wait still opens the call's bracket."""
    world.env |= {"BACKTRAIL_HOOK_TIMEOUT": "3", "BACKTRAIL_HOOK_WAIT": "30"}
    (world.project / "a.txt").write_text("one")
    fields = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "c1"}
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        with claimed(store, workspace):
            # As the import in the background has it while it works.
            failure = folder_of(store) / f"baseline-{workspace.place.n}.failed"
            failure.touch()
            hook = agent.start(agent.payload("PreToolUse", **fields))
            time.sleep(3.5)
            failure.unlink()
        workspace.close()
        depot.close()
    assert hook.communicate(timeout=20) == (b"", b"")
    (world.project / "a.txt").write_text("two")
    agent.hook("PostToolUse", tool_response={}, **fields)
    (call,) = world.events("claude-code:s1", "action")
    assert "after" in call.data["files"]
    assert world.misses() == []


def test_what_was_missed_is_said_everywhere(world: World, agent: Agent) -> None:
    """After the deadline: status, `show`, `log`, `hooks status`, `doctor`, exports, JSON."""
    world.env["BACKTRAIL_HOOK_WAIT"] = "0"
    (world.project / "a.txt").write_text("one")
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        with claimed(store, workspace):
            agent.prompt("go")
            agent.bash(lambda: (world.project / "a.txt").write_text("two"), "c1")
        workspace.close()
        depot.close()
    agent.stop()
    (call,) = world.events("claude-code:s1", "action")
    row = {"path": f"event {call.seq} (Bash)", "reason": PARTIAL, "size": 0}
    for verb in (["status"], ["show"], ["log"], ["hooks", "status"]):
        ran = json.loads(world.run(*verb, "--json").stdout)
        assert row in ran["not_captured"], verb
        said = world.run(*verb).stdout
        assert PARTIAL in said, verb
        assert "nothing was missed" not in said
    checks = json.loads(world.run("doctor", "--json").stdout)["checks"]
    (captured,) = [check for check in checks if check["name"] == "captured"]
    assert captured["state"] == "warning" and PARTIAL in captured["detail"]
    for kind in ("html", "markdown"):
        page = world.root / f"page.{kind}"
        world.run("export", f"--{kind}", "-o", str(page))
        assert page.read_text().count(PARTIAL) == 2, kind
    with world.session() as session:
        assert (row["path"], PARTIAL, 0) in session.not_captured()
    ran = world.run("undo", "--yes", "--json")
    assert (ran.returncode, json.loads(ran.stdout)["not_captured"]) == (4, [row])
    assert (world.project / "a.txt").read_text() == "two"


def test_installing_begins_the_import(world: World, large: Path) -> None:
    """In the background, of the whole project, also from a folder of it."""
    (large / ".git").mkdir()
    (large / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    world.run("hooks", "install", "claude-code", "--yes", cwd=large / "d3")
    assert imported(world)
