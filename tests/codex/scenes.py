"""A person with the real Codex on a terminal, and a model that does what it is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..scenes import BaseScene
from ..terminal import Terminal
from .running import Codex, Model, calls, runs

ORDERS = ("run ", "leave ", "just ")
SUMMARY = "all that was said, in short"


def orders(items: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """What a person asked for among the items that the model is sent, with the places."""
    found = []
    for at, item in enumerate(items):
        if item.get("type") == "message" and item["role"] == "user":
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


class Scene(BaseScene):
    """Codex with our hooks, a trusted project, and a person who types."""

    format = "responses"

    def __init__(self, root: Path, model: Model) -> None:
        super().__init__(root)
        self.model = model
        self.codex = Codex(self.world, model, "unknown-model")
        self.install("codex")
        with (self.codex.home / "config.toml").open("a") as file:
            file.write(f'\n[projects."{self.world.project}"]\ntrust_level = "trusted"\n')
        self.codex.trust()
        model.script(*[obey] * 80)

    def open(self, *words: str, cwd: Path | None = None) -> Terminal:
        """Codex on a terminal of its own."""
        free = ("--ask-for-approval", "never", "--sandbox", "danger-full-access")
        return self.codex.open(*words, *free, cwd=cwd)

    def orders_in(self, messages: list[dict[str, Any]]) -> list[str]:
        return [text for _, text in orders(messages)]

    def turns(self) -> list[list[dict[str, Any]]]:
        """A screen of Codex's asks for titles, too: these are no turns."""
        return [body["input"] if body.get("tools") else [] for body in self.model.requests]
