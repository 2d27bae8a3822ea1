"""Agent Framework's own agent with a scripted client on our provider: tools, files, crashes."""

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
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Executor,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    tool,
)

from backtrail.adapters.agent_framework import (
    BacktrailCheckpointStorage,
    BacktrailHistoryProvider,
)

from ..people import cli

pytestmark = pytest.mark.filterwarnings("ignore")


class Scripted(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """A client that says what it was given to say."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self.steps = steps
        self.seen: list[list[str]] = []

    def _inner_get_response(
        self, *, messages: Any, stream: bool, options: Any, **kwargs: Any
    ) -> Any:
        self.seen.append([one.text for one in messages if one.role == "user"])

        def contents() -> list[Content]:
            step = self.steps.pop(0)
            return [Content.from_text(step)] if isinstance(step, str) else step

        if stream:

            async def updates() -> Any:
                for one in contents():
                    yield ChatResponseUpdate(role="assistant", contents=[one])

            return ResponseStream(updates(), finalizer=ChatResponse.from_updates)

        async def answer() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", contents())])

        return answer()


def write(name: str, text: str, call: str) -> Content:
    """A call of the tool that writes."""
    return Content.from_function_call(
        call_id=call, name="write", arguments={"name": name, "text": text}
    )


def agent(
    history: BacktrailHistoryProvider, work: Path, steps: list[Any], *, hang: bool = False
) -> Any:
    """An agent with a tool that writes files."""

    @tool(name="write", approval_mode="never_require")
    async def writer(name: str, text: str) -> str:
        """Write a file."""
        (work / name).write_text(text)
        if hang:
            print("wrote", flush=True)
            await asyncio.sleep(60)
        return f"wrote {name}"

    return Agent(
        Scripted(steps), tools=[writer], context_providers=[history],
        middleware=[history.middleware()],
    )  # fmt: skip


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with one file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


@pytest.fixture
def history(url: str, work: Path) -> Iterator[BacktrailHistoryProvider]:
    """The provider on each store, with files."""
    made = BacktrailHistoryProvider(url, cwd=work)
    yield made
    made.close()


def steps() -> list[Any]:
    """Two calls at once, words, another turn."""
    return [[write("a.txt", "two\n", "c1"), write("b.txt", "new\n", "c2")], "done", "second"]


async def ask(one: Any, text: str) -> str:
    """One turn."""
    return (await one.run(text, session=one.create_session(session_id="chat-1"))).text


def test_files_go_back_with_the_conversation(history: BacktrailHistoryProvider, work: Path) -> None:
    """Undo takes words and files; the next run goes on from there; redo brings both."""

    async def go() -> None:
        one = agent(history, work, steps())
        assert await ask(one, "first") == "done"
        before = [m.to_dict() for m in await history.get_messages("chat-1")]
        assert before[0]["role"] == "user" and len(before) >= 4
        own = history.open("chat-1")
        own.undo()
        assert (work / "a.txt").read_text() == "one\n" and not (work / "b.txt").exists()
        assert await history.get_messages("chat-1") == []
        own.redo()
        assert (work / "b.txt").read_text() == "new\n"
        assert [m.to_dict() for m in await history.get_messages("chat-1")] == before
        await ask(one, "on")
        assert one.client.seen[-1] == ["first", "on"]

    asyncio.run(go())


def test_a_run_that_fails_does_not_count(history: BacktrailHistoryProvider, work: Path) -> None:
    """Its prompt is in the log, and its files can be taken back; the next run never sees it."""

    async def go() -> None:
        await ask(agent(history, work, ["hello"]), "first")
        with pytest.raises(Exception, match="pop"):
            await ask(agent(history, work, [[write("a.txt", "half\n", "c1")]]), "breaks")
        assert (work / "a.txt").read_text() == "half\n"
        assert [m.text for m in await history.get_messages("chat-1")] == ["first", "hello"]
        history.open("chat-1").undo()
        assert (work / "a.txt").read_text() == "one\n"
        one = agent(history, work, ["fine"])
        await ask(one, "again")
        assert one.client.seen[-1] == ["first", "again"]

    asyncio.run(go())


def test_a_streamed_run(history: BacktrailHistoryProvider, work: Path) -> None:
    """Is saved as any other."""

    async def go() -> None:
        one = agent(history, work, steps())
        session = one.create_session(session_id="chat-1")
        async for _ in one.run("first", session=session, stream=True):
            pass
        assert (await history.get_messages("chat-1"))[-1].text == "done"
        history.open("chat-1").undo()
        assert (work / "a.txt").read_text() == "one\n"

    asyncio.run(go())


CRASH = """
import asyncio, sys
from pathlib import Path
from backtrail.adapters.agent_framework import BacktrailHistoryProvider
from tests.frameworks.agent_framework.test_runner import agent, ask, write
work = Path(sys.argv[2])
history = BacktrailHistoryProvider(sys.argv[1], cwd=work)
asyncio.run(ask(agent(history, work, [[write("a.txt", "two", "c1")]], hang=True), "go"))
"""


def test_killed_in_a_tool_call(disk_url: str, work: Path) -> None:
    """kill -9 while a tool runs: the prompt is in the log, what the tool did goes back."""
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CRASH, disk_url, str(work)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "wrote\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    history = BacktrailHistoryProvider(disk_url, cwd=work)

    async def go() -> None:
        assert await history.get_messages("chat-1") == []
        own = history.open("chat-1")
        assert [e.kind for e in own.events() if "message" in e.data] == ["user_message"]
        own.undo()
        assert (work / "a.txt").read_text() == "one\n"
        assert await ask(agent(history, work, ["fine"]), "again") == "fine"
        assert [m.text for m in await history.get_messages("chat-1")] == ["again", "fine"]

    asyncio.run(go())
    history.close()


class Add(Executor):
    """Adds one, until it is three."""

    @handler
    async def add(self, n: int, ctx: WorkflowContext[int, int]) -> None:
        """One step."""
        if n >= 3:
            await ctx.yield_output(n)
        else:
            await ctx.send_message(n + 1)


def test_a_workflow_goes_on_from_a_checkpoint(url: str) -> None:
    """A real workflow with our storage: each step is there, and it is resumed in the middle."""

    async def go() -> None:
        storage = BacktrailCheckpointStorage(url)

        def build() -> Any:
            first, second = Add(id="first"), Add(id="second")
            builder = WorkflowBuilder(
                name="w", start_executor=first, checkpoint_storage=storage, output_from="all"
            )
            return builder.add_edge(first, second).add_edge(second, first).build()

        result = await build().run(0)
        assert result.get_outputs() == [3]
        saved = await storage.list_checkpoints(workflow_name="w")
        assert len(saved) >= 3
        again = await build().run(checkpoint_id=saved[1].checkpoint_id)
        assert again.get_outputs() == [3]
        storage.close()

    asyncio.run(go())


def test_people_read_it(tmp_path: Path, work: Path) -> None:
    """`show` has words, calls, answers and files."""
    url = f"sqlite:///{tmp_path}/store.db"
    history = BacktrailHistoryProvider(url, cwd=work)
    asyncio.run(ask(agent(history, work, steps()), "first"))
    history.close()
    shown = cli(url, "show", "chat-1")
    assert "> first" in shown and shown.count("• write") == 2 and "done" in shown
    assert "a.txt" in shown and "wrote b.txt" in shown
    assert "chat-1" in cli(url, "search", "first", "--all")
