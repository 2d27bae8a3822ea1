"""Hooks in the real Gemini CLI: what it does is recorded, and its files are taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backtrail import open_store
from backtrail.exchange.hooks.small_files import leave_note

from ..hooks.calling import World
from ..programs import needs
from .running import Gemini, Model, calls, script

pytestmark = needs("gemini", script())

AFTER = {"a.txt": "two\n", "b.txt": "b\n"}


@pytest.fixture
def gemini(tmp_path: Path, model: Model) -> Gemini:
    """Gemini CLI with our hooks in its settings."""
    made = Gemini(World(tmp_path), model)
    done = made.world.run("hooks", "install", "gemini", "--yes")
    assert done.returncode == 0, done.stderr
    return made


def files(gemini: Gemini) -> dict[str, str]:
    """The project's files."""
    found = sorted(gemini.world.project.iterdir())
    return {path.name: path.read_text() for path in found if path.is_file()}


def first_turn(gemini: Gemini, model: Model) -> str:
    """Write, edit, a shell command and a call that fails; the id of Gemini's session."""
    project = gemini.world.project
    (project / "old.txt").write_text("old\n")
    a, none = str(project / "a.txt"), str(project / "none.txt")
    edit = {"old_string": "one", "new_string": "two", "instruction": "change it"}
    model.script(
        calls("write_file", file_path=a, content="one\n"),
        calls("read_file", file_path="a.txt"),
        calls("replace", file_path=a, **edit),
        calls("replace", file_path=none, **edit),
        calls("run_shell_command", command="echo b > b.txt; rm old.txt"),
        "all is written",
    )
    native = gemini.say("write some files")
    assert files(gemini) == AFTER
    return native


def status(gemini: Gemini) -> dict[str, Any]:
    """What `hooks status` says of the one installation."""
    done = gemini.world.run("hooks", "status", "gemini", "--json")
    (row,) = json.loads(done.stdout)["installed"]
    found: dict[str, Any] = row
    return found


def test_a_session_is_recorded(gemini: Gemini, model: Model) -> None:
    """Prompts, answers, calls with their results, and which call changed which file."""
    native = first_turn(gemini, model)
    world = gemini.world
    assert world.misses() == []
    (info,) = world.sessions()
    assert (info.key, info.turn_count) == (f"gemini:{native}", 1)
    with world.session(info.key or "") as session:
        changed = [
            (call.by, [file.path for file in call.files])
            for turn in session.changes() for call in turn.calls
        ]  # fmt: skip
        assert [message["content"] for message in session.messages()] == [
            "write some files",
            "all is written",
        ]
        history = session.history()
    assert changed == [
        ("write_file", ["a.txt"]),
        ("replace", ["a.txt"]),
        ("run_shell_command", ["b.txt", "old.txt"]),
    ]
    actions = [event.data for event in history if event.kind == "action"]
    assert [(one["name"], one.get("error")) for one in actions] == [
        ("write_file", None),
        ("replace", None),
        ("replace", True),
        ("run_shell_command", None),
    ]
    assert "Successfully" in json.dumps(actions[0]["result"])
    assert [event.kind for event in history][-2:] == ["turn_end", "session_end"]


def test_rewinding(gemini: Gemini, model: Model) -> None:
    """Files go back; what was taken back is another branch."""
    first_turn(gemini, model)
    model.script(calls("run_shell_command", command="echo spoilt > a.txt; rm b.txt"), "spoilt")
    gemini.say("spoil it", "--resume", "latest")
    assert files(gemini) == {"a.txt": "spoilt\n"}
    done = gemini.world.run("rewind", "--last", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(gemini) == AFTER
    (info,) = gemini.world.sessions()
    with gemini.world.session(info.key or "") as session:
        assert "spoil" not in json.dumps(session.messages())
    assert gemini.world.misses() == []


def test_a_note_reaches_gemini(gemini: Gemini, model: Model) -> None:
    """With the next prompt, once."""
    native = first_turn(gemini, model)
    with open_store(gemini.world.url) as store:
        leave_note(store, gemini.world.sessions()[0].id, "a.txt is another")
    model.script("I see", "really")
    assert gemini.say("and now?", "--resume", "latest") == native
    assert model.heard().count("a.txt is another") == 1
    gemini.say("once more", "--resume", "latest")
    assert "a.txt is another" not in json.dumps(model.requests[-1]["contents"][-1])
    with gemini.world.session(f"gemini:{native}") as session:
        assert session.info().turn_count == 3


def test_subagents_and_parallel_calls(gemini: Gemini, model: Model) -> None:
    """What a subagent does to files is its own calls'; calls of one answer are distinguished."""
    folder = gemini.settings.parent / "agents"
    folder.mkdir()
    (folder / "writer.md").write_text("---\nname: writer\ndescription: writes\n---\nWrite.\n")
    project = gemini.world.project
    both = [calls("write_file", file_path=str(project / n), content=n)["parts"][0] for n in "xy"]
    model.script(
        calls("invoke_agent", agent_name="writer", prompt="write c"),
        calls("write_file", file_path=str(project / "c.txt"), content="c\n"),
        calls("complete_task", result="c is there"),
        {"parts": both},
        "all is written",
    )
    native = gemini.say("have c written")
    assert files(gemini) == {"c.txt": "c\n", "x": "x", "y": "y"}
    with gemini.world.session(f"gemini:{native}") as session:
        changed = [
            (call.by, [file.path for file in call.files])
            for turn in session.changes() for call in turn.calls
        ]  # fmt: skip
        assert session.info().turn_count == 1
        session.undo()
    assert changed == [("write_file", ["c.txt"]), ("write_file", ["x"]), ("write_file", ["y"])]
    assert files(gemini) == {}
    assert gemini.world.misses() == []


def test_settings_with_comments(tmp_path: Path, model: Model) -> None:
    """Gemini CLI takes them, so they stay, and `status` and Gemini itself see the hooks."""
    gemini = Gemini(World(tmp_path), model)
    plain = gemini.settings.read_text()
    commented = plain.replace("{\n", "{\n  // what I like\n", 1)
    gemini.settings.write_text(commented)
    assert gemini.world.run("hooks", "install", "gemini", "--yes").returncode == 0
    assert "// what I like" in gemini.settings.read_text()
    assert (status(gemini)["problem"], status(gemini)["missing"]) == (None, [])
    model.script("seen")
    native = gemini.say("hello")
    assert [info.key for info in gemini.world.sessions()] == [f"gemini:{native}"]
    assert gemini.world.run("hooks", "uninstall", "gemini", "--yes").returncode == 0
    assert gemini.settings.read_text() == commented


def test_status_and_removing(gemini: Gemini, model: Model) -> None:
    """`status` says whether they run; in a project's settings they do so as well."""
    assert (status(gemini)["problem"], status(gemini)["missing"]) == (None, [])
    ran = json.loads(gemini.settings.read_text())
    gemini.settings.write_text(json.dumps({**ran, "hooksConfig": {"disabled": ["backtrail"]}}))
    assert "switched off" in status(gemini)["problem"]
    model.script("unseen")
    gemini.say("hello")
    assert gemini.world.sessions() == []
    gemini.settings.write_text(json.dumps(ran, indent=2) + "\n")
    assert gemini.world.run("hooks", "uninstall", "gemini", "--yes").returncode == 0
    assert "hooks" not in json.loads(gemini.settings.read_text())
    assert gemini.world.run("hooks", "install", "gemini", "--project", "--yes").returncode == 0
    model.script("seen")
    native = gemini.say("hello")
    assert [info.key for info in gemini.world.sessions()] == [f"gemini:{native}"]
    assert status(gemini)["problem"] is None
