"""The real Gemini CLI on a terminal: a person saves files while it asks, and denies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..hooks.calling import World
from ..programs import needs
from .running import Gemini, Model, calls, script

pytestmark = needs("gemini", script(), terminal=True)

QUESTION = "Allow"


def answer(body: dict[str, Any]) -> Any:
    """By what was said last, and whether that has its result."""
    parts = [part for content in body["contents"] for part in content["parts"]]
    texts = [at for at, part in enumerate(parts) if "text" in part and "functionCall" not in part]
    words = ("denied", "allowed", "third")
    at = max((at for at in texts if any(word in parts[at]["text"] for word in words)), default=-1)
    if at < 0:
        return "hm"
    last = parts[at]["text"]
    if any("functionResponse" in part for part in parts[at:]) or "third" in last:
        return "it is done"
    return calls("run_shell_command", command=f"sleep 0.2; echo x > {last.split()[-1]}.txt")


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as server:
        server.script(*[answer] * 60)
        yield server


def test_saving_while_it_asks(tmp_path: Path, model: Model) -> None:
    """Denied, the call owns nothing, whatever is saved until the next prompt."""
    world = World(tmp_path)
    mine = world.project / "mine.txt"
    mine.write_text("old\n")
    gemini = Gemini(world, model)
    assert world.run("hooks", "install", "gemini", "--yes").returncode == 0

    def heard(text: str) -> bool:
        return any(text in json.dumps(body["contents"]) for body in model.requests)

    def count(kind: str) -> int:
        infos = world.sessions()
        return len(world.events(infos[0].key or "", kind)) if infos else 0

    with gemini.open() as terminal:
        terminal.say("denied", lambda: heard("denied"))
        terminal.wait(QUESTION)
        terminal.press("Escape")
        terminal.wait("cancelled")
        mine.write_text("mine\n")
        terminal.say("allowed", lambda: heard("allowed"))
        terminal.wait(QUESTION)
        (world.project / "waited.txt").write_text("mine\n")
        time.sleep(1.5)
        terminal.press("Enter")
        terminal.wait("it is done")
        terminal.until(lambda: count("turn_end") == 1, what="the call")
        terminal.say("third", lambda: heard("third"))
        terminal.until(lambda: count("user_message") == 3, what="the prompt")
    key = world.sessions()[0].key or ""
    with world.session(key) as session:
        prompt = next(session.events(kinds=("user_message",)))
        done = session.rewind(before=prompt, scope="files")
    assert [f.path for f in done.files if f.action == "delete"] == ["allowed.txt"]
    # Whether the call ran before Esc is in doubt, so what was saved after it is kept, too.
    assert {f.path for f in done.conflicts} in ({"waited.txt"}, {"mine.txt", "waited.txt"})
    assert (mine.read_text(), (world.project / "waited.txt").exists()) == ("mine\n", True)
    assert world.misses() == []
