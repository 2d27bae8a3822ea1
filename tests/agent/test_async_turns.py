"""Turns of an `AsyncSession`: on asyncio and trio, one after another, cancelled at any time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from backtrail import AsyncSession, Delta, Event, NotFound, Session
from backtrail.agent.loop import Loop
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tool_from, tools_named
from backtrail.errors import Conflict, StoreFailed, Unsupported
from backtrail.events import Json
from backtrail.session.turns import Limits, LiveTurn, Pause
from backtrail.stores import open_store
from tests.test_failing import Flaky

from .servers import AnthropicServer, Broken, Failure, OpenAIServer
from .test_durable import left_open, marking
from .test_loop import living
from .test_turns import Agent, Object, call, calling, later, notified, plain, saying

Main = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    """Runs an asynchronous function on each loop."""

    def on_loop(main: Main) -> None:
        anyio.run(main, backend=request.param)

    return on_loop


Run = Callable[[Main], None]


def scripted(*replies: Json, **options: Any) -> Loop:
    model = ScriptedModel(list(replies))
    return Loop(model, tools_named(options.pop("tools", "all")), Permissions("trusted"), **options)


async def ends(session: AsyncSession) -> list[str]:
    return [event.data["reason"] async for event in session.events(kinds=("turn_end",))]


async def roles(session: AsyncSession) -> list[str]:
    return [str(m["role"]) for m in await session.messages(repair=False)]


async def eventually(check: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not check():
            await anyio.sleep(0.005)


# --- agents ------------------------------------------------------------------------------


async def awaiting(turn: LiveTurn) -> AsyncIterator[Json]:
    await anyio.sleep(0)
    yield saying(f"you said {turn.prompt}")


@pytest.mark.parametrize("agent", [plain, awaiting, Object()], ids=["sync", "async", "list"])
def test_the_same_agents(run: Run, url: str, agent: Agent) -> None:
    """As in a plain session."""

    async def main() -> None:
        async with await AsyncSession.open(url, "s", agent=agent) as s:
            result = await s.send("hello", id="r1")
            assert (result.text, result.exit_reason) == ("you said hello", "end_turn")
            assert await s.send("hello", id="r1") == result
            assert (await s.send("more")).text == "you said more"
            again = [item async for item in s.stream("hello", id="r1")]
            assert notified(again) == ["assistant_message", "turn_end", "done"]
            assert await roles(s) == ["user", "assistant"] * 2

    run(main)


def test_an_asynchronous_agent_runs_on_the_callers_loop(run: Run) -> None:
    """A plain one, and its tools, beside it."""
    threads: dict[str, int] = {}

    async def agent(turn: LiveTurn) -> AsyncIterator[Json]:
        threads["async"] = threading.get_ident()
        yield saying("x")

    def other(turn: LiveTurn) -> Iterator[Json]:
        threads["sync"] = threading.get_ident()
        yield saying("x")

    async def main() -> None:
        async with await AsyncSession.open("memory:", agent=agent) as s:
            await s.send("go")
        async with await AsyncSession.open("memory:", agent=other) as s:
            await s.send("go")
        here = threading.get_ident()
        assert threads["async"] == here != threads["sync"]

    run(main)


def test_the_loop_is_not_blocked_by_a_plain_agent(run: Run) -> None:
    """Other tasks go on while it works."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        time.sleep(0.3)
        yield saying("x")

    async def main() -> None:
        async with await AsyncSession.open("memory:", agent=agent) as s:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await anyio.sleep(0.01)

            async with anyio.create_task_group() as group:
                group.start_soon(tick)
                await s.send("go")
                group.cancel_scope.cancel()
            assert ticks > 10

    run(main)


@pytest.mark.parametrize("way", ["with", "async with"])
def test_an_agent_brackets_its_tools(run: Run, tmp_path: Path, way: str) -> None:
    """`turn.tool` and `turn.emit` work in both kinds of agents."""
    work = tmp_path / "work"
    work.mkdir()

    def agent(turn: LiveTurn) -> Iterator[Json]:
        with turn.tool("touch") as made:
            (work / "a").write_text("a")
            made.result = "ok"
        turn.emit(Delta("mine"))
        yield saying("done")

    async def other(turn: LiveTurn) -> AsyncIterator[Json]:
        async with turn.tool("touch") as made:
            (work / "a").write_text("a")
            made.result = "ok"
        turn.emit(Delta("mine"))
        yield saying("done")

    async def main() -> None:
        chosen: Agent = agent if way == "with" else other
        url = f"file:{tmp_path}/s"
        async with await AsyncSession.open(url, "s", agent=chosen, cwd=work) as s:
            heard: list[str] = []

            async def listen() -> None:
                async with s.subscribe() as listening:
                    started.set()
                    async for item in listening:
                        heard.append(item.type if isinstance(item, Delta) else item.kind)
                        if heard[-1] == "done":
                            return

            started = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                await started.wait()
                assert (await s.send("go")).files == ["a"]
            assert "mine" in heard
            await s.undo()
            assert list(work.iterdir()) == []

    run(main)


# --- the built-in loop, over HTTP --------------------------------------------------------


def test_a_turn_with_tools(run: Run, tmp_path: Path) -> None:
    """The official client for loops, parallel calls, and a failure that passes."""
    work = tmp_path / "work"
    work.mkdir()

    async def main() -> None:
        with OpenAIServer() as server:
            server.script(
                Failure(429, headers={"retry-after": "0.01"}),
                calling(
                    call("1", "write", path="a", content="x"),
                    call("2", "write", path="b", content="y"),
                ),
                Broken("half an answer", after=3),
                "Written.",
            )
            async with await AsyncSession.open(
                f"sqlite:///{tmp_path}/s.db", "deploy-123", provider="ollama",
                model="qwen2.5-coder", tools="all", cwd=work, phase="trusted",
                agent_options={"base_url": server.url},
            ) as s:  # fmt: skip
                result = await s.send("go")
                assert (result.text, result.files) == ("Written.", ["a", "b"])
                assert await roles(s) == ["user", "assistant", "tool", "tool", "assistant"]
                assert (await s.info()).usage["input_tokens"] == 40
            assert server.refused == []

    run(main)


def test_callbacks_and_tools_may_be_asynchronous(run: Run) -> None:
    """Both run on the caller's loop, in a subagent too."""
    here: list[int] = []

    async def ask(name: str, input: Json, context: Json) -> bool:
        await anyio.sleep(0)
        here.append(threading.get_ident())
        return bool(input.get("n", 0) != 2)

    async def later(n: int) -> int:
        """Takes a while."""
        await anyio.sleep(0.001)
        here.append(threading.get_ident())
        return n + 1

    async def main() -> None:
        model = ScriptedModel(
            [
                calling(call("1", "later", n=1), call("2", "later", n=2)),
                calling(call("3", "task", description="d", prompt="p")),
                calling(call("4", "later", n=5)),
                "six",
                "done",
            ]
        )
        from backtrail.agent.subagents import spawn

        tools = [*tools_named(["task"]), tool_from(later)]
        agent = Loop(model, tools, Permissions(can_use_tool=ask), spawn=spawn)
        async with await AsyncSession.open("memory:", agent=agent) as s:
            assert (await s.send("go")).text == "done"
            results = [m["content"] for m in await s.messages() if m["role"] == "tool"]
            assert results[0] == "2"
            assert "user_denied" in results[1]
            assert results[2] == "six"
        assert len(here) == 6
        assert set(here) == {threading.get_ident()}

    run(main)


def test_an_asynchronous_callback_needs_a_loop() -> None:
    """A plain session says so."""

    async def ask(name: str, input: Json, context: Json) -> bool:
        return True

    asked = calling(call("1", "bash", command="true"))
    agent = Loop(ScriptedModel([asked]), tools_named("all"), Permissions(can_use_tool=ask))
    with Session.open("memory:", agent=agent) as s, pytest.raises(Unsupported, match="AsyncSes"):
        s.send("go")


def test_thinking_of_anthropic_in_a_loop(run: Run) -> None:
    """Deltas of both kinds, and the thoughts go back."""

    async def main() -> None:
        with AnthropicServer() as server:
            thought = {"type": "thinking", "thinking": "hmm hmm", "signature": "EqQ="}
            use = {"type": "tool_use", "id": "t1", "name": "glob", "input": {"pattern": "*"}}
            server.script({"role": "assistant", "content": [thought, use]}, "done")
            options = {"base_url": server.url, "api_key": "k"}
            async with await AsyncSession.open(
                "memory:", agent="anthropic:claude-x", tools="all", agent_options=options
            ) as s:
                items = [item async for item in s.stream("go")]
            seen = {item.type for item in items if isinstance(item, Delta)}
            assert {"thinking_delta", "text_delta", "tool_call", "tool_result", "usage"} <= seen
            assert server.refused == []

    run(main)


# --- one at a time -----------------------------------------------------------------------


def test_tasks_are_served_one_after_another(run: Run, url: str) -> None:
    """Each turn is whole."""

    async def agent(turn: LiveTurn) -> AsyncIterator[Json]:
        yield saying("thinking")
        await anyio.sleep(0.005)
        yield saying("done")

    async def main() -> None:
        async with await AsyncSession.open(url, "s", agent=agent) as s:
            async with anyio.create_task_group() as group:
                for n in range(5):
                    group.start_soon(s.send, f"n{n}")
            assert await roles(s) == ["user", "assistant", "assistant"] * 5
            assert await ends(s) == ["end_turn"] * 5

    run(main)


def test_a_turn_within_a_turn_is_refused(run: Run) -> None:
    """It would wait for itself."""

    async def main() -> None:
        async with await AsyncSession.open("memory:", agent=plain) as s:
            async with aclosing(s.stream("go")) as flow:
                async for _ in flow:
                    with pytest.raises(Conflict, match="under way"):
                        await s.send("another")
            assert await ends(s) == ["end_turn"]

    run(main)


def test_an_agent_that_raises_ends_its_turn(run: Run, url: str) -> None:
    """Itself, not in a group; the session goes on."""

    async def agent(turn: LiveTurn) -> AsyncIterator[Json]:
        yield calling(call("1", "t"))
        if turn.prompt == "break":
            raise ZeroDivisionError("no")

    async def main() -> None:
        async with await AsyncSession.open(url, "s", agent=agent) as s:
            with pytest.raises(ZeroDivisionError):
                await s.send("break")
            assert await s.pending() == []
            await s.send("go")
            assert await ends(s) == ["error", "end_turn"]

    run(main)


def test_a_failing_store_stops_the_turn(run: Run) -> None:
    """The error itself, before the next tool runs."""

    async def main() -> None:
        with open_store("memory:") as inner:
            store = Flaky(inner)
            ran: list[str] = []

            def mark(text: str) -> str:
                """Leave a mark."""
                ran.append(text)
                store.broken = True
                return "marked"

            asked = calling(call("1", "mark", text="one"), call("2", "mark", text="two"))
            agent = Loop(ScriptedModel([asked]), [tool_from(mark)], Permissions("trusted"))
            async with await AsyncSession.create(store, "s", agent=agent) as s:
                with pytest.raises(StoreFailed):
                    await s.send("go")
                assert ran == ["one"]
                store.broken = False
                assert [waiting.id for waiting in await s.pending()] == ["1", "2"]

    run(main)


def test_proceeding(run: Run, url: str) -> None:
    """Open calls fail or are run, as the host says."""

    async def main() -> None:
        left_open(url)
        ran: list[str] = []
        async with await AsyncSession.open(url, "s", agent=marking(ran, saying("ok"))) as s:
            assert (await s.proceed(pending="retry")).text == "ok"
            assert ran == ["two"]
            with pytest.raises(NotFound):
                await s.proceed()

    run(main)


# --- cancelling --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "scope"])
def test_a_cancelled_tool_leaves_nothing(run: Run, tmp_path: Path, how: str) -> None:
    """By `cancel()` or with its task: interrupted, all calls answered, no process left."""
    command = "echo $$ > pid; sleep 60 & sleep 60"
    asked = calling(call("1", "bash", command=command), call("2", "bash", command="touch no"))
    pid = tmp_path / "pid"

    async def main() -> None:
        async with await AsyncSession.open(
            "memory:", agent=scripted(asked, saying("fine")), cwd=tmp_path
        ) as s:
            reasons: list[str] = []

            async def send() -> None:
                reasons.append((await s.send("go")).exit_reason)

            began = time.monotonic()
            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await eventually(lambda: pid.exists() and pid.read_text().strip())
                if how == "cancel":
                    await s.cancel()
                else:
                    group.cancel_scope.cancel()
            assert time.monotonic() - began < 15
            assert reasons == (["interrupted"] if how == "cancel" else [])
            assert await ends(s) == ["interrupted"]
            assert await s.pending() == []
            assert living(int(pid.read_text())) == []
            assert not (tmp_path / "no").exists()
            assert (await s.send("what happened?")).text == "fine"

    run(main)


def test_a_cancelled_asyncio_task_leaves_nothing(tmp_path: Path) -> None:
    """`Task.cancel` is of its own kind."""
    asked = calling(call("1", "bash", command="echo $$ > pid; sleep 60"))
    pid = tmp_path / "pid"

    async def main() -> None:
        async with await AsyncSession.open(
            "memory:", agent=scripted(asked, saying("fine")), cwd=tmp_path
        ) as s:
            task = asyncio.create_task(s.send("go"))
            waiting = asyncio.create_task(s.send("and then?"))
            await eventually(lambda: pid.exists() and pid.read_text().strip())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert living(int(pid.read_text())) == []
            assert (await waiting).text == "fine"
            assert await ends(s) == ["interrupted", "end_turn"]
            assert await s.pending() == []

    asyncio.run(main())


@pytest.mark.parametrize("at", ["model", "agent", "pause", "async tool"])
def test_cancel_waits_for_nothing(run: Run, at: str) -> None:
    """Not for a model that is silent, an agent, a pause or a tool on the loop."""

    async def slow(turn: LiveTurn) -> AsyncIterator[Json]:
        yield saying("x")
        await anyio.sleep(60)

    async def pausing(turn: LiveTurn) -> AsyncIterator[Json]:
        yield saying("x")
        yield Pause(60)

    async def sleepy() -> str:
        """Takes a minute."""
        await anyio.sleep(60)
        return ""

    async def main() -> None:
        with OpenAIServer() as server:
            server.script(Broken("x", after=2, how="hang"))
            agent: Any = {
                "model": "ollama:m",
                "agent": slow,
                "pause": pausing,
                "async tool": scripted(calling(call("1", "sleepy")), tools=[sleepy]),
            }[at]
            async with await AsyncSession.open(
                "memory:", agent=agent, agent_options={"base_url": server.url}
            ) as s:
                with anyio.fail_after(20):
                    async with anyio.create_task_group() as group:
                        results: list[str] = []

                        async def send() -> None:
                            results.append((await s.send("go")).exit_reason)

                        group.start_soon(send)
                        await anyio.sleep(1.5 if at == "model" else 0.2)
                        await s.cancel()
                assert results == await ends(s) == ["interrupted"]
                assert await s.pending() == []

    run(main)


def test_time_is_limited_on_a_loop(run: Run) -> None:
    """Whatever is at work then."""

    async def slow(turn: LiveTurn) -> AsyncIterator[Json]:
        yield saying("x")
        await anyio.sleep(60)

    async def main() -> None:
        async with await AsyncSession.open("memory:", agent=slow) as s:
            result = await s.send("go", budget=Limits(seconds=0.1))
            assert result.exit_reason == "max_budget"

    run(main)


def test_a_stream_that_is_closed_ends_its_turn(run: Run, url: str) -> None:
    """The next turn can begin at once."""

    async def main() -> None:
        async with await AsyncSession.open(url, "s", agent=awaiting) as s:
            async with aclosing(s.stream("go")) as flow:
                async for _ in flow:
                    break
            assert await ends(s) == ["interrupted"]
            assert (await s.send("more")).text == "you said more"

    run(main)


def test_a_stream_that_is_forgotten_is_ended_by_the_next_turn(run: Run, url: str) -> None:
    """A plain `break` is enough."""

    async def main() -> None:
        async with await AsyncSession.open(url, "s", agent=awaiting) as s:
            for n in range(3):
                async for _ in s.stream(f"left {n}"):
                    break
            assert (await s.send("more")).text == "you said more"
            assert await ends(s) == [*["interrupted"] * 3, "end_turn"]
            async with s.stream("with") as flow:
                await anext(flow)
            async for _ in s.stream("left"):
                break
        async with await AsyncSession.open(url, "s", agent=awaiting) as s:
            assert (await ends(s))[4:] == ["interrupted"] * 2

    run(main)


def test_closing_a_session_ends_the_turn_of_a_stream(tmp_path: Path) -> None:
    """As when a client of a web server goes away; the lease is free then."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/s.db"
        async with await AsyncSession.open(url, "s", agent=awaiting) as s:
            flow = s.stream("go")
            await anext(flow)
        async with await AsyncSession.open(url, "s", agent=awaiting) as s:
            assert await ends(s) == ["interrupted"]
            assert (await s.send("more")).text == "you said more"
        await flow.aclose()

    asyncio.run(main())


def test_a_stream_is_what_subscribers_hear(run: Run) -> None:
    """In the same order, deltas and events."""

    async def main() -> None:
        async with await AsyncSession.open("memory:", agent=scripted("a few words")) as s:
            heard: list[Delta | Event] = []

            async def listen() -> None:
                async with s.subscribe() as listening:
                    started.set()
                    async for item in listening:
                        heard.append(item)
                        if isinstance(item, Delta) and item.type == "done":
                            return

            started = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                await started.wait()
                items = [item async for item in s.stream("go")]
            assert [x for x in notified(heard) if x != "turn_end"] == notified(items)

    run(main)


def test_many_long_tools_do_not_stop_the_stores(run: Run) -> None:
    """Tools have threads of their own: the others' store calls go on."""
    held = threading.Event()

    def hold() -> str:
        """Wait."""
        held.wait(20)
        return ""

    async def main() -> None:
        agents = [scripted(calling(call("1", "hold")), "x", tools=[hold]) for _ in range(20)]
        sessions = [await AsyncSession.open("memory:", agent=agent) for agent in agents]
        async with anyio.create_task_group() as group:
            for s in sessions:
                group.start_soon(s.send, "go")
            await anyio.sleep(0.5)
            async with await AsyncSession.open("memory:", agent=later) as other:
                with anyio.fail_after(10):
                    assert len(await other.messages()) == 0
            held.set()
        for s in sessions:
            assert await ends(s) == ["end_turn"]
            await s.close()

    run(main)
