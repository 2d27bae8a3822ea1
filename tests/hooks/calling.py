"""An agent as hooks see it: a process that runs `backtrail hook` for each of its events."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backtrail import Event, Session, open_store
from backtrail.events import SessionInfo
from backtrail.exchange.hooks.places import folder_of
from backtrail.exchange.hooks.small_files import Miss, read_misses

from ..forking import server

PROGRAM = str(Path(sysconfig.get_path("scripts"), "backtrail"))


@dataclass
class World:
    """A project, a store and a home of its own; nothing of the machine's user is seen."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    scheme: str = "sqlite"
    forks: bool = True
    """Whether `backtrail` may be a fork of another process, and no child of this one."""

    def __post_init__(self) -> None:
        for folder in (self.project, self.home):
            folder.mkdir(parents=True, exist_ok=True)
        (self.root / "transcript.jsonl").touch()
        keep = ("PATH", "LANG", "TMPDIR", "COVERAGE_PROCESS_START", "BACKTRAIL_STATE")
        self.env = {name: os.environ[name] for name in keep if name in os.environ}
        self.env |= {"HOME": str(self.home), "BACKTRAIL_STORE": self.url}
        # A loaded machine is slow; only the tests of the limit are about time.
        self.env["BACKTRAIL_HOOK_TIMEOUT"] = "60"
        # The clone that is tested may lie in a temporary folder.
        self.env["BACKTRAIL_ALLOW_TEMPORARY"] = "1"

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def url(self) -> str:
        if self.scheme == "file":
            return f"file:{self.root}/store"
        return f"sqlite:///{self.root}/store/backtrail.db"

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run `backtrail` in the project."""
        env, cwd = more.get("env", self.env), str(more.get("cwd", self.project))
        if self.forks and {"env", "cwd"} >= more.keys() and arguments[:1] != ("record",):
            done = server().run(list(arguments), env, cwd, b"", 100)
            if done is not None:
                code, out, err = done
                words = [PROGRAM, *arguments]
                return subprocess.CompletedProcess(words, code, out.decode(), err.decode())
        more.setdefault("stdin", subprocess.DEVNULL)
        if "input" in more:
            del more["stdin"]
        return subprocess.run(
            [PROGRAM, *arguments],
            **{"env": self.env, "cwd": self.project, **more},
            capture_output=True,
            text=True,
            timeout=100,
        )

    def follow(self, page: Path) -> int:
        """Run every command of a page of the documentation, in order; how many there are."""
        env = {**self.env, "PATH": f"{Path(PROGRAM).parent}:{self.env['PATH']}"}
        blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()]
        for line in lines:
            done = subprocess.run(
                ["sh", "-c", line], cwd=self.project, env=env, stdin=subprocess.DEVNULL,
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return len(lines)

    def sessions(self) -> list[SessionInfo]:
        with open_store(self.url) as store:
            return store.sessions()

    def events(self, key: str = "claude-code:s1", *kinds: str) -> list[Event]:
        """What the log of an agent's session holds."""
        with open_store(self.url) as store:
            info = store.sessions(key=key)[0]
            return list(store.read(info.id, kinds=kinds or None))

    def misses(self) -> list[Miss]:
        """What hooks noted beside the store."""
        with open_store(self.url) as store:
            return read_misses(folder_of(store))

    def session(self, key: str = "claude-code:s1") -> Session:
        """The session, opened here; close it."""
        with open_store(self.url) as store:
            id = store.sessions(key=key)[0].id
        return Session.resume(self.url, id)


@dataclass
class Agent:
    """One agent's session in a project."""

    world: World
    name: str = "claude-code"
    session: str = "s1"
    more: dict[str, Any] = field(default_factory=dict)

    def payload(self, event: str, **fields: Any) -> bytes:
        """An event as the agent writes it."""
        base = {
            "session_id": self.session,
            "transcript_path": str(self.world.root / "transcript.jsonl"),
            "cwd": str(self.world.project),
            "hook_event_name": event,
        }
        return json.dumps({**base, **self.more, **fields}).encode()

    def start(self, given: bytes, **more: Any) -> subprocess.Popen[bytes]:
        """Begin a hook with something on its stdin, and do not wait for it."""
        child = subprocess.Popen(
            [PROGRAM, "hook", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **{"env": self.world.env, "cwd": self.world.project, **more},
        )
        assert child.stdin is not None
        try:
            child.stdin.write(given)
            child.stdin.close()
        except BrokenPipeError:
            pass
        child.stdin = None
        return child

    def raw(self, given: bytes, **more: Any) -> str:
        """Run a hook to its end; it must be silent on stderr and exit 0."""
        world = self.world
        if world.forks and not more:
            done = server().run(["hook", self.name], world.env, str(world.project), given, 100)
            if done is not None:
                assert (done[0], done[2]) == (0, b"")
                return done[1].decode()
        child = self.start(given, **more)
        out, err = child.communicate(timeout=100)
        assert (child.returncode, err) == (0, b"")
        return out.decode()

    def hook(self, event: str, **fields: Any) -> str:
        """What the hook of an event prints."""
        return self.raw(self.payload(event, **fields))

    # --- the usual events ----------------------------------------------------------------

    def begin(self) -> None:
        assert self.hook("SessionStart", source="startup") == ""

    def prompt(self, text: str, id: str | None = None) -> str:
        fields = {"prompt": text} | ({"prompt_id": id} if id else {})
        return self.hook("UserPromptSubmit", **fields)

    def tool(
        self, name: str, given: dict[str, Any], act: Callable[[], object], id: str, **fields: Any
    ) -> None:
        """A tool call with its two hooks."""
        fields = {"tool_name": name, "tool_input": given, "tool_use_id": id, **fields}
        assert self.hook("PreToolUse", **fields) == ""
        act()
        assert self.hook("PostToolUse", tool_response={}, **fields) == ""

    def write(self, path: Path, text: str, id: str, **fields: Any) -> None:
        """The tool `Write`."""
        self.tool(
            "Write", {"file_path": str(path), "content": text}, lambda: path.write_text(text), id,
            **fields,
        )  # fmt: skip

    def bash(self, act: Callable[[], object], id: str, **fields: Any) -> None:
        """The tool `Bash`; `act` is what the command does."""
        self.tool("Bash", {"command": "…"}, act, id, **fields)

    def stop(self) -> None:
        assert self.hook("Stop", stop_hook_active=False) == ""


def python(code: str, *arguments: str, **more: Any) -> subprocess.Popen[str]:
    """A process of our own that runs some code."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )
