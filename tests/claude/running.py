"""The real `claude`, with a model on loopback and a home of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..agent.servers.anthropic import AnthropicServer
from ..agent.servers.base import Answer
from ..hooks.calling import World
from ..programs import environment, output_of, program

INSIDE = ".claude-venv/lib/python*/site-packages/claude_agent_sdk/_bundled/claude"


def binary() -> str | None:
    """Where `claude` is, if the tests are to run it."""
    return program("BACKTRAIL_TEST_CLAUDE", INSIDE)


class Model(AnthropicServer):
    """A model that says what its script has. `claude` sends more than the strict server takes."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def check(self, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Anything goes."""

    def events(self, answer: Answer, body: dict[str, Any]) -> list[bytes]:
        number = next(self._numbers)
        # Lines of one answer are known by its id.
        ran = super().events(answer, body)
        return [event.replace(b'"msg_1"', f'"msg_{number}"'.encode()) for event in ran]

    def heard(self) -> str:
        """All that was sent with the last request."""
        return json.dumps(self.requests[-1]["messages"])


def calls(name: str, given: dict[str, Any], id: str) -> dict[str, Any]:
    """An answer that asks for a tool."""
    block = {"type": "tool_use", "id": f"toolu_{id}", "name": name, "input": given}
    return {"role": "assistant", "content": [{"type": "text", "text": f"next: {name}"}, block]}


class Claude:
    """`claude` in a project."""

    def __init__(self, world: World, model: Model) -> None:
        found = binary()
        assert found is not None
        self.binary = found
        self.world = world
        self.config = world.root / "config"
        self.config.mkdir()
        self.env = environment(world) | {
            "CLAUDE_CONFIG_DIR": str(self.config),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        world.env["CLAUDE_CONFIG_DIR"] = str(self.config)

    def say(self, prompt: str, *more: str, cwd: Path | None = None) -> dict[str, Any]:
        """One prompt, to its end: what `claude` says about it."""
        command = [
            *(self.binary, "-p", prompt, "--output-format", "json"),
            *("--dangerously-skip-permissions", "--system-prompt", "x"),
            *("--tools", "Read,Write,Edit,Bash,Agent", "--disable-slash-commands"),
            *more,
        ]
        printed = output_of(command, cwd or self.world.project, self.env)
        ran: dict[str, Any] = json.loads(printed)
        return ran
