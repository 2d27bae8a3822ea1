"""A person with the real Codex on a terminal, and a model that does what it is asked."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backtrail.events import SessionInfo

from ..hooks.calling import World
from ..terminal import Terminal
from .running import Codex, Model, calls, runs

ORDERS = ("run ", "leave ", "just ")
SUMMARY = "all that was said, in short"


def orders(items: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """What a person asked for among the items that the model is sent, with the places."""
    found = []
    for at, item in enumerate(items):
        if item["type"] == "message" and item["role"] == "user":
            texts = [part.get("text", "") for part in item["content"]]
            found += [(at, text) for text in texts if text.startswith(ORDERS)]
    return found


def obey(body: dict[str, Any]) -> Any:
    """Answers: `run COMMAND`, `leave COMMAND` (running), `just say`; a word after a result."""
    items = body["input"]
    asked = orders(items)
    if "CONTEXT CHECKPOINT" in json.dumps(items[-1:]) or not asked:
        return SUMMARY
    at, text = asked[-1]
    order, _, rest = text.partition(" ")
    if order == "just" or any(item["type"].endswith("_output") for item in items[at:]):
        return f"done with {rest.split(' ')[0]}"
    id = f"{len(items)}-{abs(hash(text)) % 10**6}"
    if order == "leave":
        return calls("exec_command", {"cmd": rest, "yield_time_ms": 500}, id)
    return runs(rest, id)


class Scene:
    """Codex with our hooks, a trusted project, and a person who types."""

    def __init__(self, root: Path, model: Model) -> None:
        self.world, self.model = World(root), model
        subprocess.run(["git", "init", "-q"], cwd=self.world.project, check=True)
        self.codex = Codex(self.world, model, "unknown-model")
        done = self.world.run("hooks", "install", "codex", "--yes")
        assert done.returncode == 0, done.stderr
        with (self.codex.home / "config.toml").open("a") as file:
            file.write(f'\n[projects."{self.world.project}"]\ntrust_level = "trusted"\n')
        self.codex.trust()
        model.script(*[obey] * 80)

    def open(self, *words: str, cwd: Path | None = None) -> Terminal:
        """Codex on a terminal of its own."""
        free = ("--ask-for-approval", "never", "--sandbox", "danger-full-access")
        return self.codex.open(*words, *free, cwd=cwd)

    def say(self, terminal: Terminal, text: str) -> None:
        """Say something, and wait until the turn is over and recorded."""
        ended = self.count("turn_end")
        self.ask(terminal, text)
        terminal.until(lambda: self.count("turn_end") > ended, 30, f"the end of {text!r}")

    def ask(self, terminal: Terminal, text: str) -> None:
        """Say something, and wait until the model is sent it."""
        before = len(self.model.requests)
        terminal.say(text, lambda: self._is_sent(text, before))

    def _is_sent(self, text: str, before: int) -> bool:
        return any(text == said for b in self.turns()[before:] for _, said in orders(b["input"]))

    def command(self, terminal: Terminal, text: str, is_done: Callable[[str], bool]) -> None:
        """Use a command of Codex's own, and wait for what the screen shows then."""
        terminal.write(text, spell=True)
        assert terminal.enter(text, lambda: is_done(terminal.screen())), terminal.screen()

    def turns(self) -> list[dict[str, Any]]:
        """The requests of turns: a screen of Codex's asks for titles, too."""
        return [b if b.get("tools") else {"input": []} for b in self.model.requests]

    def heard(self) -> list[dict[str, Any]]:
        """All that the model was sent last."""
        items: list[dict[str, Any]]
        items = next(body["input"] for body in reversed(self.turns()) if body["input"])
        return items

    def sent(self) -> list[str]:
        """What a person said, as the model was sent it last."""
        return [text for _, text in orders(self.heard())]

    def count(self, kind: str) -> int:
        """How many events of a kind there are, in all sessions."""
        return sum(len(self.world.events(i.key or "", kind)) for i in self.world.sessions())

    def latest(self) -> SessionInfo:
        """The session that was last at work."""
        return self.world.sessions()[0]

    def said(self, key: str | None = None) -> list[str]:
        """The prompts that count in a session of ours."""
        with self.world.session(key or self.latest().key or "") as session:
            messages = session.messages(format="responses")
        return [text for _, text in orders([m for m in messages if m.get("type") == "message"])]

    def files(self) -> dict[str, str]:
        """The project's files."""
        found = sorted(self.world.project.iterdir())
        return {path.name: path.read_text() for path in found if path.is_file()}
