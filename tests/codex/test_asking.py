"""The real Codex on a terminal: a person saves files while it asks, denies, and interrupts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..hooks.calling import World
from ..programs import needs
from ..terminal import Terminal
from .running import Codex, Model, binary, calls

pytestmark = needs("codex", binary(), terminal=True)

QUESTION = "Would you like to run"
LOOP = "for i in 1 2 3 4 5 6 7 8; do echo $i > loop.txt; sleep 0.4; done; echo x > end.txt"

COMMANDS = {
    "zeta-allow": "sleep 1; echo ran > ran.txt",
    "zeta-deny": "echo x > never.txt",
    "zeta-loop": LOOP,
}
"""What is run when a prompt has a word."""


def escalated(command: str, id: str) -> dict[str, Any]:
    """An answer that asks for a command outside of the sandbox, which a person has to allow."""
    given = {"cmd": command, "sandbox_permissions": "require_escalated", "justification": "please"}
    return calls("exec_command", given, id)


def answer(body: dict[str, Any]) -> Any:
    """By what was said last: a screen of Codex's may ask for more than its turns."""
    said = [i for i in body["input"] if i["type"] == "message" and i["role"] == "user"]
    last = json.dumps(said[-1]) if said else ""
    done = [item.get("call_id") for item in body["input"] if item["type"].endswith("_output")]
    for number, (word, command) in enumerate(COMMANDS.items()):
        if word in last and f"call_{number}" in done:
            return f"{word} is done"
        if word in last:
            return escalated(command, str(number))
    return "hm"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    (made.project / "mine.txt").write_text("old\n")
    return made


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as server:
        server.script(*[answer] * 60)
        yield server


@pytest.fixture
def terminal(world: World, model: Model) -> Iterator[Terminal]:
    """Codex on a terminal, in a trusted folder, with our hooks."""
    codex = Codex(world, model, "unknown-model")
    assert world.run("hooks", "install", "codex", "--yes").returncode == 0
    with (codex.home / "config.toml").open("a") as file:
        file.write(f'\n[projects."{world.project}"]\ntrust_level = "trusted"\n')
    codex.trust()
    words = ("--ask-for-approval", "on-request", "--sandbox", "workspace-write")
    with codex.open(*words) as made:
        yield made


def say(terminal: Terminal, model: Model, text: str) -> None:
    terminal.say(text, lambda: any(text in json.dumps(body["input"]) for body in model.requests))


def kinds(world: World) -> list[str]:
    (info,) = world.sessions()
    return [event.kind for event in world.events(info.key or "")]


def test_saving_while_it_asks(world: World, terminal: Terminal, model: Model) -> None:
    """Denied, the call owns nothing. Allowed, it owns what it wrote, and the rest is kept."""
    mine, new = world.project / "mine.txt", world.project / "new.txt"
    say(terminal, model, "zeta-deny")
    terminal.wait(QUESTION)
    new.write_text("mine\n")
    mine.write_text("mine\n")
    terminal.press("Escape")
    terminal.until(lambda: "turn_end" in kinds(world), what="the interrupt")
    (info,) = world.sessions()
    with world.session(info.key or "") as session:
        # Codex says of both the same: whether the call ran before Esc is in doubt, so all is kept.
        assert {f.action for f in session.undo(dry_run=True).files} <= {"conflict"}
    say(terminal, model, "zeta-allow")
    terminal.until(lambda: terminal.screen().count(QUESTION) == 1, what="the question")
    mine.write_text("mine again\n")
    time.sleep(1)
    terminal.press("y")
    terminal.wait("zeta-allow is done")
    terminal.until(lambda: kinds(world).count("turn_end") == 2, what="the end of the turn")
    with world.session(info.key or "") as session:
        prompt = next(session.events(kinds=("user_message",)))
        done = session.rewind(before=prompt, scope="files")
    assert [f.path for f in done.files if f.action == "delete"] == ["ran.txt"]
    assert {f.path for f in done.conflicts} in ({"mine.txt"}, {"mine.txt", "new.txt"})
    assert (new.read_text(), mine.read_text()) == ("mine\n", "mine again\n")
    assert not (world.project / "ran.txt").exists()
    assert world.misses() == []


def test_a_command_that_goes_on(world: World, terminal: Terminal, model: Model) -> None:
    """Esc stops Codex and not the command: what it writes is its call's, or said to be in doubt."""
    say(terminal, model, "zeta-loop")
    terminal.wait(QUESTION)
    terminal.press("y")
    terminal.until((world.project / "loop.txt").exists, what="the loop")
    time.sleep(0.5)
    terminal.press("Escape")
    terminal.until(lambda: "turn_end" in kinds(world), what="the interrupt")
    terminal.until((world.project / "end.txt").exists, what="the end of the loop")
    (world.project / "mine.txt").write_text("mine\n")
    time.sleep(0.5)
    say(terminal, model, "zeta-last")
    terminal.until(lambda: kinds(world).count("user_message") == 2, what="the prompt")
    (info,) = world.sessions()
    first, later = world.events(info.key or "", "action")
    assert first.data["interrupted"] and later.data["interrupted"]
    assert "doubtful" not in first.data["files"]
    assert set(later.data["files"]["doubtful"]) == {"end.txt", "loop.txt", "mine.txt"}
    with world.session(info.key or "") as session:
        prompt = next(session.events(kinds=("user_message",)))
        session.rewind(before=prompt, scope="files")
    assert (world.project / "mine.txt").read_text() == "mine\n"
    assert world.misses() == []
