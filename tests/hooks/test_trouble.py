"""Whatever is wrong: a hook exits 0, prints nothing, spoils nothing, and the miss is noted."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from backtrail import open_store
from backtrail.exchange.hooks.small_files import FILE, Miss, note_miss, read_misses
from backtrail.files import verify

from .calling import PROGRAM, Agent, World


def state_misses() -> list[Miss]:
    """What hooks noted in the user's state, where the store is the problem."""
    folder = Path(os.environ["BACKTRAIL_STATE"], "hooks")
    return [
        Miss(**json.loads(line)) for line in (folder / FILE).read_text("utf-8").splitlines()
    ]  # fmt: skip


# --- what comes in -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"hello",
        b"\x00\xff\xfe" * 100,
        b"[1, 2]",
        b"null",
        b'{"hook_event_name": "PreToolUse"',
        b"[" * 200_000,
        b'{"a":' * 100_000,
    ],
    ids=["nothing", "words", "bytes", "list", "null", "torn", "deep list", "deep object"],
)
def test_garbage_is_a_miss(world: World, agent: Agent, given: bytes) -> None:
    """Also what nests deeper than a parser goes."""
    assert agent.raw(given) == ""
    (miss,) = state_misses()
    assert (miss.agent, miss.why) == ("claude-code", "what came on stdin is not a JSON object")


def test_fields_of_any_type(world: World, agent: Agent) -> None:
    """Each field may be anything; what the rest shows is recorded."""
    agent.begin()
    odd: list[Any] = [None, 3, [], {}, "", "\ud800", "a\0b", "x" * 5000, "../../etc"]
    names = ["session_id", "cwd", "transcript_path", "prompt", "prompt_id", "tool_name"]
    names += ["tool_use_id", "tool_input", "agent_id", "hook_event_name"]
    choice = random.Random(7)
    events = ("UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd")
    for _ in range(25):
        fields = {name: choice.choice(odd) for name in choice.sample(names, 3)}
        assert agent.hook(choice.choice(events), **fields) == ""
    with open_store(world.url) as store:
        assert store.verify() == []


def test_50_mb_on_stdin(world: World, agent: Agent) -> None:
    """A large result is read and not kept: the transcript has it."""
    agent.begin()
    agent.hook("PreToolUse", tool_name="Bash", tool_input={}, tool_use_id="t1")
    (world.project / "a.txt").write_text("x")
    large = {"stdout": "y" * 50_000_000}
    fields = {"tool_name": "Bash", "tool_input": large, "tool_response": large}
    assert agent.hook("PostToolUse", tool_use_id="t1", **fields) == ""
    (action,) = world.events("claude-code:s1", "action")
    assert "files" in action.data
    assert len(json.dumps(action.data)) < 100_000
    assert world.misses() == []


def test_an_event_without_a_session_is_a_miss(world: World, agent: Agent) -> None:
    """There is nothing to put it into."""
    agent.hook("UserPromptSubmit", session_id="", prompt="x")
    assert world.misses()[-1].why == "the event names no session"
    assert world.sessions() == []


def test_unknown_events_are_nothing(world: World, agent: Agent) -> None:
    """Agents get new ones now and then."""
    assert agent.hook("Notification", message="x") == ""
    assert not (world.root / "store").exists()


def test_switched_off(world: World, agent: Agent) -> None:
    """By the environment or by a settings file; the agent's bytes are taken all the same."""
    world.env["BACKTRAIL_HOOKS"] = "off"
    assert agent.raw(agent.payload("UserPromptSubmit", prompt="x" * 1_000_000)) == ""
    del world.env["BACKTRAIL_HOOKS"]
    own = own_settings(world)
    own.write_text("hooks = false\n")
    assert agent.prompt("hello") == ""
    assert not (world.root / "store").exists()
    own.unlink()
    (world.project / ".backtrail.toml").write_text("hooks = false\nhook_timeout = 0.0001\n")
    agent.prompt("hello")
    assert len(world.events("claude-code:s1", "user_message")) == 1


def test_switched_off_in_a_folder(world: World, agent: Agent) -> None:
    """By the person's own file, read each time: there and below, by whatever name it has."""
    sub, link = world.project / "sub", world.root / "link"
    sub.mkdir()
    link.symlink_to(world.project)
    own = own_settings(world)
    own.write_text(f'hooks_off = ["{link}"]\n')
    assert agent.prompt("there") == ""
    agent.hook("UserPromptSubmit", prompt="below", cwd=str(sub))
    assert not (world.root / "store").exists()
    ran = world.run("hooks", "status")
    assert str(link) in ran.stdout and "nothing is recorded" in ran.stdout
    agent.hook("UserPromptSubmit", prompt="elsewhere", cwd=str(world.home))
    own.unlink()
    agent.prompt("there again")
    (world.project / ".backtrail.toml").write_text('hooks_off = ["."]\n')
    agent.prompt("a project cannot")
    said = [e.data["message"]["content"] for e in world.events("claude-code:s1", "user_message")]
    assert said == ["elsewhere", "there again", "a project cannot"]


def own_settings(world: World) -> Path:
    """Where the person's own settings are."""
    path = world.home / ".config" / "backtrail" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_a_store_that_a_project_brings_stops_no_recording(world: World, agent: Agent) -> None:
    """Until it is allowed, the person's own store is used; nothing is written in the other."""
    del world.env["BACKTRAIL_STORE"]
    (world.project / ".backtrail.toml").write_text('store = "sqlite:///brought.db"\n')
    agent.prompt("hello")
    assert not list(world.project.glob("brought*"))
    with open_store(f"sqlite:///{world.home}/.local/share/backtrail/backtrail.db") as store:
        (info,) = store.sessions()
        assert info.key == "claude-code:s1" and info.turn_count == 1


# --- time --------------------------------------------------------------------------------


def test_the_limit_holds_while_a_lock_is_held(world: World, agent: Agent) -> None:
    """A hook that cannot get on leaves, and what it missed is noted."""
    agent.begin()
    world.env["BACKTRAIL_HOOK_TIMEOUT"] = "0.5"
    lock = next((world.root / "store").glob("*-lock"))
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert agent.prompt("lost") == ""
    miss = world.misses()[-1]
    assert (miss.event, miss.why) == ("UserPromptSubmit", "took longer than 0.5 s")
    world.env["BACKTRAIL_HOOK_TIMEOUT"] = "60"
    agent.prompt("kept")
    said = world.events("claude-code:s1", "user_message")
    assert [event.data["message"]["content"] for event in said] == ["kept"]


def test_another_limit_holds_at_once(world: World) -> None:
    """The settings are read when the hook is under way already."""
    code = (
        "import _thread, time\n"
        "from backtrail.exchange.hooks.dialects import DIALECTS\n"
        "from backtrail.exchange.hooks.endpoint import CHECK, Hook\n"
        "hook = Hook(DIALECTS['codex'])\n"
        "hook.event = {'hook_event_name': CHECK}\n"
        "_thread.start_new_thread(hook.watch, ())\n"
        "time.sleep(0.1)\n"
        "hook.relimit(0.2)\n"
        "time.sleep(50)\n"
        "print('nobody left')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=world.env, capture_output=True)
    assert done.stdout == b"took longer than 0.2 s"


def test_the_limit_holds_while_nothing_comes(world: World, agent: Agent) -> None:
    """An agent that keeps stdin open is not waited for."""
    world.env["BACKTRAIL_HOOK_TIMEOUT"] = "0.3"
    child = subprocess.Popen(
        [PROGRAM, "hook", agent.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=world.env
    )
    with child:
        assert child.wait(60) == 0
        assert child.stdout is not None
        assert child.stdout.read() == b""
    assert state_misses()[-1].why == "took longer than 0.3 s"


# --- being killed ------------------------------------------------------------------------


def test_killed_at_any_moment(world: World, agent: Agent) -> None:
    """The log stays whole, the next hook goes on, and the files can be taken back."""
    agent.begin()
    agent.prompt("go", id="p1")
    choice = random.Random(11)
    path = world.project / "a.txt"
    for number in range(12):
        fields = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": f"t{number}"}
        for event in ("PreToolUse", "PostToolUse"):
            child = agent.start(agent.payload(event, **fields))
            time.sleep(choice.uniform(0, 0.25))
            child.send_signal(signal.SIGKILL)
            child.communicate()
            path.write_text(f"{event} {number}")
    agent.prompt("next", id="p2")
    agent.bash(lambda: path.write_text("last"), "t-last")
    with open_store(world.url) as store:
        assert store.verify() == []
        assert verify(store) == []
    with world.session() as session:
        session.rewind(before="p2")
    assert path.read_text() == "PostToolUse 11"


# --- the store ---------------------------------------------------------------------------


def test_a_full_disk(world: World, agent: Agent) -> None:
    """Nothing can be written: the agent goes on, and when there is space all is well again."""
    agent.begin()
    agent.prompt("before", id="p1")

    def no_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    path = world.project / "big.bin"
    fields = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "t1"}
    for event in ("PreToolUse", "PostToolUse", "Stop"):
        path.write_bytes(random.Random(event).randbytes(300_000))
        assert agent.raw(agent.payload(event, **fields), preexec_fn=no_space) == ""
    assert agent.raw(agent.payload("UserPromptSubmit", prompt="lost"), preexec_fn=no_space) == ""
    with open_store(world.url) as store:
        assert store.verify() == []
    agent.prompt("after", id="p2")
    agent.bash(path.unlink, "t2")
    kept = world.events("claude-code:s1", "user_message")
    assert [event.id for event in kept if event.id in ("p1", "p2")] == ["p1", "p2"]
    with world.session() as session:
        session.rewind(before="p2")
    assert path.exists()


def test_a_store_that_cannot_be_made(world: World, agent: Agent) -> None:
    """The miss goes to the user's state."""
    (world.root / "file").write_text("no folder")
    world.env["BACKTRAIL_STORE"] = f"sqlite:///{world.root}/file/store.db"
    assert agent.prompt("hello") == ""
    (miss,) = state_misses()
    assert (miss.event, miss.session) == ("UserPromptSubmit", "s1")


def test_a_damaged_store(world: World, agent: Agent) -> None:
    """It is left as it is."""
    agent.begin()
    database = world.root / "store" / "backtrail.db"
    for end in ("-wal", "-shm"):
        database.with_name(database.name + end).unlink(missing_ok=True)
    garbage = b"this is no database" * 1000
    database.write_bytes(garbage)
    assert agent.prompt("hello") == ""
    assert database.read_bytes() == garbage
    assert state_misses()


def test_a_store_that_may_only_be_read(world: World, agent: Agent) -> None:
    """The agent goes on."""
    agent.begin()
    agent.prompt("kept")
    folder = world.root / "store"
    given = agent.payload("UserPromptSubmit", prompt="lost")
    if os.getuid() == 0:
        # Modes do not hold for root, a mount does.
        script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && "$@"'
        around = ["unshare", "-m", "sh", "-c", script, str(folder)]
        if subprocess.run([*around, "true"], capture_output=True, check=False).returncode:
            pytest.skip("root, and nothing can be mounted")
        done = subprocess.run(
            [*around, PROGRAM, "hook", agent.name], input=given, env=world.env, capture_output=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    else:
        paths = [folder, *folder.rglob("*")]
        modes = {path: path.stat().st_mode for path in paths}
        for path in paths:
            path.chmod(0o500 if path.is_dir() else 0o400)
        try:
            assert agent.raw(given) == ""
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
    assert state_misses()
    assert len(world.events("claude-code:s1", "user_message")) == 1


@pytest.mark.parametrize("text", ["store = [", "nonsense = 1\n", "hook_timeout = 'x'\n"])
def test_damaged_settings(world: World, agent: Agent, text: str) -> None:
    """A project's stop nothing. Of one's own, the miss names the file."""
    (world.project / ".backtrail.toml").write_text(text)
    agent.prompt("hello")
    assert len(world.events("claude-code:s1", "user_message")) == 1
    own_settings(world).write_text(text)
    agent.prompt("again")
    recorded = len(world.events("claude-code:s1", "user_message")) == 2
    assert recorded == text.startswith("nonsense")
    if not recorded:
        (miss,) = state_misses()
        assert "config.toml" in miss.why


def test_a_project_that_is_gone(world: World, agent: Agent) -> None:
    """What is said is still recorded."""
    agent.begin()
    world.project.rename(world.root / "moved")
    given = agent.payload("UserPromptSubmit", prompt="where?")
    assert agent.raw(given, cwd=world.root) == ""
    (said,) = world.events("claude-code:s1", "user_message")
    assert "files" in said.data


def test_files_that_cannot_be_captured_do_not_cost_the_words(world: World, agent: Agent) -> None:
    """The catalogue of contents is damaged: the prompt is kept, and says what is missing."""
    agent.begin()
    catalogue = next((world.root / "store").glob("*-files/catalogue.db"))
    for end in ("-wal", "-shm"):
        catalogue.with_name(catalogue.name + end).unlink(missing_ok=True)
    catalogue.write_bytes(b"garbage" * 5000)
    assert agent.prompt("kept") == ""
    (said,) = world.events("claude-code:s1", "user_message")
    assert said.data["files"]["missed"]
    assert world.misses()


# --- the misses themselves ---------------------------------------------------------------


def test_misses_never_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written, noting says so and raises nothing."""
    blocked = tmp_path / "file"
    blocked.write_text("x")
    monkeypatch.setenv("BACKTRAIL_STATE", str(blocked))
    miss = Miss("2026-01-01T00:00:00.000Z", "codex", "Stop", "s", "", "/", "why")
    assert note_miss(blocked, miss) is False
    monkeypatch.setenv("BACKTRAIL_STATE", str(tmp_path / "state"))
    assert note_miss(blocked, miss) is True
    assert read_misses(None) == [miss]


def test_misses_are_cut_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest stay; a torn line still counts as one."""
    monkeypatch.setenv("BACKTRAIL_STATE", str(tmp_path / "state"))
    for number in range(1200):
        miss = Miss(f"{number:06d}", "codex", "Stop", "s", "", "/", "w" * 500)
        assert note_miss(tmp_path / "beside", miss)
    file = tmp_path / "beside" / FILE
    assert file.stat().st_size < 600_000
    found = read_misses(tmp_path / "beside")
    assert found[-1].ts == "001199"
    with file.open("ab") as torn:
        torn.write(b'{"ts": "9')
    assert len(read_misses(tmp_path / "beside")) == len(found) + 1


def test_a_persons_mistake_is_reported(world: World) -> None:
    """Only with an agent's name is it a hook; and the code is never that of a block."""
    done = world.run("hook", "nonsense")
    assert done.returncode == 1
    assert "claude-code" in done.stderr
    done = world.run("hook", "--help")
    assert done.returncode == 0
    assert "JSON on stdin" in done.stdout
