"""A native session that was left after a rewind, and goes on all the same: a fork of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backtrail import Session, open_store
from backtrail.exchange.foreign import find, import_found
from backtrail.exchange.native import write_session

from .calling import Agent, World
from .test_mirroring import Transcript

BASH: dict[str, Any] = {"tool_name": "Bash", "tool_input": {}}


@pytest.fixture
def transcript(world: World, agent: Agent) -> Transcript:
    """The agent's transcript, where Claude Code has it and named as it names it."""
    path = world.root / "config" / "projects" / "-project" / "s1.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    agent.more = {"transcript_path": str(path)}
    return Transcript(path)


def turn(agent: Agent, transcript: Transcript, words: str, path: str | None = None) -> None:
    """A whole turn, which writes a file; its prompt has the words as its id."""
    agent.prompt(words, id=words)
    transcript.add("user", words, promptId=words)
    if path is not None:
        transcript.call(f"call-{words}")
        target = agent.world.project / path
        agent.bash(lambda: target.write_text(words), f"call-{words}")
        transcript.result(f"call-{words}")
    transcript.add("assistant", [{"type": "text", "text": f"done {words}"}])
    agent.hook("Stop", last_assistant_message=f"done {words}")


def two_turns(agent: Agent, transcript: Transcript) -> None:
    """A session of two turns, each with a file."""
    agent.begin()
    turn(agent, transcript, "one", "a.txt")
    turn(agent, transcript, "two", "b.txt")


def rewound(world: World, before: str) -> str:
    """Rewind the session and go on in a new native one; that one's id."""
    with world.session() as session:
        session.rewind(before=before)
        return write_session(session, config_dir=world.root / "config").id


def said(world: World, key: str) -> list[str]:
    """What is said in a session, as it stands."""
    with world.session(key) as session:
        messages = session.messages(format="openai")
    return [m["content"] for m in messages if m["role"] != "tool" and m.get("content")]


ALL = ["one", "done one", "two", "done two"]


def test_both_sessions_go_on(world: World, agent: Agent, transcript: Transcript) -> None:
    """Each has its own words and its own files, and each goes back by itself."""
    two_turns(agent, transcript)
    new = rewound(world, "two")
    assert not (world.project / "b.txt").exists()
    turn(agent, transcript, "three", "c.txt")
    other = Agent(world, session=new, more={"transcript_path": None})
    other.prompt("four", id="four")
    other.bash(lambda: (world.project / "d.txt").write_text("x"), "t4")
    assert said(world, "claude-code:s1") == [*ALL, "three", "done three"]
    assert said(world, f"claude-code:{new}") == ["one", "done one", "four"]
    assert len(world.sessions()) == 2
    with open_store(world.url) as store:
        fork, main = (store.sessions(key=f"claude-code:{id}")[0] for id in ("s1", new))
        assert (fork.relation, fork.parent_id) == ("fork", main.id)
        assert fork.metadata["native"]["id"] == "s1"
        assert store.verify() == []
    with world.session("claude-code:s1") as session:
        assert [file.path for file in session.rewind(before="three").files] == ["c.txt"]
    assert sorted(path.name for path in world.project.iterdir()) == ["a.txt", "d.txt"]
    with world.session(f"claude-code:{new}") as session:
        session.rewind(before="four")
    assert sorted(path.name for path in world.project.iterdir()) == ["a.txt"]
    assert world.misses() == []


def test_going_on_in_the_old_one_brings_a_note(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """Its model still thinks that the files are as it left them: informed once, and only there."""
    two_turns(agent, transcript)
    done = world.run("rewind", "--last", "--yes", "--json")
    new = json.loads(done.stdout)["native"]["id"]
    other = Agent(world, session=new, more={"transcript_path": None})
    assert other.prompt("four", id="four") == ""
    assert "b.txt; read them again" in agent.prompt("three", id="three")
    assert agent.prompt("more", id="more") == ""
    assert world.misses() == []


def test_leaving_the_old_one_makes_nothing(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """A person who quits the old session after the rewind does not go on in it."""
    two_turns(agent, transcript)
    rewound(world, "two")
    before = world.sessions()
    transcript.add("user", "<command-name>/exit</command-name>")
    agent.stop()
    agent.hook("SessionEnd", reason="prompt_input_exit")
    agent.hook("SessionStart", source="resume")
    assert world.sessions() == before
    with open_store(world.url) as store:
        (ran,) = import_found(store, find("claude-code", transcript.path))
    assert (ran.created, ran.events, ran.lines) == (False, 0, 0)
    assert world.sessions() == before
    assert world.misses() == []


def test_a_call_under_way_while_it_is_left(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """It belongs to the session in which it began."""
    # The agent that runs it rewinds: this process.
    world.forks = False
    agent.begin()
    turn(agent, transcript, "one", "a.txt")
    agent.prompt("two", id="two")
    agent.hook("PreToolUse", tool_use_id="t2", **BASH)
    new = rewound(world, "two")
    (world.project / "late.txt").write_text("x")
    agent.hook("PostToolUse", tool_use_id="t2", **BASH)
    other = Agent(world, session=new, more={"transcript_path": None})
    other.prompt("three", id="three")
    assert len(world.sessions()) == 1
    last = world.events(f"claude-code:{new}", "action")[-1]
    assert last.data["call"] == "t2" and "interrupted" not in last.data
    with world.session(f"claude-code:{new}") as session:
        calls = [call for turn in session.changes() for call in turn.calls if call.seq == last.seq]
    assert [file.path for file in calls[0].files] == ["late.txt"]


def test_hooks_that_go_on_together_make_one_fork(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """The first is found by the others."""
    two_turns(agent, transcript)
    rewound(world, "two")
    given = [agent.payload("PreToolUse", tool_use_id=f"t{n}", **BASH) for n in range(4)]
    children = [agent.start(one) for one in given]
    for child in children:
        assert child.communicate(timeout=100) == (b"", b"")
    assert len(world.sessions()) == 2
    assert said(world, "claude-code:s1") == ALL
    assert world.misses() == []


def test_an_import_of_the_old_one_is_the_same(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """Without hooks too: what was said there does not come into the session that left it."""
    agent.begin()
    turn(agent, transcript, "one")
    turn(agent, transcript, "two")
    new = rewound(world, "two")
    transcript.add("user", "three", promptId="three")
    transcript.add("assistant", [{"type": "text", "text": "done three"}])
    found = find("claude-code", transcript.path)
    with open_store(world.url) as store:
        (ran,) = import_found(store, found, dry_run=True)
        assert (ran.created, ran.lines) == (True, 2)
        assert len(store.sessions()) == 1
        (done,) = import_found(store, found)
        assert (done.created, done.events, done.problems) == (True, 2, [])
        (again,) = import_found(store, found)
        assert (again.created, again.events, again.session_id) == (False, 0, done.session_id)
    assert said(world, "claude-code:s1") == [*ALL, "three", "done three"]
    assert said(world, f"claude-code:{new}") == ["one", "done one"]


def test_a_fork_that_is_left_goes_on_too(
    world: World, agent: Agent, transcript: Transcript
) -> None:
    """The fork's own native sessions are its own, and its parent's are the parent's."""
    agent.begin()
    turn(agent, transcript, "one")
    turn(agent, transcript, "two")
    config = world.root / "config"
    with world.session() as session, session.fork() as fork:
        first = write_session(fork, config_dir=config)
        fork.rewind(before="two", scope="conversation")
        second = write_session(fork, config_dir=config)
        fork_id = fork.id
    Agent(world, session=first.id, more={"transcript_path": str(first.path)}).prompt("three")
    turn(agent, transcript, "four")
    assert said(world, f"claude-code:{first.id}") == [*ALL, "three"]
    assert said(world, f"claude-code:{second.id}") == ["one", "done one"]
    assert said(world, "claude-code:s1") == [*ALL, "four", "done four"]
    with Session.resume(world.url, fork_id, files=False) as fork:
        assert fork.info().metadata["native"]["earlier"] == [first.id]
    assert len(world.sessions()) == 3
