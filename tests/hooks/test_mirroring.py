"""The transcript and the hooks together: one conversation, each call before what it did."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from .calling import Agent, World


class Transcript:
    """What Claude Code writes down beside calling hooks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None
        self._count = 0

    def add(self, role: str, content: Any, **more: Any) -> None:
        """One line."""
        self._count += 1
        line = {
            "type": role,
            "uuid": str(uuid.UUID(int=self._count)),
            "parentUuid": self._last,
            "sessionId": "s1",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "message": {"id": f"msg_{self._count}", "role": role, "content": content},
            **more,
        }
        self._last = line["uuid"]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def call(self, id: str) -> None:
        """The model asks for a tool."""
        self.add("assistant", [{"type": "tool_use", "id": id, "name": "Bash", "input": {}}])

    def result(self, id: str) -> None:
        """And gets its result."""
        self.add("user", [{"type": "tool_result", "tool_use_id": id, "content": "done"}])


@pytest.fixture
def transcript(world: World) -> Transcript:
    """The transcript of the agent's session."""
    return Transcript(world.root / "transcript.jsonl")


def test_a_transcript_that_is_made_late(world: World, agent: Agent, transcript: Transcript) -> None:
    """A quick first turn ends before the agent has made the file: it is said once all the same."""
    transcript.path.unlink()
    agent.begin()
    agent.prompt("quick", id="p1")
    hook = agent.start(agent.payload("Stop", last_assistant_message="done"))
    time.sleep(0.3)
    transcript.add("user", "quick", promptId="p1")
    transcript.add("assistant", [{"type": "text", "text": "done"}])
    hook.communicate(timeout=30)
    agent.hook("SessionEnd", reason="other")
    with world.session() as session:
        assert len(session.messages()) == 2
        assert session.branches() == []
        assert [e.kind for e in session.events()].count("assistant_message") == 1


def test_a_call_stands_before_what_it_did(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """So that a rewind into the middle of a turn finds the files of that moment."""
    a, b = world.project / "a.txt", world.project / "b.txt"
    agent.begin()
    agent.prompt("do two things", id="p1")
    transcript.add("user", "do two things", promptId="p1")

    def first() -> None:
        a.write_text("a")
        transcript.call("t1")

    def second() -> None:
        transcript.result("t1")
        b.write_text("b")
        transcript.call("t2")

    agent.bash(first, "t1")
    agent.bash(second, "t2")
    transcript.result("t2")
    transcript.add("assistant", [{"type": "text", "text": "both are done"}])
    agent.hook("Stop", last_assistant_message="both are done")
    agent.hook("SessionEnd", reason="other")
    events = world.events()
    kinds = [event.kind for event in events[2:]]
    turn = ["assistant_message", "action", "tool_result"] * 2
    assert kinds == ["user_message", *turn, "assistant_message", "turn_end", "session_end"]
    assert world.misses() == []
    between = next(event for event in events if event.kind == "tool_result")
    with world.session() as session:
        assert not session.pending()
        session.rewind(between)
    assert (a.exists(), b.exists()) == (True, False)


def test_a_transcript_that_cannot_be_read_costs_nothing_else(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """Lines that are no lines are passed over; the prompt is kept."""
    agent.begin()
    transcript.path.write_bytes(b"\xff\x00 no json\n[1]\n" + b'{"type": "user"' * 3)
    agent.prompt("all the same")
    said = world.events("claude-code:s1", "user_message")
    assert [event.data["message"]["content"] for event in said] == ["all the same"]


def test_without_a_transcript_hooks_record_what_was_said(world: World, agent: Agent) -> None:
    """Agents can be set to keep none."""
    agent.more = {"transcript_path": str(world.root / "none.jsonl")}
    agent.begin()
    agent.prompt("go")
    agent.bash(lambda: None, "t1")
    agent.hook("Stop", last_assistant_message="done")
    kinds = ("user_message", "action", "assistant_message", "turn_end")
    assert [event.kind for event in world.events("claude-code:s1", *kinds)] == list(kinds)


def test_several_stops_are_one_end(world: World, agent: Agent, transcript: Transcript) -> None:
    """Other hooks may have an agent go on."""
    agent.begin()
    agent.prompt("go")
    transcript.add("user", "go")
    agent.stop()
    agent.stop()
    assert len(world.events("claude-code:s1", "turn_end")) == 1


def test_a_call_whose_beginning_was_missed(world: World, agent: Agent) -> None:
    """It says so, and what changed is in the log as another's."""
    agent.begin()
    agent.prompt("go")
    (world.project / "a.txt").write_text("a")
    agent.hook("PostToolUse", tool_name="Bash", tool_input={}, tool_use_id="t1")
    (action,) = world.events("claude-code:s1", "action")
    assert action.data["files"] == {"missed": "the beginning of the call was not seen"}
    agent.prompt("next")
    (changed,) = world.events("claude-code:s1", "files_changed")
    assert "after" in changed.data["files"]


@pytest.mark.parametrize(
    ("tool", "heavy"),
    [
        ("Read", ("msgspec", "apsw", "dataclasses", "pathlib", "argparse", "subprocess")),
        ("Bash", ("backtrail.session", "backtrail.exchange.intake", "rich", "argparse", "anyio",
                  "platformdirs", "asyncio", "socket", "tempfile", "dataclasses", "inspect",
                  "typing_extensions", "hashlib", "signal")),
    ],
)  # fmt: skip
def test_a_hook_loads_only_what_it_needs(
    world: World, agent: Agent, tool: str, heavy: tuple[str, ...]
) -> None:
    """Imports are most of its time."""
    agent.begin()
    code = (
        "import sys; from backtrail.exchange.hooks.endpoint import serve\n"
        "printed = serve('claude-code')\n"
        f"print([printed, *(name for name in {heavy!r} if name in sys.modules)])"
    )
    given = agent.payload("PreToolUse", tool_name=tool, tool_input={}, tool_use_id="t1")
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, env=world.env, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "['']"
    assert world.misses() == []


def _runs(transcript: Transcript, id: str, name: str, **given: Any) -> None:
    """A call and its result, as the transcript has them."""
    transcript.add("assistant", [{"type": "tool_use", "id": id, "name": name, "input": given}])
    transcript.result(id)


def test_calls_that_no_hook_saw(world: World, agent: Agent, transcript: Transcript) -> None:
    """They are named as not captured where they can change files; others and seen ones are not."""
    path = str(world.project / "a.txt")
    transcript.add("user", "before there were hooks")
    _runs(transcript, "t1", "Read", file_path=path)
    _runs(transcript, "t2", "Write", file_path=path, content="a")
    _runs(transcript, "t3", "Bash", command="touch b.txt")
    for name in ("Grep", "Glob", "LS", "WebFetch", "Task", "Agent"):
        _runs(transcript, f"t-{name}", name)
    failed = {"type": "tool_result", "tool_use_id": "t4", "content": "no", "is_error": True}
    transcript.add("assistant", [{"type": "tool_use", "id": "t4", "name": "Edit",
                                  "input": {"file_path": path}}])  # fmt: skip
    transcript.add("user", [failed])
    transcript.add("assistant", [{"type": "text", "text": "done"}])
    agent.begin()
    agent.prompt("with hooks", id="p1")
    transcript.add("user", "with hooks", promptId="p1")
    agent.bash(lambda: None, "t5")
    transcript.call("t5")
    transcript.result("t5")
    agent.bash((world.project / "c.txt").touch, "t6")
    transcript.call("t6")
    transcript.result("t6")
    agent.stop()
    with world.session() as session:
        rows = [(path, reason) for path, reason, _ in session.not_captured()]
        assert [row[0].partition("(")[2] for row in rows] == ["Write)", "Bash)"]
        assert rows[0][1].endswith(f": {path}")
        assert rows[1][1].endswith(": touch b.txt")
        assert session.undo().not_captured == []
        undone = session.undo()
        assert [row[:2] for row in undone.not_captured] == rows
        assert len(undone.warnings) == 2


def test_what_is_typed_meanwhile_is_seen(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """A hook that saw the turn sees its calls, whatever else is said in it."""
    agent.begin()
    agent.prompt("do it", id="p1")
    transcript.add("user", "do it", promptId="p1")
    agent.bash(lambda: None, "t1")
    _runs(transcript, "t1", "Bash", command="true")
    queued = {"type": "queued_command", "prompt": "and this", "origin": {"kind": "human"}}
    transcript.add("attachment", None, message=None, attachment=queued)
    agent.bash(lambda: None, "t2")
    _runs(transcript, "t2", "Bash", command="true")
    agent.stop()
    with world.session() as session:
        assert len([e for e in session.events() if e.kind == "user_message"]) == 2
        assert session.not_captured() == []


def test_history_that_is_imported_is_not_missed(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """No hook was meant to see it."""
    transcript.add("user", "long ago", cwd=str(world.project))
    _runs(transcript, "t1", "Write", file_path=str(world.project / "a.txt"), content="a")
    done = world.run("import", "claude-code", str(transcript.path))
    assert done.returncode == 0, done.stderr
    with world.session("claude-code:transcript") as session:
        assert not [row for row in session.not_captured() if "hook" in row[1]]
