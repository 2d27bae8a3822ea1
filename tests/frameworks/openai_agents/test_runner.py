"""The SDK's own runner with a scripted model on our session: tools, retries, streams, crashes."""

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
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.exceptions import InputGuardrailTripwireTriggered
from agents.testing import ScriptedModel, assistant_message, function_call

from backtrail.adapters.openai_agents import BacktrailSession

from ..people import cli

set_tracing_disabled(True)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with one file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


@pytest.fixture
def session(url: str, work: Path) -> Iterator[BacktrailSession]:
    """A session on each store, whose files are captured."""
    made = BacktrailSession("chat-1", url, cwd=work)
    yield made
    made.close()


def agent(work: Path, steps: list[Any], **options: Any) -> Agent[Any]:
    """An agent with a tool that writes files and one that fails."""

    @function_tool
    async def write(name: str, text: str) -> str:
        """Write a file."""
        await asyncio.sleep(0.01)
        (work / name).write_text(text)
        return f"wrote {name}"

    @function_tool(failure_error_function=None)
    def fail() -> str:
        """Fail."""
        (work / "half.txt").write_text("half\n")
        raise RuntimeError("no")

    model = ScriptedModel(steps)
    return Agent(name="a", model=model, tools=[write, fail], **options)


def write(name: str, text: str, call: str) -> Any:
    """A call of the tool that writes."""
    return function_call("write", {"name": name, "text": text}, call_id=call)


TWO = [
    [write("a.txt", "two\n", "c1"), write("b.txt", "new\n", "c2")],
    [assistant_message("done")],
]


def test_parallel_tools_and_their_files_go_back_together(
    session: BacktrailSession, work: Path
) -> None:
    """Two calls at once, each with its own file; undo takes words and files, redo brings both."""

    async def go() -> None:
        result = await Runner.run(agent(work, TWO), "go", session=session, hooks=session.hooks())
        assert result.final_output == "done"
        items = await session.get_items()
        assert len(items) == 6
        await session.undo()
        assert (work / "a.txt").read_text() == "one\n"
        assert not (work / "b.txt").exists()
        assert await session.get_items() == []
        await session.redo()
        assert (work / "b.txt").read_text() == "new\n"
        assert await session.get_items() == items

    asyncio.run(go())
    # What both changed before either ended is in the event of the one that ended first.
    done = {event.data["call"] for event in session.open().events(kinds=["action"])}
    assert done and done <= {"c1", "c2"}


def test_the_conversation_goes_on_after_a_rewind(session: BacktrailSession, work: Path) -> None:
    """The model of the next run sees what is left, and nothing of what was taken back."""

    async def go() -> None:
        hooks = session.hooks()
        steps = [*TWO, [assistant_message("second")], [assistant_message("third")]]
        one = agent(work, steps)
        await Runner.run(one, "first", session=session, hooks=hooks)
        await Runner.run(one, "wrong way", session=session, hooks=hooks)
        prompts = list(session.open().events(kinds=["user_message"]))
        await session.rewind(before=prompts[1])
        await Runner.run(one, "right way", session=session, hooks=hooks)
        seen = str(one.model.last_call.input)  # type: ignore[union-attr]
        assert "right way" in seen and "first" in seen and "wrong way" not in seen
        assert (work / "a.txt").read_text() == "two\n"

    asyncio.run(go())


def test_the_runner_leaves_what_it_leaves_with_its_own_session(url: str, work: Path) -> None:
    """Turn by turn the same items as on `SQLiteSession`: plain, streamed, failed, tripped."""

    async def trip(context: Any, one: Any, said: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered="bad" in str(said))

    async def turns(session: Any) -> list[Any]:
        found = []
        steps = [*TWO, *TWO, [function_call("fail", {}, call_id="c9")]]
        guard = InputGuardrail(guardrail_function=trip, run_in_parallel=False)
        one = agent(work, steps, input_guardrails=[guard])
        await Runner.run(one, "plain", session=session)
        found.append(await session.get_items())
        stream = Runner.run_streamed(one, "streamed", session=session)
        async for _ in stream.stream_events():
            pass
        found.append(await session.get_items())
        with pytest.raises(Exception, match="no"):
            await Runner.run(one, "fails", session=session)
        found.append(await session.get_items())
        with pytest.raises(InputGuardrailTripwireTriggered):
            await Runner.run(one, "bad", session=session)
        found.append(await session.get_items())
        rest = agent(work, [[assistant_message("end")]])
        await Runner.run(rest, "again", session=session)
        found.append(await session.get_items())
        return found

    ours = BacktrailSession("s", url)
    assert asyncio.run(turns(ours)) == asyncio.run(turns(SQLiteSession("s")))
    ours.close()


def test_a_tool_that_fails_is_undone_too(session: BacktrailSession, work: Path) -> None:
    """No callback hears of its end; what it did is its turn's all the same."""

    async def go() -> None:
        one = agent(work, [[function_call("fail", {}, call_id="c1")], [assistant_message("ok")]])
        with pytest.raises(Exception, match="no"):
            await Runner.run(one, "go", session=session, hooks=session.hooks())
        assert (work / "half.txt").exists()
        await Runner.run(one, "go on", session=session, hooks=session.hooks())
        prompts = list(session.open().events(kinds=["user_message"]))
        await session.rewind(before=prompts[0])
        assert not (work / "half.txt").exists()

    asyncio.run(go())


def test_an_interrupted_run_is_resumed(session: BacktrailSession, work: Path) -> None:
    """A call that needs approval stops the run; the state goes on with the session."""

    async def go() -> None:
        one = agent(work, TWO)
        one.tools[0].needs_approval = True  # type: ignore[union-attr]
        result = await Runner.run(one, "go", session=session, hooks=session.hooks())
        assert len(result.interruptions) == 2
        state: RunState[Any, Any] = result.to_state()
        for waiting in result.interruptions:
            state.approve(waiting)
        text = state.to_string()
        again: RunState[Any, Any] = await RunState.from_string(one, text)
        done = await Runner.run(one, again, session=session, hooks=session.hooks())
        assert done.final_output == "done"
        kinds = [item.get("type", "message") for item in await session.get_items()]
        assert kinds.count("function_call") == kinds.count("function_call_output") == 2
        await session.undo()
        assert (work / "a.txt").read_text() == "one\n"

    asyncio.run(go())


def test_a_cancelled_run_leaves_a_session_to_go_on_with(
    session: BacktrailSession, work: Path
) -> None:
    """What was said is there, and the next run works."""

    async def go() -> None:
        one = agent(work, [*TWO, [assistant_message("later")]])
        task = asyncio.create_task(
            Runner.run(one, "go", session=session, hooks=session.hooks())  # type: ignore[arg-type]
        )
        await asyncio.sleep(0.03)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rest = agent(work, [[assistant_message("later")]])
        result = await Runner.run(rest, "go on", session=session, hooks=session.hooks())
        assert result.final_output == "later"

    asyncio.run(go())


def test_others_hooks_are_called(session: BacktrailSession, work: Path) -> None:
    """Hooks that are handed in hear all that they would hear alone."""
    heard: list[str] = []

    class Mine(RunHooks[Any]):
        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            heard.append(tool.name)

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            heard.append(output)

    asyncio.run(Runner.run(agent(work, TWO), "go", session=session, hooks=session.hooks(Mine())))
    assert heard == ["write", "write", "done"]


CRASH = """
import asyncio, sys
from pathlib import Path
from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from backtrail.adapters.openai_agents import BacktrailSession
set_tracing_disabled(True)
work = Path(sys.argv[2])
@function_tool
async def write(name: str, text: str) -> str:
    "Write."
    (work / name).write_text(text)
    print("wrote", flush=True)
    await asyncio.sleep(60)
    return "ok"
async def main():
    session = BacktrailSession("chat-1", sys.argv[1], cwd=work)
    call = function_call("write", {"name": "a.txt", "text": "two"}, call_id="c1")
    agent = Agent(name="a", model=ScriptedModel([[call]]), tools=[write])
    await Runner.run(agent, "go", session=session, hooks=session.hooks())
asyncio.run(main())
"""


def test_killed_in_a_tool_call(disk_url: str, work: Path) -> None:
    """kill -9 while a tool runs: the prompt is there, and what the tool did goes back with it."""
    child = subprocess.Popen(
        [sys.executable, "-c", CRASH, disk_url, str(work)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "wrote\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    session = BacktrailSession("chat-1", disk_url, cwd=work)

    async def go() -> None:
        assert [item.get("content") for item in await session.get_items()] == ["go"]
        await session.undo()
        assert (work / "a.txt").read_text() == "one\n"
        result = await Runner.run(agent(work, TWO), "again", session=session, hooks=session.hooks())
        assert result.final_output == "done"

    asyncio.run(go())
    session.close()


def test_people_see_each_call_once(tmp_path: Path, work: Path) -> None:
    """`show` has the files at the call that changed them."""
    url = f"sqlite:///{tmp_path}/store.db"
    session = BacktrailSession("chat-1", url, cwd=work)
    asyncio.run(Runner.run(agent(work, TWO), "go", session=session, hooks=session.hooks()))
    session.close()
    rows = [row for row in cli(url, "show", "chat-1").splitlines() if row.startswith("  ")]
    assert len([row for row in rows if "• write" in row]) == 2
    assert [row.split()[1] for row in rows if row.split()[0] in ("M", "A")] == ["a.txt", "b.txt"]
    assert "go" in cli(url, "log", "chat-1")
    assert "a.txt" in cli(url, "undo", "chat-1", "--dry-run")
