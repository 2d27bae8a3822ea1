"""The real Claude Code resumes what is written for it, and sends the kept history."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import Session, Store, open_store
from backtrail.events import NewEvent
from backtrail.exchange.claude_code import sessions as claude_code
from backtrail.exchange.foreign import import_session, mirror
from backtrail.exchange.native import write_session

from ..hooks.calling import World
from ..programs import needs
from .running import Claude, Model, binary, calls

pytestmark = needs("claude", binary())


@pytest.fixture
def claude(tmp_path: Path, model: Model) -> Claude:
    """Claude Code as it is, which keeps copies of files before it edits them."""
    made = Claude(World(tmp_path), model)
    made.env["CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"] = "true"
    return made


def two_turns(claude: Claude, model: Model) -> Session:
    """A session of two turns that edit files, imported."""
    a, b = (str(claude.world.project / name) for name in ("a.txt", "b.txt"))
    Path(b).write_text("b0\n")
    model.script(
        calls("Write", {"file_path": a, "content": "a1\n"}, "1"),
        calls("Read", {"file_path": b}, "2"),
        "the first turn is done",
    )
    id = claude.say("the first prompt")["session_id"]
    model.script(
        calls("Edit", {"file_path": b, "old_string": "b0", "new_string": "b1"}, "3"),
        "the second turn is done",
    )
    claude.say("the second prompt", "--resume", id)
    store = open_store(claude.world.url)
    (found,) = claude_code.find(claude.config)
    result = import_session(store, found)
    assert (result.native_id, result.problems) == (id, [])
    return Session.resume(store, id)


def test_claude_goes_on_after_a_rewind(claude: Claude, model: Model) -> None:
    """It knows the first turn and not the second, and the files agree."""
    with two_turns(claude, model) as s:
        second = list(s.events(kinds=("user_message",)))[1]
        s.rewind(before=second)
        assert (claude.world.project / "b.txt").read_text() == "b0\n"
        assert (claude.world.project / "a.txt").read_text() == "a1\n"
        made = write_session(s)
        model.script("the third turn is done")
        ran = claude.say("the third prompt", "--resume", made.id)
        assert ran["session_id"] == made.id
        heard = model.heard()
        for words in ("the first prompt", "toolu_1", "toolu_2", "the first turn is done"):
            assert words in heard
        assert "the second" not in heard and "toolu_3" not in heard
        assert mirror(s.store, s.id, made.path, "claude-code") == 2
        assert len(s.branches()) == 1
        s.store.close()


def test_claude_begins_anew(claude: Claude, model: Model) -> None:
    """Where all of it was taken back; what comes is still this session's."""
    with two_turns(claude, model) as s:
        s.rewind(before=next(s.events(kinds=("user_message",))))
        made = write_session(s)
        assert "--session-id" in made.command
        model.script("a fresh start")
        ran = claude.say("begin again", *made.command.split()[-2:])
        assert ran["session_id"] == made.id
        assert "the first prompt" not in model.heard()
        assert mirror(s.store, s.id, made.path, "claude-code") == 2
        assert s.messages()[0]["content"] == "begin again"
        s.store.close()


def test_claude_goes_on_elsewhere(claude: Claude, model: Model, tmp_path: Path) -> None:
    """In the folder of a fork, which it takes for where it is."""
    with two_turns(claude, model) as s:
        other = tmp_path / "plan b"
        with s.fork(into=other) as fork:
            made = write_session(fork)
        assert str(other) in made.command
        model.script("here too")
        claude.say("where are we?", "--resume", made.id, cwd=other)
        heard = model.heard()
        assert "the second turn is done" in heard and str(other) in heard
        s.store.close()


def test_claude_goes_on_with_what_it_never_said(claude: Claude, model: Model) -> None:
    """A history of ours, with calls and results, is one that it takes."""
    asked = {"id": "c1", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
    with open_store(claude.world.url) as store, ours(claude, store) as s:
        s.append({"role": "user", "content": "a prompt of ours"})
        s.append({"role": "assistant", "content": "I look", "tool_calls": [asked]})
        s.append({"role": "tool", "tool_call_id": "c1", "content": "a result of ours"})
        s.append({"role": "assistant", "content": "an answer of ours"})
        made = write_session(s, config_dir=claude.config)
    model.script("and on it goes")
    claude.say("go on", "--resume", made.id)
    heard = model.heard()
    for words in ("a prompt of ours", "a result of ours", "an answer of ours", "go on"):
        assert words in heard


def test_claude_knows_a_compaction(claude: Claude, model: Model) -> None:
    """It sends the summary in place of what was said before."""
    with open_store(claude.world.url) as store, ours(claude, store) as s:
        s.append({"role": "user", "content": "long ago"})
        s.append({"role": "assistant", "content": "an old answer"})
        summary = {"role": "assistant", "content": "all of it in short"}
        store.append(s.id, [NewEvent("compaction", {"summary": summary, "until": 3})])
        s.append({"role": "user", "content": "just now"})
        s.append({"role": "assistant", "content": "a new answer"})
        made = write_session(s, config_dir=claude.config)
    model.script("and on it goes")
    claude.say("go on", "--resume", made.id)
    heard = model.heard()
    assert "all of it in short" in heard and "just now" in heard
    assert "long ago" not in heard


def ours(claude: Claude, store: Store) -> Session:
    """A session that Claude Code never saw."""
    return Session.create(
        store, "ours", cwd=claude.world.project, agent_name="claude-code", files=False
    )
