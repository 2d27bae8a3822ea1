"""Calls that agents leave open, and going back while a call is under way."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, open_store
from backtrail.events import NewEvent

from .calling import PROGRAM, Agent, World, python

_AGENT = """if True:
    import subprocess, sys
    # As agents do: through a shell.
    subprocess.run(["/bin/sh", "-c", sys.argv[1] + " hook claude-code; true"],
                   input=sys.argv[2].encode(), check=True)
    print("open", flush=True)
    sys.stdin.read()
    """

BASH: dict[str, Any] = {"tool_name": "Bash", "tool_input": {"command": "…"}}


def opened(world: World, agent: Agent, id: str) -> subprocess.Popen[str]:
    """A process that is the agent, in a shell call."""
    before = agent.payload("PreToolUse", tool_use_id=id, **BASH)
    child = python(_AGENT, PROGRAM, before.decode(), env=world.env)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    return child


def ordinary(world: World, name: str, text: str) -> None:
    """A session from its start to its end, that writes one file by a shell."""
    agent = Agent(world, session=name)
    agent.prompt(f"write {text}")
    agent.bash(lambda: (world.project / "a.txt").write_text(text), f"t-{name}")


def undone_one_by_one(world: World, names: list[str]) -> None:
    """Each session takes back what it did, from the newest to the oldest."""
    file = world.project / "a.txt"
    for at, name in reversed(list(enumerate(names))):
        assert file.read_text() == name
        with world.session(f"claude-code:{name}") as session:
            assert not session.undo().conflicts
        assert file.exists() == (at > 0)


def key_of(world: World, name: str) -> str:
    with open_store(world.url) as store:
        return store.sessions(key=f"claude-code:{name}")[0].id


# --- calls that are not ended ------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, "a zombie"])
def test_a_killed_agent_does_not_spoil_later_sessions(world: World, how: Any) -> None:
    """Its call is over; what it did is kept for its own session to say."""
    killed = Agent(world, session="killed")
    killed.prompt("begin")
    child = opened(world, killed, "t1")
    (world.project / "left.txt").write_text("left")
    child.send_signal(signal.SIGKILL if how == "a zombie" else how)
    if how != "a zombie":
        child.wait()
    names = ["one", "two", "three"]
    for name in names:
        ordinary(world, name, name)
    done = world.run("record", "--", "sh", "-c", "echo recorded > r.txt")
    assert done.returncode == 0, done
    done = world.run("undo", "--yes")
    assert (done.returncode, (world.project / "r.txt").exists()) == (0, False), done
    undone_one_by_one(world, names)
    assert (world.project / "left.txt").read_text() == "left"
    with world.session("claude-code:killed") as session:
        session.append({"role": "user", "content": "go on"})
        (action,) = session.events(kinds=("action",))
        assert action.data["interrupted"] is True
        assert [file.path for file in session.rewind(before=action.seq).files] == ["left.txt"]
    assert not (world.project / "left.txt").exists()
    child.communicate()


def _ended(world: World, agent: Agent) -> None:
    agent.hook("SessionEnd", reason="exit")


def _prompted(world: World, agent: Agent) -> None:
    agent.prompt("something else")


def _ended_silently(world: World, agent: Agent) -> None:
    """The hook wrote that the session is over, and was killed before it ended the call."""
    with open_store(world.url) as store:
        id = store.sessions(key=f"claude-code:{agent.session}")[0].id
        store.append(id, [NewEvent("session_end", {"reason": "exit"})])


def _prompted_silently(world: World, agent: Agent) -> None:
    with open_store(world.url) as store:
        id = store.sessions(key=f"claude-code:{agent.session}")[0].id
        message = {"role": "user", "content": "something else"}
        store.append(id, [NewEvent("user_message", {"message": message, "format": "openai"})])


def _deleted(world: World, agent: Agent) -> None:
    with open_store(world.url) as store:
        store.delete(store.sessions(key=f"claude-code:{agent.session}")[0].id)


@pytest.mark.parametrize("over", [_ended, _prompted, _ended_silently, _prompted_silently, _deleted])
def test_a_daemon_that_lives_on_does_not_spoil_later_sessions(
    world: World, over: Callable[[World, Agent], None]
) -> None:
    """The agent's process is there (it is this one), but its session is over or goes on."""
    left = Agent(world, session="left")
    left.prompt("begin")
    left.hook("PreToolUse", tool_use_id="t1", **BASH)
    (world.project / "left.txt").write_text("left")
    over(world, left)
    names = ["one", "two", "three"]
    for name in names:
        ordinary(world, name, name)
    undone_one_by_one(world, names)
    assert (world.project / "left.txt").read_text() == "left"


def test_a_call_that_is_under_way_still_shares(world: World) -> None:
    """As long as its process lives and its session waits for it."""
    going = Agent(world, session="going")
    going.prompt("begin")
    going.hook("PreToolUse", tool_use_id="t1", **BASH)
    ordinary(world, "other", "other")
    going.hook("PostToolUse", tool_use_id="t1", tool_response={}, **BASH)
    done = world.run("undo", "--yes", "--session", key_of(world, "other"))
    assert (done.returncode, "a.txt" in done.stdout + done.stderr) == (4, True), done
    assert (world.project / "a.txt").read_text() == "other"


# --- going back meanwhile ----------------------------------------------------------------


def test_undo_is_refused_while_a_call_is_under_way(world: World, agent: Agent) -> None:
    """Nothing changes, and it is said whose call it is; by force it is right."""
    project = world.project
    agent.begin()
    agent.prompt("begin")
    agent.bash(lambda: (project / "first").write_text("1"), "t0")
    agent.hook("PreToolUse", tool_use_id="t1", **BASH)
    (project / "second").write_text("2")
    before = world.events()
    with world.session() as session:
        id = session.id
    for verb in (["undo"], ["rewind", "--last"], ["restore", "first"]):
        done = world.run(*verb, "--yes")
        assert done.returncode == 5, (verb, done)
        assert "claude-code" in done.stderr and "Bash" in done.stderr, done.stderr
        assert "--force" in done.stderr
    assert world.events() == before
    done = world.run("undo", "--dry-run")
    assert "Bash" in done.stdout + done.stderr, done
    assert {path.name for path in project.iterdir()} == {"first", "second"}
    done = world.run("undo", "--yes", "--force")
    assert done.returncode == 0, done
    assert {path.name for path in project.iterdir()} == set()
    (project / "third").write_text("3")
    agent.hook("PostToolUse", tool_use_id="t1", tool_response={}, **BASH)
    assert world.misses() == []
    with Session.resume(world.url, id) as session:
        last = list(session.events(kinds=("action",)))[-1]
        assert [file.path for file in session.changes()[-1].calls[-1].files] == ["third"]
        session.rewind(before=last.seq, scope="files")
    assert {path.name for path in project.iterdir()} == set()


def test_undo_is_refused_while_a_command_is_recorded(world: World) -> None:
    project = world.project
    world.run("record", "--", "sh", "-c", "echo one > one")
    child = subprocess.Popen(
        [PROGRAM, "record", "--", "sh", "-c", "echo two > two; echo; cat; echo three > three"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=world.env, cwd=project,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    with open_store(world.url) as store:
        first = store.sessions()[-1].id
    done = world.run("undo", "--yes", "--session", first)
    assert (done.returncode, (project / "one").exists()) == (5, True), done
    done = world.run("undo", "--yes", "--force", "--session", first)
    assert (done.returncode, (project / "one").exists()) == (0, False), done
    child.communicate(b"")
    assert world.run("undo", "--yes").returncode == 0
    assert {path.name for path in project.iterdir()} == set()


def test_the_conversation_alone_may_go_back_meanwhile(world: World, agent: Agent) -> None:
    agent.begin()
    agent.prompt("begin")
    agent.hook("PreToolUse", tool_use_id="t1", **BASH)
    done = world.run("rewind", "--last", "--scope", "conversation", "--yes")
    assert done.returncode == 0, done


# --- doctor ------------------------------------------------------------------------------


def test_doctor_lists_open_calls_and_ends_them(world: World, tmp_path: Path) -> None:
    """Those of living processes too, with whose they are, and since when."""
    agent = Agent(world, session="hanging")
    agent.begin()
    agent.prompt("begin")
    child = opened(world, agent, "t1")
    (world.project / "f").write_text("x")
    with Session.create(f"sqlite:///{tmp_path}/other.db", "elsewhere", cwd=world.project) as other:
        other.append({"role": "user", "content": "begin"})
        with other.tool("mine", paths=["other"]):
            done = world.run("doctor")
            assert "Bash" in done.stdout and "claude-code" in done.stdout, done.stdout
            assert "mine" in done.stdout and "elsewhere" in done.stdout, done.stdout
            assert "--repair" in done.stdout
        # Inside a call of the agent that runs it, it would be refused.
        done = world.run("doctor", "--repair")
        assert done.returncode == 0, done
        done = world.run("doctor")
        assert "Bash" not in done.stdout and "no call is open" in done.stdout, done.stdout
    with world.session("claude-code:hanging") as session:
        session.append({"role": "user", "content": "go on"})
        (action,) = session.events(kinds=("action",))
        assert [file.path for file in session.rewind(before=action.seq).files] == ["f"]
    assert not (world.project / "f").exists()
    child.kill()
    child.communicate()


_KILLED = """
import os, signal, sys
from backtrail import Session
with Session.create(sys.argv[1], "elsewhere", cwd=sys.argv[2]) as session:
    session.append({"role": "user", "content": "begin"})
    with session.tool("mine"):
        open(sys.argv[2] + "/made", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("place", ["other folder/o.db", "memory:"])
def test_the_advice_about_a_call_of_another_store_ends_it(
    world: World, tmp_path: Path, place: str
) -> None:
    """Taken as it is printed, and from another folder."""
    Agent(world, session="here").begin()
    url = place if place == "memory:" else f"sqlite:///{tmp_path}/{place}"
    child = python(_KILLED, url, str(world.project), env=world.env)
    assert child.wait() != 0
    child.communicate()
    ran = world.run("doctor").stdout
    assert "which is gone" in ran and "no call is open" not in ran
    (advice,) = re.findall(r"`backtrail (doctor --repair[^`]*)` ends it", ran)
    assert world.run(*shlex.split(advice), cwd=tmp_path).returncode == 0
    assert "no call is open" in world.run("doctor").stdout
    assert (world.project / "made").exists()
