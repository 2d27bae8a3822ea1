"""Claude Code goes back by itself, or its tasks go on in the background: one conversation."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, open_store
from backtrail.exchange.claude_code import sessions as claude_code
from backtrail.exchange.foreign import import_session
from backtrail.exchange.native import write_session

from ..talking import kinds
from .calling import Agent, World
from .playing import Line, Player, live, said, sample


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def player(world: World) -> Player:
    agent = Agent(world)
    agent.begin()
    return Player(agent)


def texts(session: Session) -> list[str]:
    """What the conversation says, as `live` has it."""
    found = [said({"message": message}) for message in session.messages()]
    return [text for text in found if text]


def parts(lines: list[str]) -> str:
    """Texts with the parts of one response put together."""
    return "\n".join(lines)


def every(lines: list[Line]) -> list[str]:
    """What is said in all lines, one after the other."""
    found = [said(line) for line in lines if line["type"] in ("user", "assistant")]
    return [text for text in found if text]


def test_going_back_in_the_agent(world: World, player: Player) -> None:
    """Its own rewind, of code and conversation, moves ours; what it put back is no other's."""
    lines = sample("rewinds", world.project)
    file = world.project / "a.txt"
    player.play(lines, until="say-three")
    assert file.read_text() == "two\n"
    # "Restore code and conversation", to before "edit-a2".
    file.write_text("one\n")
    player.play(lines, until="say-four")
    with world.session() as session:
        assert parts(texts(session)) == parts(live(player.played))
        assert [branch.message_count for branch in session.branches()] == [6]
        assert [call.by for turn in session.changes() for call in turn.calls] == [
            "Write", "Edit", "going back",
        ]  # fmt: skip
        assert session.info().turn_count == 3
        undone = session.undo()
        assert not undone.conflicts
        assert file.read_text() == "one\n"
        assert texts(session)[-1] == "wrote a1"
        # The rewind of the agent's is one operation: its words and its files.
        undone = session.undo()
        assert not undone.conflicts
        assert file.read_text() == "two\n"
        assert texts(session)[-1] == "answer two"


def test_going_back_to_the_beginning(world: World, player: Player) -> None:
    """The line names a parent, but the model is sent nothing of it. An import says the same."""
    lines = sample("rewinds", world.project)
    player.play(lines)
    with world.session() as session:
        ran = texts(session)
        assert ran == live(lines) == ["say-four", "answer four"]
        info = session.info()
        assert info.turn_count == 1
        native = write_session(session, config_dir=world.root / "native")
    written = [json.loads(line) for line in native.path.read_text().splitlines()]
    spoken = [line for line in written if line["type"] in ("user", "assistant")]
    assert [said(line) for line in spoken] == ran
    with open_store("memory:") as store:
        (found,) = claude_code.find(player.path)
        imported = import_session(store, found)
        with Session.resume(store, imported.session_id or "") as session:
            assert texts(session) == ran
            assert kinds(session).count("rewound") == 2


def test_a_task_in_the_background(world: World, player: Player) -> None:
    """What it does is the session's and the turn's; that it is done is no prompt."""
    lines = sample("background", world.project)
    side = sample("background-agent", world.project)
    agent = side[0]["agentId"]
    at = next(n for n, line in enumerate(lines) if line["type"] == "queue-operation")
    player.play(lines[:at])
    player.write_side(agent, side[:-3])
    new = world.project / "sub.txt"
    player.agent.write(new, "sub\n", "toolu_s1", agent_id=agent, agent_type="general-purpose")
    player.write_side(agent, side[-3:])
    player.agent.hook("SubagentStop", agent_id=agent)
    player.play(lines)
    spent = {line["message"]["id"]: line["message"]["usage"] for line in [*lines, *side]
             if line["type"] == "assistant"}  # fmt: skip
    with world.session() as session:
        assert session.branches() == []
        info = session.info()
        assert info.turn_count == 2
        for name in ("input_tokens", "output_tokens"):
            assert info.usage[name] == sum(usage[name] for usage in spent.values())
        assert len(spent) == 7
        assert parts(texts(session)) == parts(live(lines))
        (turn,) = [turn for turn in session.changes() if turn.calls]
        assert turn.prompt == "use-agent"
    shown = world.run("show").stdout
    assert "A  sub.txt" in shown
    whole = world.run("show", "--subagent", agent, "--full").stdout
    for line in side:
        if line["type"] in ("user", "assistant"):
            assert said(line) in whole
    assert "It changed 1 file" in world.run().stdout
    html = world.run("export", "--html", "-o", "-").stdout
    assert "sub.txt" in html
    assert "branch" not in world.run("tree").stdout
    assert "left behind" not in world.run("log").stdout
    assert world.run("undo", "--yes").returncode == 0
    assert not new.exists()


def test_typing_while_a_call_runs(world: World) -> None:
    """The hook comes with the id of the turn that is under way: the call goes on."""
    agent = Agent(world)
    agent.begin()
    agent.prompt("go", "p1")
    fields = {"tool_name": "Bash", "tool_input": {"command": "…"}, "tool_use_id": "t1"}
    agent.hook("PreToolUse", **fields)
    (world.project / "one.txt").write_text("1")
    agent.prompt("and this", "p1")
    (world.project / "two.txt").write_text("2")
    agent.hook("PostToolUse", tool_response={}, **fields)
    (action,) = world.events("claude-code:s1", "action")
    assert "missed" not in action.data["files"]
    assert "doubtful" not in action.data["files"]
    with world.session() as session:
        (call,) = [call for turn in session.changes() for call in turn.calls]
        assert [file.path for file in call.files] == ["one.txt", "two.txt"]


def test_restoring_code_alone(world: World) -> None:
    """What the agent put back is the session's own; what a person edited besides is not."""
    agent = Agent(world)
    file, mine = world.project / "a.txt", world.project / "mine.txt"
    mine.write_text("mine 0\n")
    agent.begin()
    for number, text in enumerate(("one\n", "two\n"), 1):
        agent.prompt(f"write {text}", f"p{number}")
        agent.write(file, text, f"t{number}")
        agent.stop()
    file.write_text("one\n")
    mine.write_text("mine 1\n")
    agent.prompt("go on", "p3")
    with world.session() as session:
        calls = [call for turn in session.changes() for call in turn.calls]
        assert [(call.by, [file.path for file in call.files]) for call in calls] == [
            ("Write", ["a.txt"]), ("Write", ["a.txt"]),
            ("others", ["mine.txt"]), ("going back", ["a.txt"]),
        ]  # fmt: skip
        # Nothing of the second turn is in effect, so nothing is in the way of going further back.
        prompts = list(session.events(kinds=("user_message",)))
        assert session.rewind(before=prompts[1], dry_run=True).files == []
        done = session.rewind(before=prompts[0])
    assert (done.conflicts, file.exists(), mine.read_text()) == ([], False, "mine 1\n")


def test_beginning_with_a_clear(world: World, player: Player) -> None:
    """The command is sent along with the first prompt: a note before it, and no way left."""
    lines = sample("clear", world.project)
    player.play(lines)
    with world.session() as session:
        assert parts(texts(session)) == parts(every(lines))
        assert session.branches() == []
        assert session.info().turn_count == 1
        assert "rewound" not in kinds(session)
    shown = world.run("show").stdout
    assert shown.startswith("p7: write z.txt zed\n")
    assert "<command-name>" not in shown
    assert shown.count("> p7: write z.txt zed") == 1


def test_a_shell_command_by_hand(world: World, player: Player) -> None:
    """A command behind `!` is no prompt, and what it changed is by others."""
    lines = sample("shell", world.project)
    bang = world.project / "bang.txt"
    bang.write_text("bang\n")
    player.play(lines)
    with world.session() as session:
        assert parts(texts(session)) == parts(every(lines))
        assert session.info().turn_count == 1
        (prompt,) = session.events(kinds=("user_message",))
        assert prompt.data["message"]["content"] == "p1: write aa.txt one"
        calls = [call for turn in session.changes() for call in turn.calls]
        assert [(call.by, [file.path for file in call.files]) for call in calls] == [
            ("others", ["bang.txt"]), ("Write", ["aa.txt"]),
        ]  # fmt: skip
        native = write_session(session, config_dir=world.root / "native")
    written = [json.loads(line) for line in native.path.read_text().splitlines()]
    assert every(written) == every(lines)
    shown = world.run("show").stdout
    assert shown.startswith("p1: write aa.txt one\n")
    assert "<bash-input>" not in shown
    assert world.run("undo", "--yes").returncode == 0
    assert (bang.exists(), (world.project / "aa.txt").exists()) == (True, False)


def test_going_back_right_after_the_agent_did(world: World) -> None:
    """Before another prompt, too, what the agent put back is its own, and a person's edit is not.

    Status, the preview and the deed say the same, and nothing is in the way.
    """
    agent = Agent(world)
    file, shell, mine = (world.project / name for name in ("a.txt", "s.txt", "mine.txt"))
    mine.write_text("mine 0\n")
    agent.begin()
    agent.prompt("one", "p1")
    agent.write(file, "one\n", "t1")
    agent.stop()
    agent.prompt("two", "p2")
    agent.write(file, "two\n", "t2")
    agent.bash(lambda: shell.write_text("s\n"), "t3")
    agent.stop()
    # "Restore code and conversation", to before "two": what the shell did stays.
    file.write_text("one\n")
    mine.write_text("mine 1\n")
    count = len(world.events())

    now = ran(world, "status")
    assert paths(now["last_turn"]) == ["s.txt"]
    assert paths(now["since"]) == ["mine.txt"]
    assert paths(now["put_back"]) == ["a.txt"]
    assert "Put back by the agent itself" in world.run().stdout
    first = str(world.events("claude-code:s1", "user_message")[0].seq)
    for goal in (["rewind", "--before", first], ["undo"]):
        seen = ran(world, *goal, "--dry-run")
        assert len(world.events()) == count
        assert seen["conflicts"] == []
    assert paths(seen["files"]) == ["s.txt"]

    done = ran(world, "undo", "--yes")
    same = ("files", "conflicts", "events_dropped", "message_count")
    assert {name: done[name] for name in same} == {name: seen[name] for name in same}
    assert state(world) == {"a.txt": "one\n", "mine.txt": "mine 1\n"}
    assert paths(ran(world, "status")["since"]) == ["mine.txt"]
    assert ran(world, "undo", "--yes")["conflicts"] == []
    assert state(world) == {"mine.txt": "mine 1\n"}
    for content in ("one\n", "one\n"):
        assert ran(world, "redo", "--yes")["conflicts"] == []
        assert file.read_text() == content
    assert shell.read_text() == "s\n"
    assert mine.read_text() == "mine 1\n"


def test_rewinding_right_after_the_agent_did(world: World) -> None:
    """To the start, by preview and deed alike; and back, to the byte."""
    agent = Agent(world)
    file = world.project / "a.txt"
    agent.begin()
    for number, text in enumerate(("one\n", "two\n"), 1):
        agent.prompt(text, f"p{number}")
        agent.write(file, text, f"t{number}")
        agent.stop()
    file.write_text("one\n")
    first, second = (str(e.seq) for e in world.events("claude-code:s1", "user_message"))
    assert ran(world, "rewind", "--before", second, "--scope", "files", "--yes")["files"] == []
    now = ran(world, "status")
    assert (paths(now["since"]), paths(now["last_turn"])) == ([], [])
    agent.prompt("three", "p3")
    seen = ran(world, "rewind", "--before", first, "--dry-run")
    done = ran(world, "rewind", "--before", first, "--yes")
    assert seen["files"] == done["files"]
    assert seen["conflicts"] == done["conflicts"] == []
    assert state(world) == {}
    assert ran(world, "undo", "--yes")["conflicts"] == []
    assert state(world) == {"a.txt": "one\n"}


def two_turns(world: World, *files: Path) -> Agent:
    """An agent that wrote files in a first turn, and other words into them in a second one."""
    agent = Agent(world)
    agent.begin()
    for number, text in enumerate(("one\n", "two\n"), 1):
        agent.prompt(text, f"p{number}")
        for file in files:
            agent.write(file, text, f"t{number}{file.name}")
        agent.stop()
    return agent


def authors(world: World) -> list[tuple[str, list[str]]]:
    """Who changed which files behind the second turn."""
    with world.session() as session:
        calls = [call for turn in session.changes() for call in turn.calls]
    found = [(call.by, [file.path for file in call.files]) for call in calls]
    return [one for one in found if one[0] in ("others", "going back")]


def test_a_person_puts_back_one_of_two_files(world: World) -> None:
    """The agent restores all that it edited: one file alone is a person's change."""
    a, b = world.project / "a.txt", world.project / "b.txt"
    agent = two_turns(world, a, b)
    a.write_text("one\n")
    assert paths(ran(world, "status")["since"]) == ["a.txt"]
    agent.prompt("three", "p3")
    assert authors(world) == [("others", ["a.txt"])]
    # A person's bytes stay: they are in the way of going on from what the agent left.
    first, second = (str(e.seq) for e in world.events("claude-code:s1", "user_message")[:2])
    assert ran(world, "rewind", "--before", second, "--yes")["conflicts"] == []
    assert state(world) == {"a.txt": "one\n", "b.txt": "one\n"}
    done = world.run("rewind", "--before", first, "--yes", "--json")
    assert (done.returncode, a.read_text()) == (4, "one\n")


def test_a_person_puts_back_what_a_command_did(world: World) -> None:
    """The agent keeps no copies of what its shell commands change."""
    agent, file = Agent(world), world.project / "s.txt"
    file.write_text("zero\n")
    agent.begin()
    for number, text in enumerate(("one\n", "two\n"), 1):
        agent.prompt(text, f"p{number}")
        agent.bash(partial(file.write_text, text), f"t{number}")
        agent.stop()
    file.write_text("one\n")
    agent.prompt("three", "p3")
    assert authors(world) == [("others", ["s.txt"])]


@pytest.mark.parametrize("is_over", [False, True], ids=["before it leaves", "after"])
def test_files_put_back_around_the_end(world: World, is_over: bool) -> None:
    """What changes once the agent is gone is a person's; what it put back until then its own."""
    file = world.project / "a.txt"
    agent = two_turns(world, file)
    if not is_over:
        file.write_text("one\n")
    agent.hook("SessionEnd", reason="prompt_input_exit")
    if is_over:
        file.write_text("one\n")
        assert paths(ran(world, "status")["put_back"]) == []
        assert paths(ran(world, "status")["since"]) == ["a.txt"]
    agent.hook("SessionStart", source="resume")
    agent.prompt("three", "p3")
    assert authors(world) == [("others" if is_over else "going back", ["a.txt"])]


@pytest.mark.parametrize("is_over", [False, True], ids=["open", "over"])
def test_no_rewind_costs_a_person_their_bytes(world: World, is_over: bool) -> None:
    """Distinguished or not: what a person put back stays, or one undo brings it again."""
    file = world.project / "a.txt"
    agent = two_turns(world, file)
    if is_over:
        agent.hook("SessionEnd", reason="prompt_input_exit")
    file.write_text("one\n")
    theirs = file.read_bytes()
    if is_over:
        agent.hook("SessionStart", source="resume")
    agent.prompt("three", "p3")
    agent.stop()
    prompts = [event.seq for event in world.events("claude-code:s1", "user_message")]
    for goal in (*prompts, *(seq - 1 for seq in prompts)):
        with world.session() as session:
            done = session.rewind(goal, scope="files")
            changed = file.read_bytes() if file.exists() else None
            if changed != theirs:
                assert [one.path for one in done.files] == ["a.txt"]
                session.undo()
            else:
                assert all(one.action in ("conflict", "skip") for one in done.files)
            assert file.read_bytes() == theirs


def ran(world: World, *arguments: str) -> Any:
    """What a command says, which must succeed."""
    done = world.run(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def paths(rows: list[dict[str, Any]]) -> list[str]:
    return [row["path"] for row in rows]


def state(world: World) -> dict[str, str]:
    """The files of the project."""
    return {path.name: path.read_text() for path in world.project.iterdir()}
