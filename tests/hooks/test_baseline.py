"""The first import of a project: no hook waits for it."""

from __future__ import annotations

import os
import time

from backtrail import open_store
from backtrail.files.baseline import PARTIAL
from backtrail.files.depot import Depot
from backtrail.hooks.baseline import claimed, go_on, is_there
from backtrail.hooks.places import folder_of

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
    """Others say that they were not; nobody waits."""
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
    """A second one sees that somebody is at it, or was."""
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
