"""Which session is the latest: the one that was last at work, whatever comes in late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backtrail import NewEvent, Store, open_store

from .calling import Agent, World


@pytest.fixture(params=["sqlite", "file"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, scheme=request.param)


def turn(agent: Agent, text: str, name: str) -> None:
    """One turn of Codex that writes a file."""
    path = agent.world.project / name
    agent.hook("UserPromptSubmit", prompt=text)
    agent.bash(lambda: path.write_text(f"{text}\n"), text)
    agent.hook("Stop", last_assistant_message="done")


def asked(world: World, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.run(*words, "--json").stdout)
    return found


def key(world: World) -> str | None:
    """The key of the session that `backtrail` shows here."""
    id = asked(world, "show")["session"]["id"]
    return next(info.key for info in world.sessions() if info.id == id)


def test_an_end_that_comes_late_moves_nothing_up(world: World) -> None:
    """Codex's daemon says that the old session is over when the new one is at work."""
    old, new = (Agent(world, "codex", name, {"transcript_path": None}) for name in ("old", "new"))
    turn(old, "first", "a.txt")
    turn(new, "second", "b.txt")
    old.hook("SessionEnd", reason="other")
    assert key(world) == "codex:new"
    assert world.run("undo", "--yes").returncode == 0
    assert [path.name for path in sorted(world.project.iterdir())] == ["a.txt"]
    assert world.events("codex:old")[-1].kind == "session_end"


def test_nor_does_a_call_that_ends_with_it(world: World) -> None:
    """The old one was closed in a call: that the call is over is recorded with the end."""
    old, new = (Agent(world, "codex", name, {"transcript_path": None}) for name in ("old", "new"))
    turn(old, "first", "a.txt")
    given = {"tool_name": "Bash", "tool_input": {"command": "…"}, "tool_use_id": "open"}
    old.hook("UserPromptSubmit", prompt="more")
    old.hook("PreToolUse", **given)
    (world.project / "left.txt").write_text("left\n")
    new.hook("UserPromptSubmit", prompt="second")
    old.hook("SessionEnd", reason="other")
    assert world.events("codex:old", "action")[-1].data["name"] == "Bash"
    assert key(world) == "codex:new"


def test_an_end_makes_no_session(world: World) -> None:
    """Of a session that nothing was recorded of, the end says nothing."""
    Agent(world, "codex", "unknown", {"transcript_path": None}).hook("SessionEnd", reason="other")
    assert world.sessions() == []


def test_an_end_is_recorded_once(world: World) -> None:
    """Gemini CLI says it several times."""
    agent = Agent(world, "gemini", "g")
    agent.hook("BeforeAgent", prompt="hello")
    for _ in range(3):
        agent.hook("SessionEnd", reason="exit")
    assert [e.kind for e in world.events("gemini:g")][-2:] == ["user_message", "session_end"]


def test_empty_sessions_are_not_offered(world: World) -> None:
    """Opened and closed without a word, an agent leaves nothing to go back in."""
    turn(Agent(world, "codex", "worked", {"transcript_path": None}), "first", "a.txt")
    for name in ("codex", "gemini", "claude-code"):
        empty = Agent(world, name, "empty", {"transcript_path": None})
        empty.hook("SessionStart", source="startup")
        empty.hook("SessionEnd", reason="other")
    assert key(world) == "codex:worked"
    assert [row["key"] for row in asked(world, "ls")["sessions"]] == ["codex:worked"]
    assert len(asked(world, "tree", "--all")["trees"]) == 1
    assert world.run("undo", "--yes").returncode == 0
    assert list(world.project.iterdir()) == []
    # All its turns are taken back, and still it is the one to redo in.
    assert world.run("redo", "--yes").returncode == 0
    assert (world.project / "a.txt").exists()


def test_the_end_is_no_change_in_a_store(world: World) -> None:
    """A record's time is that of the last event before the end, however late that came."""
    from backtrail.events import SessionInfo

    def times(store: Store) -> tuple[str, str | None]:
        info = store.info("s")
        return info.updated_at, info.exit_reason

    with open_store(world.url) as store:
        store.create(SessionInfo(id="s", created_at="2026-01-01T00:00:00.000Z"))
        for kind, ts in (("note", "2026-01-02"), ("session_end", "2026-01-03")):
            store.append("s", [NewEvent(kind, {"reason": "other"}, ts=f"{ts}T00:00:00.000Z")])
        assert times(store) == ("2026-01-02T00:00:00.000Z", "other")
    with open_store(world.url) as store:
        assert times(store) == ("2026-01-02T00:00:00.000Z", "other")
