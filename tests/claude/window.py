"""The real `claude` on a terminal, as people use it, and a model that answers by plan."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from backtrail import Session

from ..agent.servers.anthropic import USAGE
from ..agent.servers.base import Answer
from ..terminal import Terminal
from .running import Claude, Model, calls

Json = Any
Step = str | dict[str, Json]
READY = "shift+tab to cycle"
NOTIFIED = "<task-notification>"


class Planned(Model):
    """A model that answers a prompt by the word in it, with one step after the other.

    Words and answers are its vocabulary: what it was sent is said in these alone, since a
    program adds much of its own.
    """

    def __init__(self, plan: Mapping[str, list[Step]]) -> None:
        super().__init__()
        self.plan = dict(plan)
        self.spent: list[Mapping[str, int]] = []
        self.script(*[self._answer] * 200)

    def events(self, answer: Answer, body: dict[str, Json]) -> list[bytes]:
        self.spent.append(answer.usage or USAGE)
        return super().events(answer, body)

    def _answer(self, body: dict[str, Json]) -> Step:
        word, done = "", 0
        for text, role in _texts(body["messages"]):
            if role == "result":
                done += 1
            for known in self.plan if role == "user" else ():
                if known in text:
                    word, done = known, 0
        if NOTIFIED in json.dumps(body["messages"][-1]):
            return "was notified"
        steps = self.plan.get(word, ["hm"])
        return steps[min(done, len(steps) - 1)]

    def sent(self, word: str) -> list[str]:
        """What the last request was made of in which a prompt is the newest, in order."""
        for body in reversed(self.requests):
            found = self.ran(body["messages"])
            if word in found and not any(other in self.plan for other in _behind(found, word)):
                return found
        raise AssertionError(f"{word!r} was not sent")

    def ran(self, messages: list[Json]) -> list[str]:
        """The words and answers in messages, in order; a text that holds one counts as that."""
        words = {*self.plan, "was notified"}
        words |= {step for steps in self.plan.values() for step in steps if isinstance(step, str)}
        return [
            word for text, role in _texts(messages) if role != "result"
            for word in sorted(words, key=text.find) if word in text and NOTIFIED not in text
        ]  # fmt: skip


def _behind(found: list[str], word: str) -> list[str]:
    return found[len(found) - found[::-1].index(word) :]


def _texts(messages: list[Json]) -> Iterator[tuple[str, str]]:
    """The texts of messages, each with its speaker; results of tools by themselves."""
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "text":
                yield block["text"], message["role"]
            elif block["type"] == "tool_result":
                yield json.dumps(block.get("content")), "result"


class Window:
    """A terminal with `claude` in it, and what became of it with us."""

    def __init__(self, claude: Claude, model: Planned, terminal: Terminal) -> None:
        self.claude = claude
        self.model = model
        self.terminal = terminal

    def say(self, text: str, answer: str = "") -> None:
        """Type a prompt and wait for the end of its turn, or for an answer on the screen."""
        before = self.ends()
        self.enter(text)
        if answer:
            self.terminal.wait(answer)
        else:
            self.terminal.until(lambda: self.ends() > before, what=f"the end of {text!r}")

    def enter(self, text: str) -> None:
        """Type something, and press Enter."""
        self.terminal.type(text)
        self.terminal.wait(text[-20:])
        self.terminal.press("Enter")

    def run(self, command: str) -> None:
        """Run a command behind `!`, and wait for what the model says to it."""
        before = len(self.model.requests)
        self.terminal.type("!")
        self.terminal.wait("! for shell mode")
        self.enter(command)
        self.terminal.until(lambda: len(self.model.requests) > before, what=command)
        self.terminal.wait(READY)

    def deny(self, question: str) -> None:
        """Press Esc at a question until it is gone: one that was just drawn may not hear it."""
        self.terminal.wait(question)
        for _ in range(20):
            self.terminal.press("Escape")
            time.sleep(1)
            if question not in self.terminal.screen():
                return
        raise AssertionError(f"{question!r} stays:\n{self.terminal.screen()}")

    @property
    def is_open(self) -> bool:
        """Whether the program is there."""
        return bool(self.terminal.screen())

    def rewind(self, before: int, choice: int) -> None:
        """Go back to before the last prompts, so many of them, by a line of the dialog."""
        # The menu of commands describes `/rewind` with the first of these words, too.
        self.terminal.wait("conversation to the point before")
        self.terminal.wait("❯ (current)")
        for _ in range(before):
            shown = self.terminal.screen()
            self.terminal.press("Up")
            self.terminal.until(partial(self._differs, shown), what="the line above")
        self.terminal.press("Enter")
        self.terminal.wait("Confirm you want to restore")
        self.terminal.press(str(choice))
        self.terminal.until(lambda: "Confirm you want" not in self.terminal.screen(), what="it")
        # The prompt that was taken back stands in the line again.
        self.terminal.press("C-u")

    def _differs(self, shown: str) -> bool:
        return self.terminal.screen() != shown

    def ends(self) -> int:
        """How many turns of all sessions have ended."""
        return sum(self._count(info.key or "") for info in self.claude.world.sessions())

    def _count(self, key: str) -> int:
        return len(self.claude.world.events(key, "turn_end"))

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Our session of what is in the window, the latest."""
        info = self.claude.world.sessions()[0]
        with self.claude.world.session(info.key or "") as session:
            yield session

    def ran(self) -> list[str]:
        """Our conversation, in the words of the model."""
        with self.session() as session:
            return self.model.ran(session.messages(format="anthropic"))


def window(
    claude: Claude, *more: str, cwd: Path | None = None, mode: str = "acceptEdits"
) -> Terminal:
    """`claude` on a terminal, in a folder that is trusted.

    Its usual mode asks a service of the provider's whether a call may run, and has no other way.
    """
    folder = cwd or claude.world.project
    about: dict[str, Json] = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": ["none"], "rejected": []},
        "projects": {
            str(place): {"hasTrustDialogAccepted": True} for place in (folder, *folder.parents)
        },
    }
    state = claude.config / ".claude.json"
    # Without a terminal it writes the file, too, but asks none of these questions.
    known = json.loads(state.read_text()) if state.exists() else {}
    if not known.get("hasCompletedOnboarding"):
        projects = {**known.get("projects", {}), **about["projects"]}
        state.write_text(json.dumps({**known, **about, "projects": projects}))
    return Terminal([claude.binary, "--permission-mode", mode, *more], claude.env, folder)


def write(path: Path, content: str, id: str) -> dict[str, Json]:
    """An answer that writes a file."""
    return calls("Write", {"file_path": str(path), "content": content}, id)


def edit(path: Path, old: str, new: str, id: str) -> dict[str, Json]:
    """An answer that edits a file."""
    return calls("Edit", {"file_path": str(path), "old_string": old, "new_string": new}, id)


def bash(command: str, id: str) -> dict[str, Json]:
    """An answer that runs a command."""
    return calls("Bash", {"command": command}, id)
