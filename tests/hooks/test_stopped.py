"""Calls that a person stops, or whose process dies: what they did, and what came after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, open_store
from backtrail.cli.picker import Rows, prompts
from backtrail.exchange.export.document import Reader
from backtrail.files.restore.repairs import end_all

from .calling import PROGRAM, Agent, World, python
from .test_mirroring import Transcript

BASH: dict[str, Any] = {"tool_name": "Bash", "tool_input": {"command": "…"}}
REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it "
    "was a file edit, the new_string was NOT written to the file)."
)
INTERRUPTED = "[Request interrupted by user for tool use]"

_AGENT = """if True:
    import subprocess, sys
    for event in sys.argv[3:]:
        subprocess.run([sys.argv[1], "hook", sys.argv[2]], input=event.encode(), check=True)
    print("open", flush=True)
    sys.stdin.read()
    """


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Claude:
    """Claude Code in a shell call, with what it writes down."""

    def __init__(self, world: World) -> None:
        self.project = world.project
        self.agent = Agent(world)
        self.transcript = Transcript(world.root / "transcript.jsonl")
        (self.project / "mine.txt").write_text("old\n")
        (self.project / "gone.txt").write_text("old\n")

    def begin(self, *, asked: bool) -> None:
        self.agent.begin()
        self.agent.prompt("go", id="p1")
        self.transcript.add("user", "go", promptId="p1", timestamp=now())
        self.transcript.call("t1")
        self.agent.hook("PreToolUse", tool_use_id="t1", **BASH)
        if asked:
            self.agent.hook("PermissionRequest", **BASH)

    def escape(self) -> None:
        """A person presses Esc: no hook says so."""
        answer = {"type": "tool_result", "tool_use_id": "t1", "content": REJECTED, "is_error": True}
        self.transcript.add("user", [answer], timestamp=now())
        self.transcript.add("user", [{"type": "text", "text": INTERRUPTED}], timestamp=now())

    def edit(self) -> None:
        """A person edits a file, makes one and deletes one, some time later."""
        time.sleep(1.3)
        (self.project / "mine.txt").write_text("mine\n")
        (self.project / "new.txt").write_text("mine\n")
        (self.project / "gone.txt").unlink()

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.project.iterdir() if path.is_file()}


EDITED = {"mine.txt": "mine\n", "new.txt": "mine\n"}


@pytest.fixture
def claude(world: World) -> Claude:
    return Claude(world)


def test_doctor_status_and_undo_agree_that_a_call_is_over(world: World, claude: Claude) -> None:
    """Its process lives on; the agent was stopped. Looking ends nothing, and says what does."""
    claude.begin(asked=True)
    done = world.run("doctor")
    assert "open in" in done.stdout and "no call is open" not in done.stdout
    (world.project / "ran.txt").write_text("ran\n")
    claude.escape()
    for _ in range(2):
        assert "Under way" not in world.run("status").stdout
        done = world.run("doctor")
        assert "no call is open" in done.stdout
        assert "over, begun in" in done.stdout
        assert "the session's next prompt, `undo` or `rewind` notes its end" in done.stdout
    ran = world.run("undo", "--yes").stdout
    assert "perhaps not changed by the call" in ran and "perhaps by you" not in ran
    assert "`Bash`" not in world.run("doctor").stdout


def test_why_a_file_is_kept_is_said_once(
    world: World, claude: Claude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a long call, in which a person may have saved something anyway."""
    monkeypatch.setattr("backtrail.files.workspace.workspace.LONG_CALL", -1.0)
    claude.begin(asked=True)
    (world.project / "ran.txt").write_text("ran\n")
    claude.escape()
    with world.session("claude-code:s1") as session:
        (kept,) = session.undo().conflicts
    assert (kept.path, kept.reason.count("perhaps")) == ("ran.txt", 1), kept


def named(done: subprocess.CompletedProcess[str], *names: str) -> bool:
    return all(name in done.stdout + done.stderr for name in names)


def repaired(world: World) -> None:
    """As `doctor --repair` does, which is refused to a child of the agent: this process."""
    with open_store(world.url) as store:
        assert len(list(end_all(store))) == 1


@pytest.mark.parametrize("then", ["undo", "prompt", "doctor"])
def test_a_command_that_was_allowed_and_stopped(world: World, claude: Claude, then: str) -> None:
    """Denied and stopped look alike: what changed is kept, and named."""
    claude.begin(asked=True)
    (world.project / "ran.txt").write_text("ran\n")
    claude.escape()
    if then == "prompt":
        claude.agent.prompt("next", id="p2")
    if then == "doctor":
        repaired(world)
    if then == "prompt":
        done = world.run("rewind", "@-2", "--scope", "files", "--yes")
    else:
        done = world.run("undo", "--yes")
    assert (done.returncode, named(done, "ran.txt")) == (4, True), done
    assert (world.project / "ran.txt").read_text() == "ran\n"
    done = world.run("restore", "ran.txt", "--on-conflict", "overwrite", "--yes")
    assert (done.returncode, (world.project / "ran.txt").exists()) == (0, False), done


@pytest.mark.parametrize("then", ["undo", "prompt", "doctor", "status"])
def test_what_a_person_edits_after_stopping_a_command(
    world: World, claude: Claude, then: str
) -> None:
    """What the command did goes back; later edits stay, and are named."""
    claude.begin(asked=False)
    (world.project / "ran.txt").write_text("ran\n")
    claude.escape()
    claude.edit()
    if then == "prompt":
        claude.agent.prompt("next", id="p2")
    if then == "doctor":
        repaired(world)
    if then == "status":
        done = world.run("status", "--json")
        ran = json.loads(done.stdout)
        perhaps = {file["path"]: file.get("perhaps") for file in ran["last_turn"]}
        person = dict.fromkeys(("gone.txt", "mine.txt", "new.txt"), "a person")
        assert perhaps == {"ran.txt": None, **person}, ran
        assert ran["since"] == []
    if then == "prompt":
        done = world.run("rewind", "@-2", "--scope", "files", "--yes")
    else:
        done = world.run("undo", "--yes")
    assert (done.returncode, named(done, "mine.txt", "new.txt", "gone.txt")) == (4, True), done
    assert claude.files() == EDITED


def test_an_interruption_is_no_turn(world: World, claude: Claude) -> None:
    claude.begin(asked=False)
    claude.escape()
    claude.agent.prompt("next", id="p2")
    said = [e.data["message"]["content"] for e in world.events("claude-code:s1", "user_message")]
    assert said == ["go", "next"]
    assert world.sessions()[0].turn_count == 2


def test_undo_is_not_refused_once_a_command_was_stopped(world: World, claude: Claude) -> None:
    """Before, it is."""
    claude.begin(asked=False)
    (world.project / "ran.txt").write_text("ran\n")
    done = world.run("undo", "--yes")
    assert (done.returncode, "`--force`" in done.stderr) == (5, True), done
    claude.escape()
    done = world.run("undo", "--dry-run")
    assert not named(done, "refused"), done
    done = world.run("undo", "--yes")
    assert (done.returncode, (world.project / "ran.txt").exists()) == (0, False), done


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini"])
@pytest.mark.parametrize("then", ["undo", "status", "doctor"])
def test_what_a_person_edits_after_an_agent_was_killed(world: World, name: str, then: str) -> None:
    claude = Claude(world)
    agent = claude.agent = Agent(world, name)
    before = "BeforeTool" if name == "gemini" else "PreToolUse"
    prompt = "BeforeAgent" if name == "gemini" else "UserPromptSubmit"
    agent.hook("SessionStart", source="startup")
    agent.hook(prompt, prompt="go")
    tool = "run_shell_command" if name == "gemini" else "Bash"
    event = agent.payload(before, tool_name=tool, tool_input={"command": "…"}, tool_use_id="t1")
    child = python(_AGENT, PROGRAM, name, event.decode(), env=world.env)
    assert child.stdout is not None and child.stdout.readline() == "open\n"
    (world.project / "ran.txt").write_text("ran\n")
    child.kill()
    child.communicate()
    claude.edit()
    if then == "status":
        ran = json.loads(world.run("status", "--json").stdout)
        whose = {file["path"]: file.get("perhaps") for file in ran["last_turn"]}
        assert (whose["mine.txt"], whose["ran.txt"], ran["since"]) == ("a person", None, [])
    if then == "doctor":
        assert world.run("doctor", "--repair").returncode == 0
    done = world.run("undo", "--yes")
    assert (done.returncode, named(done, "mine.txt", "new.txt", "gone.txt")) == (4, True), done
    assert claude.files() == EDITED


@pytest.fixture
def recorded(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """A `record` whose command wrote a file after more than two seconds, and goes on."""
    command = "sleep 2.2; echo x > ran.txt; echo; exec sleep 60"
    with subprocess.Popen(
        [PROGRAM, "record", "--", "sh", "-c", command],
        stdout=subprocess.PIPE, env=world.env, cwd=world.project, start_new_session=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.3)
        yield child
        child.kill()


@pytest.mark.parametrize("later", [0.1, 1.8])
def test_what_a_person_edits_after_a_record_was_killed(
    world: World, recorded: subprocess.Popen[bytes], later: float
) -> None:
    """It shows that it lives for as long as it does: what the command did is its own."""
    (world.project / "mine.txt").write_text("old\n")
    os.killpg(recorded.pid, signal.SIGKILL)
    recorded.wait()
    time.sleep(later)
    (world.project / "new.txt").write_text("mine\n")
    done = world.run("undo", "--yes")
    assert (done.returncode, named(done, "new.txt")) == (4, True), done
    assert not (world.project / "ran.txt").exists()
    assert (world.project / "new.txt").read_text() == "mine\n"


def test_other_sessions_look_in_between(world: World, claude: Claude, tmp_path: Path) -> None:
    """The first to look ends the call, and marks the same."""
    claude.begin(asked=False)
    (world.project / "ran.txt").write_text("ran\n")
    claude.escape()
    claude.edit()
    other = Agent(world, session="other")
    other.prompt("look")
    with open_store(world.url) as store:
        own = store.sessions(key="claude-code:s1")[0].id
    done = world.run("undo", "--yes", "--session", own)
    assert (done.returncode, named(done, "mine.txt", "new.txt", "gone.txt")) == (4, True), done
    assert claude.files() == EDITED


def test_a_subagent_that_was_stopped_with_its_parent(world: World, claude: Claude) -> None:
    """Its own transcript says so: its call is over, and goes back."""
    claude.agent.begin()
    claude.agent.prompt("go", id="p1")
    claude.agent.hook("PreToolUse", tool_use_id="t1", agent_id="sub", **BASH)
    (world.project / "ran.txt").write_text("ran\n")
    claude.agent.prompt("next", id="p2")
    assert world.run("undo", "--yes").returncode == 5
    beside = world.root / "transcript" / "subagents"
    beside.mkdir(parents=True)
    side = Transcript(beside / "agent-sub.jsonl")
    side.add("user", [{"type": "text", "text": INTERRUPTED}], timestamp=now())
    done = world.run("rewind", "@-2", "--scope", "files", "--yes")
    assert done.returncode == 0, done
    assert claude.files() == {"mine.txt": "old\n", "gone.txt": "old\n"}


def test_diff_marks_what_is_perhaps_a_persons(world: World, claude: Claude) -> None:
    """With the counts of status."""
    claude.begin(asked=False)
    (world.project / "ran.txt").write_text("ran\n")
    claude.escape()
    claude.edit()
    assert world.run("diff", "--stat").stderr.splitlines()[-2:] == [
        "1 file, +1 −0",
        "perhaps not its own: 3 files, +2 −2: gone.txt, mine.txt, new.txt",
    ]


def test_the_picker_counts_what_status_counts(world: World, claude: Claude) -> None:
    """One file is the command's; three are perhaps a person's."""
    claude.begin(asked=False)
    (world.project / "ran.txt").write_text("ran\n")
    claude.escape()
    claude.edit()
    claude.agent.prompt("next", id="p2")
    with Session.open(world.url, world.sessions()[0].id, cwd=world.project) as session:
        found = prompts(session)
        with Reader(session.store, session.info()) as reader:
            row = Rows(session, found, reader)[0]
    assert row.split("  ")[1:] == ["1 file +1 (3 perhaps)", "go"], row
    shown = world.run("show").stdout
    assert "    perhaps not its own: gone.txt, mine.txt, new.txt\n" in shown
