"""What a call did is reported once, and in order, whenever a hook is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backtrail import open_store
from backtrail.files import verify
from backtrail.files.depot import Depot

from .calling import Agent, World

BASH: dict[str, Any] = {"tool_name": "Bash", "tool_input": {}}

KILLED = """if True:
    import os, signal, sys
    from backtrail.files.workspace.workspace import Workspace
    from backtrail.stores.sqlite import SQLiteStore

    def die(*arguments, **more):
        os.kill(os.getpid(), signal.SIGKILL)

    if sys.argv[1] == "before the append":
        whole = SQLiteStore.append
        def append(self, session_id, events, **more):
            if any(event.kind == "action" for event in events):
                die()
            return whole(self, session_id, events, **more)
        SQLiteStore.append = append
    else:
        Workspace.recorded = Workspace.drop = die
    from backtrail.exchange.hooks.endpoint import serve
    serve("claude-code")
    """
"""A hook that dies at a certain moment."""


def kill(agent: Agent, moment: str, event: str, **fields: Any) -> None:
    """Run a hook that dies at a moment of its work."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, moment],
        input=agent.payload(event, **fields),
        env=agent.world.env,
        cwd=agent.world.project,
        capture_output=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")


def actions(world: World) -> list[tuple[str, list[str]]]:
    """Each action's call, and the paths it changed."""
    with world.session() as session:
        events = {event.seq: event for event in session.events(kinds=("action",))}
        calls = [call for turn in session.changes() for call in turn.calls]
    return [
        (events[call.seq].data["call"], [file.path for file in call.files])
        for call in calls
        if call.seq in events
    ]


def open_brackets(world: World) -> int:
    """How many calls are under way, as far as is known."""
    with open_store(world.url) as store:
        depot = Depot.of(store)
        workspace = depot.workspace(world.project, store)
        try:
            return len(workspace.catalogue.lines.brackets(workspace.place.n))
        finally:
            workspace.close()
            depot.close()


@pytest.mark.parametrize("moment", ["before the append", "after the append"])
@pytest.mark.parametrize("next_hook", ["prompt", "call", "stop"])
def test_a_hook_killed_around_its_append(
    world: World, agent: Agent, moment: str, next_hook: str
) -> None:
    """The author of a change is not lost, nor recorded twice; the next hook sees to it."""
    path = world.project / "a.txt"
    agent.begin()
    agent.prompt("go", id="p1")
    agent.hook("PreToolUse", tool_use_id="t1", **BASH)
    path.write_text("by t1")
    kill(agent, moment, "PostToolUse", tool_use_id="t1", tool_response={}, **BASH)
    assert len(actions(world)) == (moment == "after the append")
    if next_hook == "prompt":
        agent.prompt("next", id="p2")
    elif next_hook == "call":
        agent.bash(lambda: None, "t2")
    else:
        agent.stop()
    assert actions(world) == [("t1", ["a.txt"])]
    assert len(world.events("claude-code:s1", "action")) == 1
    assert "files_changed" not in [event.kind for event in world.events()]
    assert open_brackets(world) == 0
    with world.session() as session:
        assert not session.rewind(before="p1").conflicts
    assert not path.exists()
    with open_store(world.url) as store:
        assert (store.verify(), verify(store)) == ([], [])


def test_the_hook_that_records_for_another_is_killed(world: World, agent: Agent) -> None:
    """Then the one after it records."""
    path = world.project / "a.txt"
    agent.begin()
    agent.prompt("go", id="p1")
    agent.hook("PreToolUse", tool_use_id="t1", **BASH)
    path.write_text("by t1")
    kill(agent, "before the append", "Stop")
    kill(agent, "after the append", "UserPromptSubmit", prompt="lost")
    agent.prompt("next", id="p2")
    assert actions(world) == [("t1", ["a.txt"])]
    assert open_brackets(world) == 0


def test_the_hook_after_a_call_never_came(world: World, agent: Agent) -> None:
    """What the call did stands before the next one: both can be taken back, or only that."""
    path = world.project / "a.txt"
    path.write_text("at first")
    agent.begin()
    agent.prompt("go", id="p1")
    agent.hook("PreToolUse", tool_use_id="t1", **BASH)
    path.write_text("by t1")
    agent.bash(lambda: path.write_text("by t2"), "t2")
    agent.stop()
    assert actions(world) == [("t1", ["a.txt"]), ("t2", ["a.txt"])]
    first, second = world.events("claude-code:s1", "action")
    assert (first.data["so_far"], "so_far" in second.data) == (True, False)
    assert open_brackets(world) == 0
    with world.session() as session:
        assert not session.rewind(before=second.seq, scope="files").conflicts
    assert path.read_text() == "by t1"
    with world.session() as session:
        assert not session.rewind(before="p1").conflicts
    assert path.read_text() == "at first"


def test_calls_at_the_same_time_go_back(world: World, agent: Agent) -> None:
    """Each has its part in the order of time, whichever ends first."""
    path, other = world.project / "a.txt", world.project / "b.txt"
    agent.begin()
    agent.prompt("go", id="p1")
    agent.hook("PreToolUse", tool_use_id="t1", **BASH)
    path.write_text("by t1")
    agent.hook("PreToolUse", tool_use_id="t2", **BASH)
    path.write_text("by one of them")
    agent.hook("PostToolUse", tool_use_id="t2", **BASH)
    other.write_text("by t1")
    agent.hook("PostToolUse", tool_use_id="t1", **BASH)
    assert actions(world) == [("t1", ["a.txt"]), ("t2", ["a.txt"]), ("t1", ["b.txt"])]
    with world.session() as session:
        assert not session.rewind(before="p1").conflicts
    assert not path.exists()
    assert not other.exists()


def test_a_call_at_the_same_time_that_did_nothing(world: World, agent: Agent) -> None:
    """What others do while a call runs that names its path is not recorded as that call's."""
    named, theirs = world.project / "named.txt", world.project / "theirs.txt"
    agent.begin()
    agent.prompt("go", id="p1")
    write = {"tool_name": "Write", "tool_input": {"file_path": str(named)}, "tool_use_id": "t1"}
    agent.hook("PreToolUse", **write)
    theirs.write_text("a person's")
    agent.bash(lambda: None, "t2")
    named.write_text("by t1")
    agent.hook("PostToolUse", **write)
    assert actions(world) == [("t1", ["named.txt"])]


def test_a_store_of_folders_records_once(tmp_path: Path) -> None:
    """A hook that comes while another is about to record leaves it alone."""
    world = World(tmp_path, scheme="file")
    agent = Agent(world)
    agent.begin()
    agent.prompt("go", id="p1")
    for number in range(3):
        path = world.project / f"{number}.txt"
        agent.hook("PreToolUse", tool_use_id=f"t{number}", **BASH)
        path.write_text("x")
        fields = {"tool_use_id": f"t{number}", "tool_response": {}, **BASH}
        children = [
            agent.start(agent.payload("PostToolUse", **fields)),
            agent.start(agent.payload("Stop")),
        ]
        for child in children:
            assert child.communicate(timeout=100) == (b"", b"")
    assert sorted(actions(world)) == [(f"t{n}", [f"{n}.txt"]) for n in range(3)]
