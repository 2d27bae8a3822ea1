"""A real Strands agent with a scripted model on our repository: tools, files, crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.models.model import Model
from strands.session import RepositorySessionManager, SnapshotSessionManager
from strands.types.exceptions import SessionException

from backtrail.adapters.strands import BacktrailSessionRepository, BacktrailStorage

from ..people import cli

pytestmark = pytest.mark.filterwarnings("ignore")


class Scripted(Model):
    """A model that says what it was given to say."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps
        self.seen: list[str] = []

    def update_config(self, **config: Any) -> None:
        """Nothing to set."""

    def get_config(self) -> Any:
        """Nothing is set."""
        return {}

    async def structured_output(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        """Never asked for."""
        for step in list[Any]():
            yield step

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        """The next step, as a provider streams it."""
        self.seen.append(str(messages))
        step = self.steps.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        for block in [step] if isinstance(step, str) else step:
            if isinstance(block, str):
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": block}}}
            else:
                name, given, call = block
                start = {"toolUse": {"name": name, "toolUseId": call}}
                yield {"contentBlockStart": {"start": start}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": given}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(step, str) else "tool_use"}}


def write(name: str, text: str, call: str) -> tuple[str, str, str]:
    """A call of the tool that writes."""
    return "write", f'{{"name": "{name}", "text": "{text}"}}', call


class Stage:
    """An agent on a repository, with a workspace; made anew, it is another process."""

    def __init__(self, url: str, work: Path, steps: list[Any], *, hang: bool = False) -> None:
        self.repository = BacktrailSessionRepository(url, cwd=work)
        self.model = Scripted(steps)

        @tool
        def write(name: str, text: str) -> str:
            """Write a file.

            Args:
                name: Its name.
                text: What goes in.
            """
            (work / name).write_text(text)
            if hang:
                print("wrote", flush=True)
                time.sleep(60)
            if text == "bad":
                raise RuntimeError("no")
            return f"wrote {name}"

        self.agent = Agent(
            model=self.model, tools=[write], agent_id="main", callback_handler=None,
            session_manager=RepositorySessionManager(
                "chat-1", session_repository=self.repository
            ),
            hooks=[self.repository.hooks("chat-1")],
        )  # fmt: skip


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with one file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


def steps() -> list[Any]:
    """Two calls at once, one that fails, words, and another turn."""
    return [
        [write("a.txt", "two", "c1"), write("b.txt", "new", "c2")],
        [write("c.txt", "bad", "c3")],
        "done",
        "second",
    ]


@pytest.fixture
def stage(url: str, work: Path) -> Iterator[Stage]:
    """An agent on each store."""
    made = Stage(url, work, steps())
    yield made
    made.repository.close()


def test_files_go_back_with_the_conversation(stage: Stage, url: str, work: Path) -> None:
    """Undo takes words and files of a turn; an agent made anew goes on from there."""
    stage.agent("first")
    assert len(stage.repository.list_messages("chat-1", "main")) == 6
    own = stage.repository.open("chat-1")
    own.undo()
    assert (work / "a.txt").read_text() == "one\n"
    assert not (work / "b.txt").exists() and not (work / "c.txt").exists()
    own.redo()
    assert (work / "b.txt").read_text() == "new"
    assert len(stage.repository.list_messages("chat-1", "main")) == 6
    own.undo()
    if url.startswith("memory:"):
        return
    again = Stage(url, work, ["other"])
    assert again.agent.messages == []
    again.agent("instead")
    assert "instead" in again.model.seen[0] and "first" not in again.model.seen[0]
    again.repository.close()


def test_a_restored_agent_has_all_that_was_said(disk_url: str, work: Path) -> None:
    """Messages, tool results and state, as the agent left them."""
    stage = Stage(disk_url, work, steps())
    stage.agent("first")
    stage.agent.state.set("k", {"n": 1})
    stage.agent("second")
    again = Stage(disk_url, work, [])
    strip = [{k: m[k] for k in ("role", "content")} for m in stage.agent.messages]  # type: ignore[literal-required]
    assert [{k: m[k] for k in ("role", "content")} for m in again.agent.messages] == strip  # type: ignore[literal-required]
    assert again.agent.state.get("k") == {"n": 1}
    stage.repository.close()
    again.repository.close()


def test_two_agents_at_once_are_an_error_not_a_loss(disk_url: str, work: Path) -> None:
    """The second that appends under the same number is refused; the first's words stay."""
    one, two = Stage(disk_url, work, ["a1"]), Stage(disk_url, work, ["b1"])
    one.agent("of one")
    with pytest.raises(SessionException, match="another writer"):
        two.agent("of two")
    said = [m.message["content"][0]["text"] for m in one.repository.list_messages("chat-1", "main")]
    assert said == ["of one", "a1"]
    one.repository.close()
    two.repository.close()


def test_several_agents_have_a_log_each(disk_url: str, work: Path) -> None:
    """The first is the session itself, others are its subagents."""
    stage = Stage(disk_url, work, ["main says"])
    other = Agent(
        model=Scripted(["helper says"]), agent_id="helper", callback_handler=None,
        session_manager=RepositorySessionManager("chat-1", session_repository=stage.repository),
    )  # fmt: skip
    stage.agent("to main")
    other("to helper")
    assert [m.message["content"][0]["text"] for m in stage.repository.list_messages(
        "chat-1", "helper")] == ["to helper", "helper says"]  # fmt: skip
    store = stage.repository.store
    assert "subagents/helper" in store.logs("chat-1")
    stage.repository.close()


def test_snapshots_of_an_agent(url: str) -> None:
    """Strands' snapshot manager keeps an agent in our storage, and finds it again."""
    storage = BacktrailStorage(url)

    def agent(steps: list[Any]) -> Agent:
        manager = SnapshotSessionManager(session_id="s", storage=storage)
        return Agent(
            model=Scripted(steps), agent_id="a", callback_handler=None, session_manager=manager
        )

    agent(["hello"])("hi")
    assert [m["content"][0].get("text") for m in agent([]).messages] == ["hi", "hello"]
    storage.close()


CRASH = """
import sys
from pathlib import Path
from tests.frameworks.strands.test_runner import Stage, write
Stage(sys.argv[1], Path(sys.argv[2]), [[write("a.txt", "two", "c1")]], hang=True).agent("go")
"""


def test_killed_in_a_tool_call(disk_url: str, work: Path) -> None:
    """kill -9 while a tool runs: what was said is there, and what the tool did goes back."""
    child = subprocess.Popen(
        [sys.executable, "-c", CRASH, disk_url, str(work)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "wrote\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    stage = Stage(disk_url, work, ["fine"])
    assert len(stage.repository.list_messages("chat-1", "main")) == 2
    stage.repository.open("chat-1").undo()
    assert (work / "a.txt").read_text() == "one\n"
    again = Stage(disk_url, work, ["fine"])
    again.agent("again")
    assert len(again.repository.list_messages("chat-1", "main")) == 2
    stage.repository.close()
    again.repository.close()


def test_people_read_it(tmp_path: Path, work: Path) -> None:
    """`show` has words, calls, answers and files."""
    url = f"sqlite:///{tmp_path}/store.db"
    stage = Stage(url, work, steps())
    stage.agent("first")
    stage.repository.close()
    shown = cli(url, "show", "chat-1")
    assert "> first" in shown and shown.count("• write") == 3 and "done" in shown
    assert "a.txt" in shown and "wrote b.txt" in shown
    assert "chat-1" in cli(url, "search", "first", "--all")
