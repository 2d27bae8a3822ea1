"""A person with the real Gemini CLI on a terminal, and a model that does what it is asked."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backtrail.events import SessionInfo

from ..hooks.calling import World
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


def prompts(body: dict[str, Any]) -> list[str]:
    """What a person said, as the model was sent it."""
    parts = [p for c in body["contents"] if c["role"] == "user" for p in c["parts"]]
    return [part["text"] for part in parts if part.get("text", "").startswith(ORDERS)]


class Scene:
    """Gemini CLI with our hooks, a project, and a person who types."""

    def __init__(self, root: Path, model: Model, **general: Any) -> None:
        self.world, self.model = World(root), model
        subprocess.run(["git", "init", "-q"], cwd=self.world.project, check=True)
        self.gemini = Gemini(self.world, model)
        settings = json.loads(self.gemini.settings.read_text())
        settings["general"] |= general
        self.gemini.settings.write_text(json.dumps(settings))
        done = self.world.run("hooks", "install", "gemini", "--yes")
        assert done.returncode == 0, done.stderr
        model.script(*[obey(self.world.project)] * 60)

    def open(self, *words: str, cwd: Path | None = None) -> Terminal:
        """Gemini CLI on a terminal of its own."""
        return self.gemini.open(*words, cwd=cwd)

    def say(self, terminal: Terminal, text: str) -> None:
        """Say something, and wait until the turn is over and recorded."""
        ended = self.count("turn_end")
        self.ask(terminal, text)
        terminal.until(lambda: self.count("turn_end") > ended, 30, f"the end of {text!r}")

    def ask(self, terminal: Terminal, text: str) -> None:
        """Say something, and wait until the model is sent it."""
        before = len(self.model.requests)
        terminal.say(text, lambda: any(text in prompts(b) for b in self.model.requests[before:]))

    def command(self, terminal: Terminal, text: str, is_done: Callable[[str], bool]) -> None:
        """Use a command of Gemini's own, and wait for what the screen shows then."""
        terminal.write(text, spell=True)
        if " " in text:
            # Else Enter takes what is suggested.
            terminal.press("Escape")
            time.sleep(0.5)
        assert terminal.enter(text, lambda: is_done(terminal.screen())), terminal.screen()

    def sent(self) -> list[str]:
        """What a person said, as the model was sent it last."""
        return prompts(self.model.requests[-1])

    def count(self, kind: str) -> int:
        """How many events of a kind there are, in all sessions."""
        return sum(len(self.world.events(i.key or "", kind)) for i in self.world.sessions())

    def latest(self) -> SessionInfo:
        """The session that was last at work."""
        return self.world.sessions()[0]

    def said(self, key: str | None = None) -> list[str]:
        """The prompts that count in a session of ours."""
        with self.world.session(key or self.latest().key or "") as session:
            messages = session.messages(format="openai")
        return [str(m["content"]) for m in messages if m["role"] == "user"]

    def files(self) -> dict[str, str]:
        """The project's files."""
        found = sorted(self.world.project.iterdir())
        return {path.name: path.read_text() for path in found if path.is_file()}
