"""What changes while a person is asked, after a call was denied, or after it was given up."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backtrail.files.changes.brackets import Bracket
from backtrail.files.depot import Depot

from .calling import PROGRAM, Agent, World

COMMAND = "sleep 1; echo ran > ran.txt"
AGENTS = ["claude-code", "codex", "gemini"]


class Asking:
    """A shell call that a person is asked about, in the words of an agent."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.agent = Agent(world, name)
        self.key = f"{name}:s1"
        gemini = name == "gemini"
        self._before, self._after = (
            ("BeforeTool", "AfterTool") if gemini else ("PreToolUse", "PostToolUse")
        )
        self._prompt = "BeforeAgent" if gemini else "UserPromptSubmit"
        tool = "run_shell_command" if gemini else "Bash"
        self._call: dict[str, Any] = {"tool_name": tool, "tool_input": {"command": COMMAND}}
        if not gemini:
            self._call["tool_use_id"] = "call_1"

    def prompt(self, text: str) -> None:
        self.agent.hook(self._prompt, prompt=text)

    def begin(self) -> None:
        """The session, a prompt, and the hook before the call."""
        self.agent.hook("SessionStart", source="startup")
        self.prompt("go")
        self.agent.hook(self._before, **self._call)

    def ask(self) -> None:
        """The question is on the screen."""
        if self.agent.name == "gemini":
            details = {"type": "exec", "title": "Confirm", "command": COMMAND, "rootCommand": "x"}
            kind = "ToolPermission"
            self.agent.hook("Notification", notification_type=kind, message="?", details=details)
            return
        fields = {"tool_name": "Bash", "tool_input": {"command": COMMAND, "description": "please"}}
        self.agent.hook("PermissionRequest", **fields)

    def deny(self) -> None:
        """A person presses Esc: only Codex has a hook for that."""
        if self.agent.name == "codex":
            self.agent.hook("Interrupt")

    def end(self, took: float) -> None:
        """The command is done, and took so many seconds."""
        more: dict[str, Any] = {}
        if self.agent.name == "claude-code":
            more["duration_ms"] = int(took * 1000)
        if self.agent.name == "codex":
            length = {"secs": int(took), "nanos": int(took % 1 * 1e9)}
            item = {"type": "CommandExecution", "id": "call_1", "duration": length}
            done = {"type": "item_completed", "item": item, "completed_at_ms": time.time() * 1000}
            with (self.world.root / "transcript.jsonl").open("a") as file:
                file.write(json.dumps({"type": "event_msg", "payload": done}) + "\n")
        self.agent.hook(self._after, tool_response={}, **more, **self._call)

    def brackets(self) -> list[Bracket]:
        with self.world.session(self.key) as session:
            depot = Depot.of(session.store)
            try:
                return depot.catalogue.lines.calls()
            finally:
                depot.close()


@pytest.fixture(params=AGENTS)
def asking(request: pytest.FixtureRequest, world: World) -> Asking:
    (world.project / "mine.txt").write_text("old\n")
    return Asking(world, request.param)


def taken_back(asking: Asking, **how: Any) -> tuple[list[str], list[str]]:
    """The paths that going back before the first prompt changes, and those that it keeps."""
    with asking.world.session(asking.key) as session:
        first = next(session.events(kinds=("user_message",)))
        done = session.rewind(before=first, scope="files", **how)
        acted = [file.path for file in done.files if file.action not in ("conflict", "skip")]
        return acted, [file.path for file in done.conflicts]


def test_what_changes_with_a_call_that_was_denied_is_kept(asking: Asking) -> None:
    """Perhaps it was allowed and then stopped: what changed is kept, and named."""
    mine, new = asking.world.project / "mine.txt", asking.world.project / "new.txt"
    asking.begin()
    asking.ask()
    new.write_text("mine\n")
    asking.deny()
    mine.write_text("mine\n")
    asking.prompt("next")
    (action,) = asking.world.events(asking.key, "action")
    # Codex says at once that it was stopped: what comes later is surely not the call's.
    kept = ["new.txt"] if asking.agent.name == "codex" else ["mine.txt", "new.txt"]
    assert action.data["files"]["doubtful"] == kept
    assert taken_back(asking) == ([], kept)
    assert (mine.read_text(), new.read_text()) == ("mine\n", "mine\n")
    assert asking.brackets() == []
    assert asking.world.misses() == []


def test_a_call_that_was_denied_owns_nothing(asking: Asking) -> None:
    """Where nothing changed before the next prompt."""
    asking.begin()
    asking.ask()
    asking.deny()
    asking.prompt("next")
    (asking.world.project / "mine.txt").write_text("mine\n")
    asking.prompt("and on")
    assert taken_back(asking) == ([], [])
    assert asking.world.events(asking.key, "action") == []
    assert len(asking.world.events(asking.key, "files_changed")) == 1
    assert asking.brackets() == []


def test_what_was_saved_while_the_question_waited_is_kept(asking: Asking) -> None:
    """The call ran in the end: what it wrote goes back, what changed before stays, and is said."""
    mine, ran = asking.world.project / "mine.txt", asking.world.project / "ran.txt"
    folder = asking.world.project / "folder"
    folder.mkdir()
    gone = folder / "gone.txt"
    gone.write_text("x\n")
    asking.begin()
    asking.ask()
    mine.write_text("mine\n")
    gone.unlink()
    time.sleep(1.3)
    began = time.time()
    ran.write_text("ran\n")
    asking.end(time.time() - began)
    acted, kept = taken_back(asking)
    assert (acted, sorted(kept)) == (["ran.txt"], ["folder/gone.txt", "mine.txt"])
    assert (mine.read_text(), ran.exists(), gone.exists()) == ("mine\n", False, False)
    assert taken_back(asking, on_conflict="overwrite")[1] == []
    assert (mine.read_text(), gone.read_text()) == ("old\n", "x\n")


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_a_long_call_after_a_question(world: World, name: str) -> None:
    """The agent says how long the call ran: all that it wrote is its own."""
    asking = Asking(world, name)
    asking.begin()
    asking.ask()
    began = time.time()
    for n in range(3):
        (world.project / f"{n}.txt").write_text("x\n")
        time.sleep(0.6)
    asking.end(time.time() - began)
    assert taken_back(asking) == (["0.txt", "1.txt", "2.txt"], [])


def test_a_call_without_a_question_is_as_ever(asking: Asking) -> None:
    """Also if it began long before it wrote."""
    asking.begin()
    (asking.world.project / "early.txt").write_text("x\n")
    time.sleep(1.2)
    (asking.world.project / "late.txt").write_text("x\n")
    asking.end(0.1)
    assert taken_back(asking) == (["early.txt", "late.txt"], [])


def test_a_denial_that_has_a_hook(world: World) -> None:
    """Claude Code denies by itself, too: the call is over at once, and the turn goes on."""
    agent = Agent(world)
    agent.begin()
    agent.prompt("go")
    fields = {"tool_name": "Bash", "tool_input": {"command": "x"}, "tool_use_id": "t1"}
    agent.hook("PreToolUse", **fields)
    (world.project / "mine.txt").write_text("mine\n")
    agent.hook("PermissionDenied", reason="no", **fields)
    agent.bash(lambda: (world.project / "its.txt").write_text("x\n"), "t2")
    agent.stop()
    with world.session() as session:
        calls = {c.by: [f.path for f in c.files] for t in session.changes() for c in t.calls}
    assert calls == {"others": ["mine.txt"], "Bash": ["its.txt"]}


def test_an_agent_that_dies_with_a_question(world: World) -> None:
    """It is not known whether the call ran: all that changed is kept, and is said."""
    asking = Asking(world, "codex")
    code = """if True:
        import subprocess, sys
        for event in sys.argv[3:]:
            subprocess.run([sys.argv[1], "hook", "codex"], input=event.encode(), check=True)
        open(sys.argv[2], "w").write("x")
        """
    call = {"tool_name": "Bash", "tool_input": {"command": COMMAND}}
    agent = asking.agent
    events = [
        agent.payload("SessionStart", source="startup"),
        agent.payload("UserPromptSubmit", prompt="go"),
        agent.payload("PreToolUse", tool_use_id="call_1", **call),
        agent.payload("PermissionRequest", **call),
    ]
    made = world.project / "made.txt"
    subprocess.run(
        ["python3", "-c", code, PROGRAM, str(made), *(event.decode() for event in events)],
        env=world.env, cwd=world.project, check=True, timeout=60,
    )  # fmt: skip
    asking.prompt("next")
    (action,) = world.events(asking.key, "action")
    assert action.data["files"]["doubtful"] == ["made.txt"]
    assert taken_back(asking) == ([], ["made.txt"])
    assert made.exists()


# --- calls that go on without their agent ----------------------------------------------------


@contextmanager
def started(command: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that a shell runs, as agents have it run."""
    with subprocess.Popen(["/bin/bash", "-c", command], cwd=cwd) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_for(path: Path) -> None:
    for _ in range(500):
        if path.exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"{path.name} did not come")


@pytest.mark.parametrize("asked", [True, False])
def test_an_interrupted_command_that_goes_on_writing(world: World, asked: bool) -> None:
    """What it wrote until then is the call's; what comes later is kept, and said to be its."""
    command = "echo x > first.txt; while [ ! -e go.txt ]; do sleep 0.02; done; echo x > later.txt"
    call = {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": "call_1"}
    # The command is looked for below the agent, which is this process.
    world.forks = False
    project, agent = world.project, Agent(world, "codex")
    agent.hook("SessionStart", source="startup")
    agent.hook("UserPromptSubmit", prompt="go")
    agent.hook("PreToolUse", **call)
    if asked:
        agent.hook("PermissionRequest", **{**call, "tool_use_id": ""})
    with started(command, project) as child:
        wait_for(project / "first.txt")
        agent.hook("Interrupt")
        (project / "go.txt").write_text("a person's\n")
        child.wait(20)
    agent.hook("UserPromptSubmit", prompt="next")
    first, later = world.events("codex:s1", "action")
    assert (first.data["interrupted"], later.data["interrupted"]) == (True, True)
    assert "doubtful" not in first.data["files"]
    assert later.data["files"]["doubtful"] == ["go.txt", "later.txt"]
    with world.session("codex:s1") as session:
        done = session.rewind(before=2, scope="files")
        acted = [file.path for file in done.files if file.action == "delete"]
    assert acted == ["first.txt"]
    assert [file.path for file in done.conflicts] == ["go.txt", "later.txt"]
    assert (project / "later.txt").exists()
    assert Asking(world, "codex").brackets() == []


def test_an_interrupted_command_is_still_at_it_with_the_next_prompt(world: World) -> None:
    """It stays the call's, across turns, until its process is gone."""
    command = "while [ ! -e go.txt ]; do sleep 0.02; done; echo x > later.txt"
    call = {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": "call_1"}
    # The command is looked for below the agent, which is this process.
    world.forks = False
    project, agent = world.project, Agent(world, "codex")
    agent.hook("SessionStart", source="startup")
    agent.hook("UserPromptSubmit", prompt="go")
    agent.hook("PreToolUse", **call)
    with started(command, project) as child:
        agent.hook("Interrupt")
        agent.hook("UserPromptSubmit", prompt="next")
        (bracket,) = Asking(world, "codex").brackets()
        assert (bracket.left, bracket.pid) == (True, child.pid)
        (project / "go.txt").write_text("go\n")
        child.wait(20)
    agent.hook("Stop", last_assistant_message="done")
    (action,) = world.events("codex:s1", "action")
    assert action.data["files"]["doubtful"] == ["go.txt", "later.txt"]
    assert Asking(world, "codex").brackets() == []


# --- calls without an id ---------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("tool", ["write_file", "run_shell_command"])
def test_parallel_calls_of_one_tool_are_distinguished(world: World, tool: str, order: str) -> None:
    """Gemini CLI names no call: what each was given shows which one is over."""
    agent = Agent(world, "gemini")
    agent.hook("SessionStart", source="startup")
    agent.hook("BeforeAgent", prompt="go")

    def given(name: str) -> dict[str, Any]:
        if tool == "write_file":
            return {"file_path": str(world.project / f"{name}.txt"), "content": name}
        return {"command": f"echo > {name}.txt"}

    for name in "ab":
        agent.hook("BeforeTool", tool_name=tool, tool_input=given(name))
    for name in order:
        (world.project / f"{name}.txt").write_text(name)
        agent.hook("AfterTool", tool_name=tool, tool_input=given(name), tool_response={})
    with world.session("gemini:s1") as session:
        by_call = {
            json.dumps(event.data["input"]): [f.path for f in call.files]
            for event in session.events(kinds=("action",))
            for turn in session.changes() for call in turn.calls if call.seq == event.seq
        }  # fmt: skip
    assert by_call == {json.dumps(given(name)): [f"{name}.txt"] for name in "ab"}
