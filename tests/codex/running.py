"""The real `codex`, with a model on loopback and a home of its own."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..agent.servers.base import Answer, Failure, ModelServer, sse
from ..hooks.calling import World
from ..programs import environment, output_of, program
from ..terminal import Line, Terminal

INSIDE = ".codex-cli/node_modules/@openai/codex-*/vendor/*/bin/codex"
LINE = Line(("› ",), "Ask Codex to do anything", ("\n     loading\n", "Resuming session"))
"""Where Codex takes keys."""

USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 27,
}
CONFIG = """\
check_for_update_on_startup = false
model = "{model}"
model_provider = "loopback"

[model_providers.loopback]
name = "loopback"
base_url = "{url}"
wire_api = "responses"

[analytics]
enabled = false

# They are fetched from elsewhere.
[features]
plugins = false
"""


def binary() -> str | None:
    """Where `codex` is, if the tests are to run it."""
    return program("BACKTRAIL_TEST_CODEX", INSIDE)


class Model(ModelServer):
    """A model that says what its script has, by the Responses API."""

    path = "/v1/responses"
    prefix = "/v1"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def check(self, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Every call must have its result, and every result its call."""
        calls = [item["call_id"] for item in body["input"] if item["type"].endswith("_call")]
        results = [item["call_id"] for item in body["input"] if item["type"].endswith("_output")]
        assert calls == results, (calls, results)

    def events(self, answer: Answer, body: dict[str, Any]) -> list[bytes]:
        number = next(self._numbers)
        given = answer.message
        items = [said(given, number)] if isinstance(given, str) else list(given["items"])
        events: list[dict[str, Any]] = [{"type": "response.created", "response": {}}]
        for at, item in enumerate(items):
            events.append({"type": "response.output_item.done", "output_index": at, "item": item})
        done = {"id": f"resp_{number}", "usage": answer.usage or USAGE}
        events.append({"type": "response.completed", "response": done})
        return [sse(event, event["type"]) for event in events]

    def failure(self, failure: Failure) -> dict[str, Any]:
        return {"error": {"message": failure.message, "type": failure.kind or "server_error"}}

    def broken(self, kind: str) -> bytes:
        return sse({"type": "response.failed", "response": {"error": {"code": kind}}})

    def heard(self) -> str:
        """All that was sent with the last request."""
        return json.dumps(self.requests[-1]["input"])


def said(text: str, number: int) -> dict[str, Any]:
    """A message as an item."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}


def calls(name: str, given: dict[str, Any], id: str, **more: str) -> dict[str, Any]:
    """An answer that asks for a tool."""
    item = {"type": "function_call", "name": name, "arguments": json.dumps(given), **more}
    return {"items": [{**item, "call_id": f"call_{id}"}]}


def runs(command: str, id: str) -> dict[str, Any]:
    """An answer that asks for a shell command."""
    return calls("exec_command", {"cmd": command}, id)


def patches(patch: str, id: str) -> dict[str, Any]:
    """An answer that asks for a patch."""
    text = f"*** Begin Patch\n{patch}*** End Patch\n"
    item = {"type": "custom_tool_call", "name": "apply_patch", "input": text}
    return {"items": [{**item, "call_id": f"call_{id}"}]}


class Codex:
    """`codex` in a project."""

    def __init__(self, world: World, model: Model, name: str = "gpt-5.5") -> None:
        found = binary()
        assert found is not None
        self._binary = found
        self.world = world
        self.home = world.root / "codex"
        self.home.mkdir()
        (self.home / "config.toml").write_text(CONFIG.format(model=name, url=model.url))
        self.env = environment(world) | {
            "CODEX_HOME": str(self.home),
        }
        world.env["CODEX_HOME"] = str(self.home)

    def open(self, *words: str, cwd: Path | None = None) -> Terminal:
        """Codex on a terminal of its own, once it takes keys."""
        terminal = Terminal([self._binary, *words], self.env, cwd or self.world.project, LINE)
        return terminal.once(lambda: "OpenAI Codex" in terminal.screen())

    def say(self, *words: str, cwd: Path | None = None) -> str:
        """One prompt, to its end: the id of Codex's session."""
        command = [
            *(self._binary, "exec", "--json", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", *words),
        ]
        printed = output_of(command, cwd or self.world.project, self.env)
        self.ran = [json.loads(line) for line in printed.splitlines()]
        started = next(line for line in self.ran if line["type"] == "thread.started")
        return str(started["thread_id"])

    def resume(self, native: str, prompt: str, cwd: Path | None = None) -> None:
        """Go on with a session of Codex's."""
        assert self.say("resume", native, prompt, cwd=cwd) == native

    def rollout(self, native: str) -> Path:
        """The first file of a session."""
        (found,) = self.home.glob(f"sessions/*/*/*/rollout-*-{native}.jsonl")
        return found

    def turns(self, native: str) -> list[dict[str, Any]]:
        """The turns of a session, as Codex's own screens show them."""
        with AppServer(self._binary, self.env) as server:
            ran = server.call("thread/read", {"threadId": native, "includeTurns": True})
        turns: list[dict[str, Any]] = ran["thread"]["turns"]
        return turns

    def revert(self, native: str, turn: str) -> None:
        """Take back a turn and what came after it, as editing a prompt in Codex does."""
        with AppServer(self._binary, self.env) as server:
            server.call("thread/resume", {"threadId": native})
            server.call("thread/revert", {"threadId": native, "beforeTurnId": turn})

    def hooks(self) -> list[dict[str, Any]]:
        """The hooks as Codex sees them, trusted or not."""
        with AppServer(self._binary, self.env) as server:
            return server.hooks(self.world.project)

    def trust(self) -> None:
        """Trust all hooks, as a person does by looking at them in Codex."""
        with AppServer(self._binary, self.env) as server:
            trusted = {
                hook["key"]: {"trusted_hash": hook["currentHash"]}
                for hook in server.hooks(self.world.project)
            }
            edit = {"keyPath": "hooks.state", "value": trusted, "mergeStrategy": "upsert"}
            server.call("config/batchWrite", {"edits": [edit]})


class AppServer:
    """Codex as its own screens talk to it."""

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        self._child = subprocess.Popen(
            [program, "app-server"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._number = 0

    def __enter__(self) -> AppServer:
        self.call("initialize", {"clientInfo": {"name": "test", "version": "1"}})
        self._write({"method": "initialized"})
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)
        assert self._child.stdout is not None
        self._child.stdout.close()

    def hooks(self, cwd: Path) -> list[dict[str, Any]]:
        """The hooks for a folder."""
        (ran,) = self.call("hooks/list", {"cwds": [str(cwd)]})["data"]
        assert ran["errors"] == [], ran
        hooks: list[dict[str, Any]] = ran["hooks"]
        return hooks

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """The answer to a request."""
        self._number += 1
        self._write({"id": self._number, "method": method, "params": params})
        assert self._child.stdout is not None
        for line in self._child.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                return answer["result"]
        raise AssertionError("the app server is gone")

    def _write(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()
