"""pydantic-ai's own agent with a scripted model on our store: tools, files, streams, crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset, ModelRetry
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from backtrail.adapters.pydantic_ai import BacktrailConversationStore

from ..people import cli


def write(name: str, text: str, call: str) -> ToolCallPart:
    """A call of the tool that writes."""
    return ToolCallPart("write", {"name": name, "text": text}, call)


def agent(
    store: BacktrailConversationStore, work: Path, steps: list[list[Any]], *, hang: bool = False
) -> Agent[None, str]:
    """An agent that does what it was told to, with a tool that writes files."""
    tools: FunctionToolset[Any] = FunctionToolset()

    @tools.tool_plain(retries=2)
    async def write(name: str, text: str) -> str:
        """Write a file."""
        (work / name).write_text(text)
        if hang:
            print("wrote", flush=True)
            await asyncio.sleep(60)
        if text == "bad":
            raise ModelRetry("again")
        return f"wrote {name}"

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [TextPart(one) if isinstance(one, str) else one for one in steps.pop(0)]
        return ModelResponse(parts=parts)

    return Agent(FunctionModel(answer), toolsets=[store.wrap(tools)])


async def ask(store: BacktrailConversationStore, one: Agent[None, str], text: str) -> str:
    """One turn: load, run, save."""
    conversation = await store.load("chat-1") or Conversation(conversation_id="chat-1")
    result = await one.run(text, conversation=conversation)
    await store.save(result)
    return result.output


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with one file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


@pytest.fixture
def store(url: str, work: Path) -> Iterator[BacktrailConversationStore]:
    """The store on each of ours, with files."""
    made = BacktrailConversationStore(url, cwd=work)
    yield made
    made.close()


def steps() -> list[list[Any]]:
    """Two turns: two files at once and one tried again, then words."""
    return [
        [write("a.txt", "two\n", "c1"), write("b.txt", "new\n", "c2")],
        [write("c.txt", "bad", "c3")],
        [write("c.txt", "good", "c4")],
        ["done"],
        ["second"],
    ]


def test_files_go_back_with_the_conversation(store: BacktrailConversationStore, work: Path) -> None:
    """Parallel calls and a retry; each message once in the log; undo, redo, and on."""

    async def go() -> None:
        one = agent(store, work, steps())
        assert await ask(store, one, "first") == "done"
        found = await store.load("chat-1")
        assert found is not None and len(found.messages) == 8
        own = store.open("chat-1")
        kinds = [e.kind for e in own.events() if "message" in e.data]
        assert len(kinds) == 8
        own.undo()
        assert await store.load("chat-1") in (None, Conversation(conversation_id="chat-1"))
        assert (work / "a.txt").read_text() == "one\n"
        assert not (work / "b.txt").exists() and not (work / "c.txt").exists()
        own.redo()
        again = await store.load("chat-1")
        assert again is not None and again.messages == found.messages
        assert (work / "c.txt").read_text() == "good"
        assert await ask(store, one, "on") == "second"

    asyncio.run(go())


def test_a_run_that_fails_leaves_what_it_did(store: BacktrailConversationStore, work: Path) -> None:
    """It was never saved: the next run goes on without it, and its files can be taken back."""

    async def go() -> None:
        def fail(*_: Any) -> ModelResponse:
            raise RuntimeError("no model")

        await ask(store, agent(store, work, [["hello"]]), "first")
        broken = agent(store, work, [[write("a.txt", "half\n", "c1")]])
        with pytest.raises(IndexError):
            await ask(store, broken, "breaks")
        assert (work / "a.txt").read_text() == "half\n"
        own = store.open("chat-1")
        own.undo()
        assert (work / "a.txt").read_text() == "one\n"
        await ask(store, agent(store, work, [["fine"]]), "again")
        found = await store.load("chat-1")
        assert found is not None and len(found.messages) == 4

    asyncio.run(go())


def test_the_next_save_leaves_a_failed_run_behind(
    store: BacktrailConversationStore, work: Path
) -> None:
    """Without an undo, too: the conversation is what pydantic-ai says it is."""

    async def go() -> None:
        await ask(store, agent(store, work, [["hello"]]), "first")
        with pytest.raises(IndexError):
            await ask(store, agent(store, work, [[write("a.txt", "half\n", "c1")]]), "breaks")
        await ask(store, agent(store, work, [["fine"]]), "again")
        found = await store.load("chat-1")
        assert found is not None and len(found.messages) == 4
        said = [e.data["message"] for e in store.open("chat-1").history() if "message" in e.data]
        assert len(said) == 4

    asyncio.run(go())


CRASH = """
import asyncio, sys
from pathlib import Path
from backtrail.adapters.pydantic_ai import BacktrailConversationStore
from tests.frameworks.pydantic_ai.test_runner import agent, ask, write
work = Path(sys.argv[2])
store = BacktrailConversationStore(sys.argv[1], cwd=work)
asyncio.run(ask(store, agent(store, work, [[write("a.txt", "two", "c1")]], hang=True), "go"))
"""


def test_killed_in_a_tool_call(disk_url: str, work: Path) -> None:
    """kill -9 while a tool runs: what was said is in the log, what was done goes back."""
    child = subprocess.Popen(
        [sys.executable, "-c", CRASH, disk_url, str(work)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "wrote\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    store = BacktrailConversationStore(disk_url, cwd=work)

    async def go() -> None:
        assert await store.load("chat-1") is None
        own = store.open("chat-1")
        assert [e.kind for e in own.history() if "message" in e.data] == [
            *("user_message", "assistant_message")
        ]
        own.undo()
        assert (work / "a.txt").read_text() == "one\n"
        assert await ask(store, agent(store, work, [["fine"]]), "again") == "fine"

    asyncio.run(go())
    store.close()


def test_people_read_it(tmp_path: Path, work: Path) -> None:
    """`show` has words, calls, answers and files."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = BacktrailConversationStore(url, cwd=work)
    asyncio.run(ask(store, agent(store, work, steps()), "first"))
    store.close()
    shown = cli(url, "show", "chat-1")
    assert "> first" in shown and shown.count("• write") == 4 and "done" in shown
    assert "a.txt" in shown and "wrote b.txt" in shown
    assert "chat-1" in cli(url, "search", "first", "--all")
