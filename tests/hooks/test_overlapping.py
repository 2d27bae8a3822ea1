"""Two agents at work in one folder at the same time: whose change is whose."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from .calling import Agent, World

CALLS = ("bash a", "write c", "bash d", "write b")
"""What each of two sessions does: A the first two, B the others."""


def overlapping(world: World, ends: tuple[int, ...]) -> None:
    """All four calls are open at once, each writes its file, and they end in some order."""
    agents = Agent(world, session="A"), Agent(world, session="B")
    for agent in agents:
        agent.begin()
        agent.prompt(f"go {agent.session}")

    def fields(number: int) -> dict[str, Any]:
        tool, name = CALLS[number].split()
        path = str(world.project / f"{name}.txt")
        given = {"file_path": path, "content": "x"} if tool == "write" else {"command": "x"}
        return {"tool_name": tool.title(), "tool_input": given, "tool_use_id": f"t{number}"}

    for number in range(4):
        agents[number // 2].hook("PreToolUse", **fields(number))
    for call in CALLS:
        (world.project / f"{call[-1]}.txt").write_text("x")
    for number in ends:
        agents[number // 2].hook("PostToolUse", tool_response={}, **fields(number))
    for agent in agents:
        agent.stop()


@pytest.mark.parametrize("ends", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)])
def test_a_path_that_a_tool_names_is_its_calls_alone(world: World, ends: tuple[int, ...]) -> None:
    """Whatever shell calls of whichever session are open meanwhile."""
    overlapping(world, ends)
    for key, own, other in (("A", "c.txt", "b.txt"), ("B", "b.txt", "c.txt")):
        with world.session(f"claude-code:{key}") as session:
            prompt = next(session.events(kinds=("user_message",)))
            done = session.rewind(before=prompt, dry_run=True)
            assert [f.path for f in done.files if f.action == "delete"] == [own]
            assert [f.path for f in done.conflicts] == ["a.txt", "d.txt"]
            assert other not in [file.path for file in done.files]


def test_status_says_whose_is_whose(world: World) -> None:
    """Files of its own, and files that may be the other session's, by its name."""
    overlapping(world, (0, 1, 2, 3))
    ids = {info.key: info.id for info in world.sessions()}
    for key, own, other in (("A", "c.txt", "B"), ("B", "b.txt", "A")):
        id = ids[f"claude-code:{key}"]
        rows = json.loads(world.run("status", id, "--json").stdout)["last_turn"]
        assert {row["path"]: row.get("perhaps") for row in rows} == {
            own: None,
            "a.txt": [ids[f"claude-code:{other}"]],
            "d.txt": [ids[f"claude-code:{other}"]],
        }
        lines = world.run("status", id).stdout.splitlines()
        first = next(at for at, line in enumerate(lines) if line.startswith("It changed 1 file"))
        assert own in lines[first + 1]
        shared = next(at for at, line in enumerate(lines) if f"(go {other}) was at work" in line)
        assert [lines[shared + n].split()[1] for n in (1, 2)] == ["a.txt", "d.txt"]


def test_every_order_of_two_named_paths(world: World) -> None:
    """Calls that name their paths never share anything, however they overlap."""
    agents = Agent(world, session="A"), Agent(world, session="B")
    for agent in agents:
        agent.begin()
        agent.prompt("go")
    for n, order in enumerate(itertools.permutations((0, 1))):
        paths = [world.project / f"{name}{n}.txt" for name in "ab"]
        calls: list[dict[str, Any]] = [
            {"tool_name": "Write", "tool_input": {"file_path": str(path)}, "tool_use_id": f"{n}"}
            for path in paths
        ]
        for agent, call in zip(agents, calls, strict=True):
            agent.hook("PreToolUse", **call)
        for path in paths:
            path.write_text("x")
        for at in order:
            agents[at].hook("PostToolUse", tool_response={}, **calls[at])
    for key, name in (("A", "a"), ("B", "b")):
        for event in world.events(f"claude-code:{key}", "action"):
            assert all("shared" not in part for part in event.data["files"].get("parts", []))
        with world.session(f"claude-code:{key}") as session:
            prompt = next(session.events(kinds=("user_message",)))
            done = session.rewind(before=prompt, dry_run=True)
            assert [f.path for f in done.files] == [f"{name}0.txt", f"{name}1.txt"]
            assert done.conflicts == []
