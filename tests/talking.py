"""Short words for the tests of sessions: saying things, and reading them back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import IO

from backtrail import Event, Session
from backtrail.events import Json


def user(text: str) -> dict[str, Json]:
    """What a person says."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Json]:
    """What a model answers."""
    return {"role": "assistant", "content": text}


def calling(id: str, name: str = "bash") -> dict[str, Json]:
    """A model that asks for a tool."""
    function = {"name": name, "arguments": "{}"}
    call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(id: str, text: str = "done") -> dict[str, Json]:
    """What a tool gives back."""
    return {"role": "tool", "tool_call_id": id, "content": text}


def talk(session: Session, *turns: str) -> list[Event]:
    """Turns of a question and an answer each; returns the events of the messages."""
    events = []
    for text in turns:
        events += [session.append(user(text)), session.append(assistant(f"re: {text}"))]
    return events


def texts(session: Session) -> list[str]:
    """The contents of the conversation."""
    return [str(message["content"]) for message in session.messages()]


def kinds(session: Session) -> list[str]:
    """The kinds of everything in the main log."""
    return [event.kind for event in session.events()]


def child(code: str, *arguments: str) -> str:
    """What a process running `code` prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Child:
    """A process that is sent and prints a line at a time; ended with the block."""

    def __init__(self, code: str, *arguments: str) -> None:
        command = [sys.executable, "-u", "-c", code, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def line(self) -> str:
        """The next line it prints."""
        return _given(self._process.stdout).readline().strip()

    def send(self, text: str = "") -> None:
        """Send it a line."""
        stdin = _given(self._process.stdin)
        stdin.write(f"{text}\n")
        stdin.flush()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            _given(pipe).close()


def _given(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def outcome(call: Callable[[], object]) -> object:
    """What a call returned, or the error it raised."""
    try:
        return call()
    except Exception as error:
        return error
