"""ADK's own runner with a scripted model on our services: tools, files, rewinds, crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import Field

from backtrail.adapters.google_adk import BacktrailArtifactService, BacktrailSessionService

from ..people import cli

HERE: Any = {"user_id": "u", "session_id": "s"}

pytestmark = pytest.mark.filterwarnings("ignore")


class Scripted(BaseLlm):
    """A model that says what it was given to say."""

    model: str = "scripted"
    steps: list[list[types.Part]] = Field(default_factory=list)
    seen: list[str] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The next step."""
        self.seen.append(str(llm_request.contents))
        parts = self.steps.pop(0)
        if stream and parts[0].text:
            yield LlmResponse(content=types.Content(role="model", parts=parts), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def say(text: str) -> list[types.Part]:
    """A step with words."""
    return [types.Part(text=text)]


def write(*named: tuple[str, str]) -> list[types.Part]:
    """A step with a call for each file."""
    calls = [types.FunctionCall(name="write", args={"name": n, "text": t}) for n, t in named]
    return [types.Part(function_call=call) for call in calls]


class Stage:
    """A runner on a store, with a workspace."""

    def __init__(self, url: str, work: Path, steps: list[list[types.Part]]) -> None:
        self.work = work
        self.service = BacktrailSessionService(url, cwd=work)
        self.model = Scripted(steps=steps, seen=[])
        self.artifacts = BacktrailArtifactService(self.service.store)

        async def write(name: str, text: str, tool_context: ToolContext) -> dict[str, str]:
            """Write a file."""
            (work / name).write_text(text)
            tool_context.state["last"] = name
            await tool_context.save_artifact("copy.txt", types.Part(text=text))
            return {"wrote": name}

        agent = LlmAgent(name="a", model=self.model, tools=[write])
        self.runner = Runner(
            app_name="app", agent=agent, session_service=self.service,
            artifact_service=self.artifacts, plugins=[self.service.plugin()],
            auto_create_session=True,
        )  # fmt: skip

    async def ask(self, text: str) -> str:
        """The invocation id of a turn."""
        content = types.Content(role="user", parts=say(text))
        found = ""
        async for event in self.runner.run_async(**HERE, new_message=content):
            found = event.invocation_id
        return found

    async def session(self) -> Any:
        """The session as it is stored."""
        return await self.service.get_session(app_name="app", **HERE)

    def text(self, name: str) -> str | None:
        """What is in a file of the workspace."""
        path = self.work / name
        return path.read_text() if path.exists() else None


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with one file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


def steps() -> list[list[types.Part]]:
    """Three turns: two files, one file, words."""
    return [
        *(write(("a.txt", "two\n"), ("b.txt", "new\n")), say("done")),
        *(write(("a.txt", "three\n")), say("again")),
        say("on"),
    ]


@pytest.fixture
def stage(url: str, work: Path) -> Iterator[Stage]:
    """A runner on each store."""
    made = Stage(url, work, steps())
    yield made
    made.service.close()


def test_rewind_async_takes_state_artifacts_and_files_back(stage: Stage) -> None:
    """And the next run goes on from there; undo brings the turn back."""

    async def go() -> None:
        await stage.ask("first")
        second = await stage.ask("second")
        assert stage.text("a.txt") == "three\n"
        await stage.runner.rewind_async(**HERE, rewind_before_invocation_id=second)
        assert (stage.text("a.txt"), stage.text("b.txt")) == ("two\n", "new\n")
        session = await stage.session()
        assert session.state["last"] == "a.txt" or session.state["last"] == "b.txt"
        copy: Any = await stage.artifacts.load_artifact(app_name="app", **HERE, filename="copy.txt")
        assert copy.text != "three\n"
        await stage.ask("third")
        assert "third" in stage.model.seen[-1] and "first" in stage.model.seen[-1]
        assert "second" not in stage.model.seen[-1]

    asyncio.run(go())


def test_undo_takes_a_turn_back_and_redo_brings_it(stage: Stage) -> None:
    """Conversation, state and files together."""

    async def go() -> None:
        await stage.ask("first")
        before = await stage.session()
        await stage.ask("second")
        after = await stage.session()
        own = stage.service.open("app", "u", "s")
        own.undo()
        assert stage.text("a.txt") == "two\n"
        assert (await stage.session()).events == before.events
        own.redo()
        assert stage.text("a.txt") == "three\n"
        assert (await stage.session()).events == after.events

    asyncio.run(go())


def test_two_runs_at_once_lose_nothing(stage: Stage) -> None:
    """One of two runs of a session is refused or goes on; what was appended is whole."""

    async def go() -> None:
        await stage.ask("first")
        asked = [stage.ask("left"), stage.ask("right")]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert any(isinstance(one, str) for one in outcomes)
        session = await stage.session()
        assert session.events

    asyncio.run(go())


CRASH = """
import asyncio, sys
from pathlib import Path
from google.adk.agents import LlmAgent
from google.genai import types
from pydantic import Field
from tests.frameworks.google_adk.test_runner import HERE, Stage, say, write
stage = Stage(sys.argv[1], Path(sys.argv[2]), [write(("a.txt", "two"))])
async def hang(name: str, text: str) -> dict:
    "Write."
    (stage.work / name).write_text(text)
    print("wrote", flush=True)
    await asyncio.sleep(60)
    return {}
hang.__name__ = "write"
stage.runner.agent.tools = [hang]
asyncio.run(stage.ask("go"))
"""


def test_killed_in_a_tool_call(disk_url: str, work: Path) -> None:
    """kill -9 while a tool runs: what was said is there, and what the tool did goes back."""
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
    stage = Stage(disk_url, work, [say("on")])

    async def go() -> None:
        events = (await stage.session()).events
        assert [event.author for event in events] == ["user", "a"]
        stage.service.open("app", "u", "s").undo()
        assert stage.text("a.txt") == "one\n"
        await stage.ask("again")
        assert (await stage.session()).events[-1].content.parts[0].text == "on"

    asyncio.run(go())
    stage.service.close()


def test_people_read_it(tmp_path: Path, work: Path) -> None:
    """`show` has words, calls, answers and files."""
    url = f"sqlite:///{tmp_path}/store.db"
    stage = Stage(url, work, steps())
    asyncio.run(stage.ask("first"))
    stage.service.close()
    shown = cli(url, "show", "s")
    assert "> first" in shown and "• write" in shown and "done" in shown and "a.txt" in shown
    assert "s" in cli(url, "search", "first", "--all")
