"""One session of Claude Code from several sides: typed, headless, resumed and forked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from backtrail import open_store

from .running import Claude
from .test_windows import claude, model, project, pytestmark
from .window import READY, Planned, Window, window

__all__ = ["claude", "model", "project", "pytestmark"]


def typed(claude: Claude, model: Planned, *words: str, more: tuple[str, ...] = ()) -> Window:
    """Type prompts in a window, and leave it."""
    with window(claude, *more) as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        for word in words:
            one.say(word)
        one.enter("/exit")
        terminal.until(lambda: not one.is_open, what="the end")
    return one


def native_ids(claude: Claude) -> list[str]:
    """The ids of the sessions that Claude Code has, oldest first."""
    paths = (claude.config / "projects").glob("*/*.jsonl")
    return [path.stem for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)]


def prompts_above(claude: Claude, id: str) -> list[str]:
    """The prompts of a transcript by the parents that its lines name, from the last one up."""
    (path,) = (claude.config / "projects").glob(f"*/{id}.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_uuid = {line["uuid"]: line for line in lines if "uuid" in line}
    found: list[str] = []
    at = list(by_uuid)[-1]
    while at:
        line = by_uuid[at]
        if line["type"] == "user" and "promptSource" in line:
            found.append(line["message"]["content"])
        at = line["parentUuid"]
    return found[::-1]


def ours(claude: Claude, model: Planned, id: str, branches: int = 0) -> list[str]:
    """Our conversation of a native session, which Claude Code never left for another way."""
    with claude.world.session(f"claude-code:{id}") as session:
        assert len(session.branches()) == branches
        assert list(session.events(kinds=("rewound",))) == []
        return model.ran(session.messages(format="anthropic"))


def imported(claude: Claude, model: Planned, id: str, folder: Path) -> list[str]:
    """The conversation as a fresh store imports it."""
    (path,) = (claude.config / "projects").glob(f"*/{id}.jsonl")
    url = f"sqlite:///{folder / 'fresh.db'}"
    done = claude.world.run("--store", url, "import", "claude-code", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    from backtrail import Session

    with open_store(url) as store, Session.resume(store, id, files=False) as session:
        return model.ran(session.messages(format="anthropic"))


def test_headless_behind_typed(claude: Claude, model: Planned, tmp_path: Path) -> None:
    """Headless prompts go on with what was typed, and typed ones with that."""
    typed(claude, model, "say-one")
    for word in ("say-two", "say-three"):
        claude.say(word, "--continue")
    typed(claude, model, "write-a", more=("--continue",))
    (id,) = native_ids(claude)
    words = ["say-one", "say-two", "say-three", "write-a"]
    assert [word for word in model.sent("write-a") if word in words] == words
    assert prompts_above(claude, id) == words
    sent = [*model.sent("write-a"), "wrote a"]
    assert ours(claude, model, id) == sent
    assert imported(claude, model, id, tmp_path) == sent
    assert claude.world.sessions()[0].turn_count == 4


def test_typed_behind_headless(claude: Claude, model: Planned, tmp_path: Path) -> None:
    """The first typed prompt has the number 1, and is not the first of the conversation."""
    claude.say("say-one")
    claude.say("say-two", "--continue")
    (id,) = native_ids(claude)
    typed(claude, model, "say-three", more=("--resume", id))
    claude.say("write-a", "--resume", id)
    assert prompts_above(claude, id) == ["say-one", "say-two", "say-three", "write-a"]
    sent = [*model.sent("write-a"), "wrote a"]
    assert len(sent) == 8
    assert ours(claude, model, id) == sent
    assert imported(claude, model, id, tmp_path) == sent


def test_typed_behind_an_undo_of_headless(claude: Claude, model: Planned) -> None:
    """The session that an undo writes goes on in a window."""
    claude.say("say-one")
    claude.say("say-two", "--continue")
    done = claude.world.run("undo", "--yes")
    found = re.search(r"claude --resume (\S+)", done.stdout)
    assert found, done.stdout + done.stderr
    id = found[1]
    typed(claude, model, "say-three", more=("--resume", id))
    sent = model.sent("say-three")
    assert sent == ["say-one", "answer one", "say-three"]
    assert prompts_above(claude, id) == ["say-one", "say-three"]
    assert ours(claude, model, id, branches=1) == [*sent, "answer three"]


def test_starting_over_among_headless(claude: Claude, model: Planned) -> None:
    """A rewind to before a first prompt that was headless still starts over."""
    claude.say("say-one")
    (id,) = native_ids(claude)
    with window(claude, "--resume", id) as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        one.say("say-two")
        one.enter("/rewind")
        one.rewind(2, 1)
        one.say("say-three")
    assert model.sent("say-three") == ["say-three"]
    assert one.ran() == ["say-three", "answer three"]
    with one.session() as session:
        assert [branch.message_count for branch in session.branches()] == [4]


@pytest.mark.parametrize("headless", [True, False], ids=["headless", "typed"])
def test_going_on_behind_a_start_over(claude: Claude, model: Planned, headless: bool) -> None:
    """The next process is sent the turn that was left, too; so our conversation has it again."""
    with window(claude) as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        one.say("say-one")
        one.enter("/rewind")
        one.rewind(1, 1)
        one.say("say-two")
        one.enter("/exit")
        terminal.until(lambda: not one.is_open, what="the end")
    assert model.sent("say-two") == ["say-two"]
    if headless:
        claude.say("say-three", "--continue")
    else:
        typed(claude, model, "say-three", more=("--continue",))
    # Claude Code reads the parents alone.
    sent = model.sent("say-three")
    assert sent == ["say-one", "answer one", "say-two", "answer two", "say-three"]
    assert one.ran() == [*sent, "answer three"]
    with one.session() as session:
        assert session.branches() == []


def test_a_fork_of_its_own(claude: Claude, model: Planned, tmp_path: Path) -> None:
    """`--fork-session`: what was said before is in the fork, in its place, once."""
    typed(claude, model, "say-one", "say-two")
    (first,) = native_ids(claude)
    typed(claude, model, "say-three", more=("--resume", first, "--fork-session"))
    second = native_ids(claude)[-1]
    assert second != first
    assert prompts_above(claude, second) == ["say-one", "say-two", "say-three"]
    sent = [*model.sent("say-three"), "answer three"]
    assert len(sent) == 6
    assert ours(claude, model, second) == imported(claude, model, second, tmp_path) == sent
    assert ours(claude, model, first) == sent[:4]
    (info,) = [one for one in claude.world.sessions() if one.key == f"claude-code:{second}"]
    assert info.turn_count == 3
    listed = claude.world.run("ls").stdout
    assert listed.count("say-one") == 2
    assert "say-three" not in listed
    done = claude.world.run("undo", "--yes", "--session", info.id)
    assert done.returncode == 0, done.stdout + done.stderr
    # An undo writes another native session, under whose name ours goes on.
    assert ours(claude, model, native_ids(claude)[-1], branches=1) == sent[:4]


def undone(claude: Claude) -> tuple[int, dict[str, Any]]:
    """Undo the last turn: the exit code, and what it says."""
    done = claude.world.run("undo", "--yes", "--json")
    return done.returncode, json.loads(done.stdout)


def test_turns_without_hooks(claude: Claude, model: Planned, project: Path) -> None:
    """What they did cannot be taken back, and that is said: by call, and by file."""
    claude.env["BACKTRAIL_HOOKS"] = "off"
    with window(claude) as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        for word, answer in (("say-one", "answer one"), ("write-a", "wrote a")):
            one.say(word, answer)
        one.enter("/exit")
        terminal.until(lambda: not one.is_open, what="the end")
    claude.env["BACKTRAIL_HOOKS"] = "on"
    typed(claude, model, "write-b", more=("--continue",))
    code, ran = undone(claude)
    assert (code, ran["not_captured"]) == (0, [])
    assert not (project / "b.txt").exists()
    code, ran = undone(claude)
    assert code == 4
    (missed,) = ran["not_captured"]
    assert "Write" in missed["path"]
    assert str(project / "a.txt") in missed["reason"]
    assert (project / "a.txt").exists()
    code, ran = undone(claude)
    assert (code, ran["not_captured"]) == (0, [])


def test_turns_that_a_fork_inherits(claude: Claude, model: Planned, project: Path) -> None:
    """Their files belong to the session they come from."""
    typed(claude, model, "write-a")
    (first,) = native_ids(claude)
    typed(claude, model, "write-b", more=("--resume", first, "--fork-session"))
    code, ran = undone(claude)
    assert (code, ran["not_captured"]) == (0, [])
    code, ran = undone(claude)
    assert code == 4
    assert str(project / "a.txt") in json.dumps(ran["not_captured"])
