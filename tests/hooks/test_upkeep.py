"""A hook never collects, and begins a collection only when the agent waits for nothing more."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from backtrail import open_store

from .calling import Agent, World


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """A session under way, in whose store a collection is overdue."""
    made = Agent(World(tmp_path))
    made.begin()
    made.prompt("go")
    with open_store(made.world.url) as store:
        assert store.contents is not None
        due = {f"{store.url}#": [time.time() - 9000]}
        (store.contents / "upkeep").write_text(json.dumps({"due": due, "not_before": 0}))
    return made


def is_begun(world: World) -> bool:
    with open_store(world.url) as store:
        assert store.contents is not None
        row = json.loads((store.contents / "upkeep").read_bytes())
    return bool(row["not_before"]) or not row["due"]


def test_no_call_and_no_prompt_begins_it(agent: Agent) -> None:
    """Whatever the agent waits for does nothing but record."""
    agent.write(agent.world.project / "a.txt", "a\n", "c1")
    agent.bash(lambda: (agent.world.project / "b.txt").write_text("b\n"), "c2")
    agent.prompt("more")
    assert not is_begun(agent.world)
    assert agent.world.misses() == []


def test_the_end_of_a_turn_begins_it(agent: Agent) -> None:
    """In a process of its own; the session goes on as before."""
    agent.stop()
    assert is_begun(agent.world)
    agent.prompt("more")
    agent.write(agent.world.project / "a.txt", "a\n", "c1")
    assert agent.world.misses() == []
