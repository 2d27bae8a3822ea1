"""A person with the real Gemini CLI on a terminal, and a model that does what it is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..scenes import BaseScene
from ..terminal import Terminal
from .running import Gemini, Model, calls

ORDERS = ("write", "run", "leave", "just")


def obey(project: Path) -> Callable[[dict[str, Any]], Any]:
    """Answers: `write a.txt one`, `run COMMAND`, `leave COMMAND` (running), `just say`."""

    def answer(body: dict[str, Any]) -> Any:
        parts = [part for content in body["contents"] for part in content["parts"]]
        orders = [n for n, part in enumerate(parts) if part.get("text", "").startswith(ORDERS)]
        if not orders:
            return "hm"
        order, _, rest = parts[orders[-1]]["text"].partition(" ")
        first = rest.split(" ")[0]
        if order == "just" or any("functionResponse" in part for part in parts[orders[-1] :]):
            return f"done with {first}"
        if order in ("run", "leave"):
            behind = {"is_background": True} if order == "leave" else {}
            return calls("run_shell_command", command=rest, **behind)
        text = rest.partition(" ")[2] + "\n"
        return calls("write_file", file_path=str(project / first), content=text)

    return answer


class Scene(BaseScene):
    """Gemini CLI with our hooks, a project, and a person who types."""

    format = "openai"

    def __init__(self, root: Path, model: Model, **general: Any) -> None:
        super().__init__(root)
        self.model = model
        self.gemini = Gemini(self.world, model)
        settings = json.loads(self.gemini.settings.read_text())
        settings["general"] |= general
        self.gemini.settings.write_text(json.dumps(settings))
        self.install("gemini")
        model.script(*[obey(self.world.project)] * 60)

    def open(self, *words: str, cwd: Path | None = None) -> Terminal:
        """Gemini CLI on a terminal of its own."""
        return self.gemini.open(*words, cwd=cwd)

    def command(self, terminal: Terminal, text: str, is_done: Callable[[str], bool]) -> None:
        terminal.write(text, spell=True)
        if " " in text:
            # Else Enter takes what is suggested.
            terminal.press("Escape")
            time.sleep(0.5)
        assert terminal.enter(text, lambda: is_done(terminal.screen())), terminal.screen()

    def orders_in(self, messages: list[dict[str, Any]]) -> list[str]:
        said = [message for message in messages if message["role"] == "user"]
        parts = [part for message in said for part in message.get("parts", [message])]
        texts = [str(part.get("text", part.get("content", ""))) for part in parts]
        return [text for text in texts if text.startswith(ORDERS)]

    def turns(self) -> list[list[dict[str, Any]]]:
        return [body["contents"] for body in self.model.requests]
