"""The real `gemini`, with a model on loopback and a home of its own."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..agent.servers.base import Answer, Failure, ModelServer, sse
from ..hooks.calling import World
from ..programs import environment, output_of, program
from ..terminal import Line, Terminal

INSIDE = ".gemini-cli/node_modules/@google/gemini-cli/bundle/gemini.js"
MODEL = "gemini-2.5-pro"
USAGE = {"promptTokenCount": 20, "candidatesTokenCount": 7, "totalTokenCount": 27}
SUMMARY = "all that was said, in short"
"""What the model makes of a chat that is compressed."""

LINE = Line((" * ", " > "), "Type your message or @path/to/file", ("Resuming session",))
"""Where Gemini CLI takes keys; the star is there when no call has to be allowed."""

SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "telemetry": {"enabled": False},
}


def script() -> str | None:
    """Where `gemini` is, if the tests are to run it."""
    return program("BACKTRAIL_TEST_GEMINI", INSIDE)


class Model(ModelServer):
    """A model that says what its script has, by `streamGenerateContent`."""

    path = f"/v1beta/models/{MODEL}:streamGenerateContent"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def check(self, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Anything goes."""

    def events(self, answer: Answer, body: dict[str, Any]) -> list[bytes]:
        given = answer.message
        parts = [{"text": given}] if isinstance(given, str) else given["parts"]
        content = {"role": "model", "parts": parts}
        candidate = {"content": content, "finishReason": "STOP", "index": 0}
        ran = {"candidates": [candidate], "usageMetadata": answer.usage or USAGE}
        return [sse({**ran, "responseId": f"r{next(self._numbers)}", "modelVersion": MODEL})]

    def plain(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """A chat is summed up without a stream, and that it is summed up is checked once more."""
        if not path.endswith(":generateContent"):
            return None
        content = {"role": "model", "parts": [{"text": f"<state_snapshot>{SUMMARY}"}]}
        return {"candidates": [{"content": content, "finishReason": "STOP"}]}

    def failure(self, failure: Failure) -> dict[str, Any]:
        return {"error": {"code": failure.status, "message": failure.message, "status": "FAILED"}}

    def broken(self, kind: str) -> bytes:
        return sse({"error": {"code": 500, "message": kind}})

    def heard(self) -> str:
        """All that was sent with the last request."""
        return json.dumps(self.requests[-1]["contents"])


def calls(name: str, **given: Any) -> dict[str, Any]:
    """An answer that asks for a tool."""
    return {"parts": [{"functionCall": {"name": name, "args": given}}]}


class Gemini:
    """`gemini` in a project."""

    def __init__(self, world: World, model: Model) -> None:
        found, node = script(), shutil.which("node")
        assert found is not None
        assert node is not None
        self._words = [node, found]
        self.world = world
        self.settings = world.home / ".gemini" / "settings.json"
        self.settings.parent.mkdir()
        self.settings.write_text(json.dumps(SETTINGS, indent=2) + "\n")
        self.env = environment(world) | {
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": model.url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }

    def open(self, *words: str, cwd: Path | None = None) -> Terminal:
        """Gemini CLI on a terminal of its own, once it takes keys."""
        command = [*self._words, "-m", MODEL, *words]
        terminal = Terminal(command, self.env, cwd or self.world.project, LINE)

        def is_ready() -> bool:
            # A line is drawn before the rest is; keys that come then are lost with it.
            screen = terminal.screen()
            is_resumed = "--resume" not in words or "\n > " in screen
            return "Authenticated with" in screen and is_resumed

        return terminal.once(is_ready)

    def say(self, prompt: str, *more: str) -> str:
        """One prompt, to its end: the id of Gemini's session."""
        command = [
            *self._words,
            "-p",
            prompt,
            "--yolo",
            "-m",
            MODEL,
            "--output-format",
            "json",
            *more,
        ]
        printed = output_of(command, self.world.project, self.env)
        return str(json.loads(printed)["session_id"])
