"""What an agent does becomes a session: prompts, calls, and the files around them."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backtrail import open_store
from backtrail.exchange.hooks.small_files import leave_note, take_notes

from .calling import PROGRAM, Agent, World, python


def changed(event: object) -> list[str]:
    """Which of the trees an event's files name; for readable asserts."""
    files = event.data["files"]  # type: ignore[attr-defined]
    return sorted(files)


def test_a_session_is_made_once(world: World, agent: Agent) -> None:
    """One for each of the agent's, under its key, with what is known about it."""
    agent.begin()
    agent.prompt("hello")
    agent.prompt("again")
    (info,) = world.sessions()
    assert (info.key, info.agent_name) == ("claude-code:s1", "claude-code")
    assert info.cwd == str(world.project)
    native = info.metadata["native"]
    path = str(world.root / "transcript.jsonl")
    assert native == {"agent": "claude-code", "id": "s1", "path": path}
    assert info.turn_count == 2


def test_hooks_that_begin_together_make_one_session(world: World, agent: Agent) -> None:
    """Whichever is first makes it, the others find it; nothing is missed."""
    given = [agent.payload("UserPromptSubmit", prompt=f"p{n}") for n in range(6)]
    children = [agent.start(one) for one in given]
    for child in children:
        assert child.communicate(timeout=100) == (b"", b"")
    assert len(world.sessions()) == 1
    said = world.events("claude-code:s1", "user_message")
    assert sorted(event.data["message"]["content"] for event in said) == [f"p{n}" for n in range(6)]
    assert world.misses() == []


def test_a_prompt_is_a_message_with_the_files(world: World, agent: Agent) -> None:
    """It carries the tree, the agent's own name for it, and what git has checked out."""
    git = world.project / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/trunk\n")
    (world.project / "a.txt").write_text("one\n")
    agent.begin()
    agent.prompt("do it", id="prompt-1")
    agent.prompt("do it", id="prompt-1")
    (said,) = world.events("claude-code:s1", "user_message")
    assert said.id == "prompt-1"
    assert said.data["message"] == {"role": "user", "content": "do it"}
    assert len(said.data["tree"]) == 64
    assert said.data["git"] == "trunk"
    assert world.sessions()[0].metadata["git_branch"] == "trunk"


def test_calls_are_bracketed_and_taken_back(world: World, agent: Agent) -> None:
    """Edits and shell commands are actions with trees, and a rewind undoes them all."""
    kept, made, gone = (world.project / name for name in ("kept.txt", "made.txt", "gone.txt"))
    kept.write_text("one\n")
    gone.write_text("here\n")
    agent.begin()
    agent.prompt("change all", id="p1")
    agent.write(kept, "two\n", "t1")

    def act() -> None:
        made.write_text("new\n")
        gone.unlink()

    agent.bash(act, "t2")
    agent.stop()
    actions = world.events("claude-code:s1", "action")
    assert [(e.data["name"], e.data["call"]) for e in actions] == [("Write", "t1"), ("Bash", "t2")]
    assert actions[0].data["input"]["content"] == "two\n"
    assert actions[0].data["files"]["after"] == actions[1].data["files"]["before"]
    assert world.events("claude-code:s1", "turn_end")[-1].data["reason"] == "end_turn"
    with world.session() as session:
        done = session.rewind(before="p1")
    assert not done.conflicts
    assert (kept.read_text(), gone.read_text(), made.exists()) == ("one\n", "here\n", False)


def test_a_call_that_changes_nothing_leaves_no_event(world: World, agent: Agent) -> None:
    """The transcript says that it was made."""
    agent.begin()
    agent.prompt("look")
    head = world.sessions()[0].head
    agent.bash(lambda: None, "t1")
    assert world.sessions()[0].head == head


def test_a_failed_call_ends_its_bracket(world: World, agent: Agent) -> None:
    """What it did until then is its own."""
    agent.begin()
    fields = {"tool_name": "Bash", "tool_input": {"command": "x"}, "tool_use_id": "t1"}
    agent.hook("PreToolUse", **fields)
    (world.project / "half.txt").write_text("half")
    agent.hook("PostToolUseFailure", error="exit 1", **fields)
    (action,) = world.events("claude-code:s1", "action")
    assert action.data["error"] is True
    assert changed(action) == ["after", "before", "brackets"]


def test_tools_that_only_read_do_nothing(world: World, agent: Agent) -> None:
    """Not even a store is made."""
    for name in ("Read", "Grep", "Glob", "LS", "WebFetch", "WebSearch", "TodoWrite"):
        agent.tool(name, {"file_path": "x"}, lambda: None, f"t-{name}")
    assert not (world.root / "store").exists()


@pytest.mark.parametrize("name", ["mcp__files__move", "SomethingNew", "NotebookEdit"])
def test_an_unknown_tool_may_write(world: World, agent: Agent, name: str) -> None:
    """So it is bracketed."""
    agent.begin()
    path = world.project / "n.ipynb"
    agent.tool(name, {"notebook_path": str(path)}, lambda: path.write_text("x"), "t1")
    (action,) = world.events("claude-code:s1", "action")
    assert action.data["name"] == name


def test_what_a_person_does_in_between_is_theirs(world: World, agent: Agent) -> None:
    """A change outside of calls is recorded as such, and stays when the session is rewound."""
    mine, theirs = world.project / "mine.txt", world.project / "theirs.txt"
    agent.begin()
    agent.prompt("go", id="p1")
    agent.write(mine, "agent", "t1")
    theirs.write_text("person")
    agent.bash(lambda: mine.write_text("agent again"), "t2")
    kinds = [event.kind for event in world.events()][-3:]
    assert kinds == ["action", "files_changed", "action"]
    with world.session() as session:
        session.rewind(before="p1")
    assert (mine.exists(), theirs.read_text()) == (False, "person")


def test_a_tool_that_names_its_path_owns_nothing_else(world: World, agent: Agent) -> None:
    """What a person saves elsewhere while it runs is not its doing."""
    mine, theirs = world.project / "mine.txt", world.project / "theirs.txt"
    agent.begin()
    agent.prompt("go", id="p1")
    agent.tool(
        "Write", {"file_path": str(mine), "content": "a"},
        lambda: (mine.write_text("a"), theirs.write_text("b")), "t1",
    )  # fmt: skip
    agent.prompt("next", id="p2")
    with world.session() as session:
        session.rewind(before="p1")
    assert (mine.exists(), theirs.exists()) == (False, True)


def test_an_edit_outside_the_project_is_said(world: World, agent: Agent) -> None:
    """With its event. It is no miss: those files are not watched over."""
    agent.begin()
    path = world.root / "elsewhere.txt"
    agent.write(path, "x", "t1")
    (event,) = world.events("claude-code:s1", "action")
    assert event.data["files"] == {"outside": [str(path.resolve())]}
    assert world.misses() == []


def test_an_edit_through_a_link_is_captured(world: World, agent: Agent) -> None:
    """What changes is the file that the link leads to."""
    target, link = world.project / "target.txt", world.project / "link.txt"
    target.write_text("one")
    link.symlink_to("target.txt")
    agent.begin()
    agent.prompt("go", id="p1")
    agent.write(link, "two", "t1")
    with world.session() as session:
        session.rewind(before="p1")
    assert target.read_text() == "one"


def test_the_project_is_where_the_agent_began(world: World, agent: Agent) -> None:
    """A shell that moved to another directory takes no session along."""
    below = world.project / "below"
    below.mkdir()
    agent.begin()
    agent.prompt("go", id="p1")
    agent.more = {"cwd": str(below)}
    top = world.project / "top.txt"
    agent.bash(lambda: top.write_text("x"), "t1")
    agent.tool("Write", {"file_path": "rel.txt"}, lambda: (below / "rel.txt").write_text("x"), "t2")
    assert len(world.events("claude-code:s1", "action")) == 2
    with world.session() as session:
        session.rewind(before="p1")
    assert not top.exists()
    assert not (below / "rel.txt").exists()


# --- calls that were not ended ------------------------------------------------------------


def test_an_interrupted_call_ends_with_the_next_prompt(world: World, agent: Agent) -> None:
    """What it did is kept as its own, marked as interrupted."""
    agent.begin()
    agent.prompt("go", id="p1")
    agent.hook("PreToolUse", tool_name="Bash", tool_input={}, tool_use_id="t1")
    (world.project / "left.txt").write_text("x")
    agent.prompt("next", id="p2")
    (action,) = world.events("claude-code:s1", "action")
    assert (action.data["interrupted"], action.data["call"]) == (True, "t1")
    with world.session() as session:
        session.rewind(before="p1")
    assert not (world.project / "left.txt").exists()


def test_a_subagent_at_work_keeps_its_bracket(world: World, agent: Agent) -> None:
    """A prompt ends the main agent's calls only; the subagent's end with the subagent.

    What it did so far stands before the prompt, which is a point to go back to.
    """
    agent.begin()
    one, two = world.project / "one.txt", world.project / "two.txt"
    fields = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "t1", "agent_id": "sub"}
    agent.hook("PreToolUse", **fields)
    one.write_text("x")
    agent.prompt("meanwhile")
    two.write_text("x")
    agent.hook("SubagentStop", agent_id="sub")
    so_far, action = world.events("claude-code:s1", "action")
    assert (so_far.data["agent"], so_far.data["so_far"]) == ("sub", True)
    assert (action.data["agent"], action.data["interrupted"]) == ("sub", True)
    with world.session() as session:
        calls = [call for turn in session.changes() for call in turn.calls]
    assert [[file.path for file in call.files] for call in calls] == [["one.txt"], ["two.txt"]]


def test_prompts_leave_the_call_of_a_subagent_open(world: World, agent: Agent) -> None:
    """A subagent at work in the background owns what it does, whatever a person says meanwhile."""
    agent.begin()
    fields = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "t1", "agent_id": "sub"}
    agent.hook("PreToolUse", **fields)
    for name in ("one", "two", "three"):
        (world.project / f"{name}.txt").write_text("x")
        agent.prompt(name)
    (world.project / "four.txt").write_text("x")
    agent.hook("PostToolUse", **fields, tool_response={})
    with world.session() as session:
        calls = [call for turn in session.changes() for call in turn.calls]
    assert [call.by for call in calls] == ["Bash"] * 4
    assert [[file.path for file in call.files] for call in calls] == [
        ["one.txt"], ["two.txt"], ["three.txt"], ["four.txt"],
    ]  # fmt: skip


def test_two_hooks_that_split_one_call_record_each_change_once(world: World, agent: Agent) -> None:
    """Two prompts come at the same time, while a subagent is in a call."""
    agent.begin()
    start = world.events("claude-code:s1")[-1].seq
    fields = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "t1", "agent_id": "sub"}
    agent.hook("PreToolUse", **fields)
    (world.project / "one.txt").write_text("x")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(agent.prompt, ["this", "and that"]))
    (world.project / "two.txt").write_text("x")
    agent.hook("PostToolUse", **fields, tool_response={})
    with world.session() as session:
        calls = [call for turn in session.changes() for call in turn.calls]
        assert all(call.by != "others" for call in calls)
        assert sorted(f.path for call in calls for f in call.files) == ["one.txt", "two.txt"]
        done = session.rewind(to=start)
    assert done.conflicts == []
    assert sorted(path.name for path in world.project.iterdir()) == []


def test_a_dead_agent_frees_its_calls(world: World, agent: Agent) -> None:
    """A bracket belongs to the agent's process, and ends when that is gone."""
    agent.begin()
    code = """if True:
        import subprocess, sys
        # As agents do: through a shell.
        subprocess.run(["/bin/sh", "-c", sys.argv[1] + " hook claude-code; true"],
                       input=sys.argv[2].encode(), check=True)
        print("open", flush=True)
        sys.stdin.read()
        """
    before = agent.payload("PreToolUse", tool_name="Bash", tool_input={}, tool_use_id="t1")
    child = python(code, PROGRAM, before.decode(), env=world.env)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    (world.project / "left.txt").write_text("x")
    with world.session() as session:
        # The agent lives, so the call may be under way.
        session.append({"role": "user", "content": "somebody else"})
        assert not list(session.events(kinds=("action",)))
    child.kill()
    child.communicate()
    with world.session() as session:
        session.append({"role": "user", "content": "somebody else"})
        (action,) = session.events(kinds=("action",))
    assert action.data["interrupted"] is True


# --- several agents ----------------------------------------------------------------------


def test_two_agents_in_one_project(world: World) -> None:
    """Each owns what it did alone; what both may have done is a conflict for both."""
    one, two = Agent(world, session="one"), Agent(world, session="two")
    a, b, both = (world.project / name for name in ("a.txt", "b.txt", "both.txt"))
    for agent in (one, two):
        agent.begin()
        agent.prompt("go", id=f"p-{agent.session}")
    fields = {"tool_name": "Bash", "tool_input": {}}
    one.hook("PreToolUse", tool_use_id="t1", **fields)
    two.write(b, "two", "t2")
    a.write_text("one")
    one.hook("PostToolUse", tool_use_id="t1", **fields)
    one.hook("PreToolUse", tool_use_id="t3", **fields)
    two.hook("PreToolUse", tool_use_id="t4", **fields)
    both.write_text("?")
    one.hook("PostToolUse", tool_use_id="t3", **fields)
    two.hook("PostToolUse", tool_use_id="t4", **fields)
    assert world.misses() == []
    with world.session("claude-code:one") as session:
        done = session.rewind(before="p-one")
    assert [step.path for step in done.conflicts] == ["both.txt"]
    assert (a.exists(), b.read_text(), both.exists()) == (False, "two", True)
    with world.session("claude-code:two") as session:
        session.rewind(before="p-two")
    assert not b.exists()
    with open_store(world.url) as store:
        assert store.verify() == []


def test_two_agents_at_the_same_time(world: World) -> None:
    """Hooks of both run at once, and each session goes back by itself."""
    agents = [Agent(world, session=name) for name in ("one", "two")]

    def work(agent: Agent) -> None:
        agent.begin()
        agent.prompt("go", id=f"p-{agent.session}")
        for number in range(4):
            path = world.project / f"{agent.session}-{number}.txt"
            agent.write(path, agent.session, f"{agent.session}-{number}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, agents))
    assert world.misses() == []
    for agent in agents:
        assert len(list(world.project.glob(f"{agent.session}-*"))) == 4
        with world.session(f"claude-code:{agent.session}") as session:
            done = session.rewind(before=f"p-{agent.session}")
        assert (done.conflicts, len(done.files_changed)) == ([], 4)
    assert list(world.project.iterdir()) == []


def test_a_store_of_folders(tmp_path: Path) -> None:
    """Hooks work on any store."""
    world = World(tmp_path, scheme="file")
    agent = Agent(world)
    path = world.project / "a.txt"
    agent.begin()
    agent.prompt("go", id="p1")
    agent.bash(lambda: path.write_text("x"), "t1")
    agent.stop()
    assert world.misses() == []
    with world.session() as session:
        session.rewind(before="p1")
    assert not path.exists()


# --- the one thing a hook says -----------------------------------------------------------


def test_a_note_is_reported_once_with_the_next_prompt(world: World, agent: Agent) -> None:
    """Nothing else ever prints."""
    agent.begin()
    assert agent.prompt("first") == ""
    with open_store(world.url) as store:
        id = store.sessions()[0].id
        leave_note(store, id, "a.txt was\nrestored\x1b[31m.")
    assert agent.hook("PreToolUse", tool_name="Bash", tool_input={}, tool_use_id="t1") == ""
    assert agent.prompt("second") == "a.txt was restored [31m.\n"
    assert agent.prompt("third") == ""


@pytest.mark.parametrize(
    ("name", "event"), [("codex", "UserPromptSubmit"), ("gemini", "BeforeAgent")]
)
def test_a_note_in_the_form_of_the_agent(world: World, name: str, event: str) -> None:
    """These take it as JSON."""
    agent = Agent(world, name)
    agent.hook(event, prompt="first")
    with open_store(world.url) as store:
        leave_note(store, store.sessions()[0].id, "a.txt was restored.")
    ran = json.loads(agent.hook(event, prompt="second"))
    expected = {"hookEventName": event, "additionalContext": "a.txt was restored."}
    assert ran == {"hookSpecificOutput": expected}


def test_notes_are_for_one_session(world: World) -> None:
    """Several are reported together, each once."""
    with open_store(world.url) as store:
        for text in ("one", "two", "one"):
            leave_note(store, "a", text)
        assert take_notes(store, "b") == []
        assert take_notes(store, "a") == ["one", "two"]
        assert take_notes(store, "a") == []


# --- other agents ------------------------------------------------------------------------


def test_codex_patches_name_their_paths(world: World) -> None:
    """So only these are looked at, and are the call's own."""
    agent = Agent(world, "codex", more={"transcript_path": None})
    old, new = world.project / "old.txt", world.project / "new.txt"
    old.write_text("one")
    agent.begin()
    agent.prompt("go")
    patch = (
        "*** Begin Patch\n*** Update File: old.txt\n*** Move to: new.txt\n@@\n-one\n+two\n"
        "*** End Patch\n"
    )
    other = world.project / "other.txt"

    def act() -> None:
        old.rename(new)
        other.write_text("somebody else")

    agent.tool("apply_patch", {"command": patch}, act, "t1")
    (action,) = world.events("codex:s1", "action")
    with world.session("codex:s1") as session:
        session.rewind(before=action.seq, scope="files")
    assert (old.read_text(), new.exists(), other.exists()) == ("one", False, True)


def test_a_subagent_of_codex_is_no_turn(world: World) -> None:
    """Its hooks come under its parent's id, with its own rollout: neither is the parent's."""
    agent = Agent(world, "codex")
    id = "0199aaaa-0000-7000-8000-000000000002"
    rollout = world.root / f"rollout-2026-01-01T00-00-00-{id}.jsonl"
    content = [{"type": "output_text", "text": "c"}]
    said = {"type": "message", "role": "assistant", "content": content}
    line = {"timestamp": "2026-01-01T00:00:00.000Z", "type": "response_item", "payload": said}
    rollout.write_text(json.dumps(line) + "\n")
    agent.begin()
    agent.prompt("have c written")
    with open_store(world.url) as store:
        leave_note(store, store.sessions()[0].id, "for the parent")
    inner = {"agent_id": id, "agent_type": "default", "transcript_path": str(rollout)}
    assert agent.hook("UserPromptSubmit", prompt="write c", **inner) == ""
    path = world.project / "c.txt"
    agent.bash(lambda: path.write_text("c"), "t1", **inner)
    stopped = {"agent_id": id, "agent_transcript_path": str(rollout)}
    agent.hook("SubagentStop", last_assistant_message="c", **stopped)
    agent.stop()
    (info,) = world.sessions()
    assert info.turn_count == 1
    assert world.misses() == []
    (action,) = world.events("codex:s1", "action")
    assert action.data["agent"] == id
    assert world.events("codex:s1", "assistant_message") == []
    with open_store(world.url) as store:
        assert [e.kind for e in store.read(info.id, log=f"subagents/{id}")] == ["start", "message"]
        assert take_notes(store, info.id) == ["for the parent"]


def test_a_turn_that_a_person_interrupts(world: World) -> None:
    """Codex reports it; what runs ends with it."""
    agent = Agent(world, "codex", more={"transcript_path": None})
    agent.begin()
    agent.prompt("go")
    given = {"tool_name": "Bash", "tool_input": {"command": "…"}, "tool_use_id": "t1"}
    agent.hook("PreToolUse", **given)
    (world.project / "half.txt").write_text("half")
    assert agent.hook("Interrupt", turn_id="turn") == ""
    agent.hook("SessionEnd", reason="other")
    kinds = [event.kind for event in world.events("codex:s1")][-3:]
    assert kinds == ["action", "turn_end", "session_end"]
    (end,) = world.events("codex:s1", "turn_end")
    assert end.data["reason"] == "interrupted"


def test_gemini_states_failures_in_the_response(world: World) -> None:
    """It has no event for them; and a subagent's own calls are all that counts of it."""
    agent = Agent(world, "gemini")
    agent.hook("BeforeAgent", prompt="go")
    inner = {"tool_name": "invoke_agent", "tool_input": {"agent_name": "writer"}}
    agent.hook("BeforeTool", **inner)
    given = {"tool_name": "replace", "tool_input": {"file_path": str(world.project / "none.txt")}}
    agent.hook("BeforeTool", **given)
    error = {"message": "File not found", "type": "file_not_found"}
    agent.hook("AfterTool", **given, tool_response={"llmContent": "no", "error": error})
    agent.hook("AfterTool", **inner, tool_response={"llmContent": "done"})
    (action,) = world.events("gemini:s1", "action")
    assert (action.data["name"], action.data["error"]) == ("replace", True)


def test_gemini_has_its_own_words(world: World) -> None:
    """Without a transcript to mirror, the conversation is what the hooks report."""
    agent = Agent(world, "gemini")
    agent.hook("SessionStart", source="startup")
    agent.hook("BeforeAgent", prompt="write it")
    path = world.project / "g.txt"
    fields = {"tool_name": "write_file", "tool_input": {"file_path": "g.txt", "content": "g"}}
    agent.hook("BeforeTool", **fields)
    path.write_text("g")
    agent.hook("AfterTool", tool_response={"llmContent": "ok"}, **fields)
    fields = {"tool_name": "run_shell_command", "tool_input": {"command": "ls"}}
    agent.hook("BeforeTool", **fields)
    agent.hook("AfterTool", tool_response={"llmContent": "g.txt"}, **fields)
    agent.hook("AfterAgent", prompt="write it", prompt_response="written")
    agent.hook("SessionEnd", reason="exit")
    events = world.events("gemini:s1", "user_message", "action", "assistant_message", "turn_end")
    kinds = ["user_message", "action", "action", "assistant_message", "turn_end"]
    assert [event.kind for event in events] == kinds
    assert events[1].data["result"] == {"llmContent": "ok"}
    assert "files" in events[1].data
    assert "files" not in events[2].data
    assert events[3].data["message"]["content"] == "written"
    with world.session("gemini:s1") as session:
        session.undo()
    assert not path.exists()


# --- projects that are none --------------------------------------------------------------


def test_a_home_folder_is_not_captured(world: World) -> None:
    """The conversation is, and it is no miss."""
    agent = Agent(world, more={"cwd": str(world.home)})
    agent.begin()
    agent.prompt("hello")
    agent.bash(lambda: (world.home / "x").write_text("x"), "t1")
    (said,) = world.events("claude-code:s1", "user_message")
    assert "too much to watch over" in said.data["files"]["missed"]
    assert world.misses() == []


def test_the_agent_is_the_first_process_that_is_no_shell(tmp_path: Path) -> None:
    """Also where the system has no /proc to ask."""
    code = (
        "import sys; from backtrail.exchange.hooks import processes\n"
        "if sys.argv[1] == 'ps': processes._from_proc = lambda pid: None\n"
        "print(*processes.agent_process())"
    )
    for how in ("proc", "ps"):
        line = f'exec /bin/sh -c \'"{sys.executable}" -c "$CODE" {how}; true\'; true'
        done = subprocess.run(
            ["/bin/sh", "-c", f"{line}"],
            env={"CODE": code, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        import os

        assert int(done.stdout.split()[0]) == os.getpid(), how
