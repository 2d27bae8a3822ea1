"""Hooks in the real Claude Code: what it does is recorded, taken back, and gone on with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ..hooks.calling import World
from ..programs import needs
from .running import Claude, Model, binary, calls

pytestmark = needs("claude", binary())


@pytest.fixture
def claude(tmp_path: Path, model: Model) -> Claude:
    """Claude Code with our hooks in its settings."""
    made = Claude(World(tmp_path), model)
    (made.config / "settings.json").write_text('{"cleanupPeriodDays": 99}\n')
    done = made.world.run("hooks", "install", "claude-code", "--yes")
    assert done.returncode == 0, done.stderr
    return made


def ran(claude: Claude, *arguments: str) -> Any:
    """What a verb says as JSON."""
    done = claude.world.run(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def first_turn(claude: Claude, model: Model) -> str:
    """Write, edit, a shell command and a subagent; the id of Claude's session."""
    project = claude.world.project
    (project / "old.txt").write_text("old\n")
    a = str(project / "a.txt")
    agent = {"description": "d", "prompt": "write c", "subagent_type": "general-purpose"}
    model.script(
        calls("Write", {"file_path": a, "content": "one\n"}, "1"),
        calls("Read", {"file_path": a}, "2"),
        calls("Edit", {"file_path": a, "old_string": "one", "new_string": "two"}, "3"),
        calls("Bash", {"command": "echo b > b.txt; rm old.txt"}, "4"),
        calls("Agent", {**agent, "run_in_background": False}, "5"),
        calls("Write", {"file_path": str(project / "c.txt"), "content": "c\n"}, "6"),
        "the subagent is done",
        "all is written",
    )
    return str(claude.say("write some files")["session_id"])


def files(claude: Claude) -> dict[str, str]:
    """The project's files."""
    return {path.name: path.read_text() for path in sorted(claude.world.project.iterdir())}


AFTER = {"a.txt": "two\n", "b.txt": "b\n", "c.txt": "c\n"}


def test_a_session_is_recorded(claude: Claude, model: Model) -> None:
    """Prompts, answers, calls, subagents, and which call changed which file."""
    native = first_turn(claude, model)
    world = claude.world
    assert files(claude) == AFTER
    assert world.misses() == []
    (info,) = world.sessions()
    assert (info.key, info.turn_count) == (f"claude-code:{native}", 1)
    with world.session(info.key or "") as session:
        changed = {
            call.by: [file.path for file in call.files]
            for turn in session.changes() for call in turn.calls
        }  # fmt: skip
        assert changed["Bash"] == ["b.txt", "old.txt"]
        assert changed["Edit"] == ["a.txt"]
        words = json.dumps(session.messages())
        assert "all is written" in words
        assert words.count("write some files") == 1
        assert not session.pending()
        assert any(name.startswith("subagents/") for name in session.store.logs(session.id))
        kinds = [event.kind for event in session.history()]
    assert kinds.count("user_message") == 1
    assert kinds[-1] == "session_end"
    shown = world.run("show").stdout
    assert "write some files" in shown
    assert "all is written" in shown
    assert len(ran(claude, "ls")["sessions"]) == 1
    assert "b.txt" in world.run("diff", "--stat").stdout


def test_rewinding_takes_claude_along(claude: Claude, model: Model) -> None:
    """Files go back, and a new session of Claude's goes on with what was kept, and only that."""
    native = first_turn(claude, model)
    model.script(
        calls("Bash", {"command": "echo spoilt > a.txt; rm b.txt"}, "7"), "I have spoilt it"
    )
    assert claude.say("spoil it", "--resume", native)["session_id"] == native
    assert files(claude) != AFTER
    done = claude.world.run("rewind", "--last", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(claude) == AFTER
    found = re.search(r"claude --resume ([0-9a-f-]{36})", done.stdout + done.stderr)
    assert found is not None, done.stdout
    assert found.group(1) != native
    model.script("going on")
    claude.say("what now?", "--resume", found.group(1))
    heard = model.heard()
    assert "all is written" in heard
    assert "spoil" not in heard
    with claude.world.session(f"claude-code:{found.group(1)}") as session:
        words = json.dumps(session.messages())
    assert len(claude.world.sessions()) == 1
    assert (words.count("write some files"), words.count("going on")) == (1, 1)
    assert "spoil" not in words
    assert claude.world.misses() == []


def test_the_old_session_goes_on(claude: Claude, model: Model) -> None:
    """Who goes on in what was taken back does so in a fork; the rewound session stays as it is."""
    native = first_turn(claude, model)
    model.script(calls("Bash", {"command": "echo spoilt > a.txt"}, "7"), "I have spoilt it")
    claude.say("spoil it", "--resume", native)
    done = claude.world.run("rewind", "--last", "--yes")
    found = re.search(r"claude --resume ([0-9a-f-]{36})", done.stdout + done.stderr)
    assert found is not None, done.stdout
    model.script(calls("Bash", {"command": "echo d > d.txt"}, "8"), "gone on")
    claude.say("and more", "--resume", native)
    assert "spoilt it" in model.heard()
    main, fork = f"claude-code:{found.group(1)}", f"claude-code:{native}"
    with claude.world.session(main) as session:
        assert "spoil" not in json.dumps(session.messages())
        parent = session.id
    with claude.world.session(fork) as session:
        words = json.dumps(session.messages())
        info = session.info()
        last = session.changes()[-1]
        prompt = list(session.events(kinds=("user_message",)))[-1]
        assert not session.rewind(before=prompt).conflicts
    assert files(claude) == AFTER
    assert (info.relation, info.parent_id) == ("fork", parent)
    for said in ("write some files", "spoil it", "I have spoilt it", "and more", "gone on"):
        assert words.count(f'"{said}"') == 1, said
    assert [file.path for call in last.calls for file in call.files] == ["d.txt"]
    assert len(claude.world.sessions()) == 2
    assert claude.world.misses() == []


def test_a_rewind_of_files_alone_is_reported_to_claude(claude: Claude, model: Model) -> None:
    """With the next prompt, once."""
    native = first_turn(claude, model)
    done = claude.world.run("rewind", "--last", "--scope", "files", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(claude) == {"old.txt": "old\n"}
    model.script("I see", "really")
    claude.say("and now?", "--resume", native)
    heard = model.heard()
    assert "restored" in heard
    assert "a.txt" in heard
    assert heard.count("to an earlier state") == 1


def test_a_fork_is_a_session_of_its_own(claude: Claude, model: Model) -> None:
    """In a folder of its own, with the files as they were; the first one goes on as it was."""
    native = first_turn(claude, model)
    there = claude.world.root / "plan-b"
    done = claude.world.run("fork", "--into", str(there))
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"claude --resume ([0-9a-f-]{36})", done.stdout + done.stderr)
    assert found is not None, done.stdout
    assert {path.name: path.read_text() for path in sorted(there.iterdir())} == AFTER
    model.script(calls("Bash", {"command": "echo other > a.txt"}, "8"), "here I am")
    claude.say("go on here", "--resume", found.group(1), cwd=there)
    heard = model.heard()
    assert "all is written" in heard
    assert (there / "a.txt").read_text() == "other\n"
    assert files(claude) == AFTER
    with claude.world.session(f"claude-code:{found.group(1)}") as fork:
        assert fork.info().cwd == str(there)
        assert "here I am" in json.dumps(fork.messages())
        fork.undo()
    assert (there / "a.txt").read_text() == "two\n"
    with claude.world.session(f"claude-code:{native}") as session:
        assert "here I am" not in json.dumps(session.messages())
    assert len(claude.world.sessions()) == 2


def test_removing_the_hooks(claude: Claude, model: Model) -> None:
    """`status` tries them out; without them nothing is recorded, and the file is as before."""
    first_turn(claude, model)
    head = claude.world.sessions()[0].head
    status = ran(claude, "hooks", "status", "claude-code")
    assert [(one["problem"], one["missing"]) for one in status["installed"]] == [(None, [])]
    assert claude.world.run("hooks", "uninstall", "claude-code", "--yes").returncode == 0
    assert (claude.config / "settings.json").read_text() == '{"cleanupPeriodDays": 99}\n'
    model.script("unseen")
    claude.say("without hooks")
    assert [info.head for info in claude.world.sessions()] == [head]
