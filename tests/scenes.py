"""A person with a real agent on a terminal, and a model that does what it is asked."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from backtrail.events import Format, SessionInfo

from .hooks.calling import World
from .terminal import Terminal


class BaseScene(ABC):
    """An agent with our hooks, a project, and a person who types."""

    format: ClassVar[Format]
    """The format in which the agent's model is sent messages."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        subprocess.run(["git", "init", "-q"], cwd=self.world.project, check=True)

    def install(self, agent: str) -> None:
        """Put our hooks into the agent's settings."""
        done = self.world.run("hooks", "install", agent, "--yes")
        assert done.returncode == 0, done.stderr

    @abstractmethod
    def orders_in(self, messages: list[dict[str, Any]]) -> list[str]:
        """What a person asked for in messages as the model is sent them."""

    @abstractmethod
    def turns(self) -> list[list[dict[str, Any]]]:
        """What the model was sent, turn by turn."""

    def say(self, terminal: Terminal, text: str) -> None:
        """Say something, and wait until the turn is over and recorded."""
        ended = self.count("turn_end")
        self.ask(terminal, text)
        terminal.until(lambda: self.count("turn_end") > ended, 30, f"the end of {text!r}")

    def ask(self, terminal: Terminal, text: str) -> None:
        """Say something, and wait until the model is sent it."""
        before = len(self.turns())
        terminal.say(text, lambda: any(text in self.orders_in(m) for m in self.turns()[before:]))

    def command(self, terminal: Terminal, text: str, is_done: Callable[[str], bool]) -> None:
        """Use a command of the agent's own, and wait for what the screen shows then."""
        terminal.write(text, spell=True)
        assert terminal.enter(text, lambda: is_done(terminal.screen())), terminal.screen()

    def heard(self) -> list[dict[str, Any]]:
        """All that the model was sent last."""
        return next(messages for messages in reversed(self.turns()) if messages)

    def sent(self) -> list[str]:
        """What a person said, as the model was sent it last."""
        return self.orders_in(self.heard())

    def said(self, key: str | None = None) -> list[str]:
        """The prompts that count in a session of ours."""
        with self.world.session(key or self.latest().key or "") as session:
            return self.orders_in(session.messages(format=self.format))

    def count(self, kind: str) -> int:
        """How many events of a kind there are, in all sessions."""
        return sum(len(self.world.events(i.key or "", kind)) for i in self.world.sessions())

    def latest(self) -> SessionInfo:
        """The session that was last at work."""
        return self.world.sessions()[0]

    def files(self) -> dict[str, str]:
        """The project's files."""
        found = sorted(self.world.project.iterdir())
        return {path.name: path.read_text() for path in found if path.is_file()}
