"""What an asynchronous agent reads it awaits: a slow store does not hold the loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from backtrail import AsyncSession, LiveTurn, Session, open_store
from backtrail.events import MAIN_LOG, Json
from backtrail.events.messages import Page
from backtrail.stores.base import Store
from backtrail.stores.wrapper import Wrapper

from .test_turns import saying

Reader = Callable[[LiveTurn], Json]


class Held(Wrapper):
    """A store whose reads of a conversation wait until they are let go on."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reads = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def pages(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Page]:
        self.reads.set()
        assert self.go.wait(20), "nobody let it go on: the loop stands still"
        return self.inner.pages(session_id, until=until, log=log)


def later(turn: LiveTurn) -> AsyncIterator[Json]:
    """A plain function that gives what an asynchronous agent yields."""
    return awaiting(turn)


async def awaiting(turn: LiveTurn) -> AsyncIterator[Json]:
    """Says how much it has read."""
    messages = await turn.messages()
    yield saying(f"{len(messages)} {turn.workspace}")
    yield saying(str(len(await turn.said())))


def plain(turn: LiveTurn) -> Iterator[Json]:
    """The same, as a plain agent."""
    yield saying(f"{len(turn.messages())} {turn.workspace}")
    yield saying(str(len(turn.said())))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("agent", [awaiting, later], ids=["generator", "function"])
def test_the_loop_goes_on_while_an_agent_reads(backend: str, agent: Reader) -> None:
    """The read is let go on by the loop itself, which it would wait for for ever."""

    async def main() -> None:
        store = Held(open_store("memory:"))
        async with await AsyncSession.create(store, "s", agent=agent) as s:
            await s.append({"role": "user", "content": "first"})
            store.go.clear()
            store.reads.clear()

            async def release() -> None:
                while not store.reads.is_set():
                    await anyio.sleep(0.001)
                for _ in range(5):
                    await anyio.sleep(0.001)
                store.go.set()

            async with anyio.create_task_group() as group:
                group.start_soon(release)
                result = await s.send("second")
            said = [message["content"] for message in result.messages]
            assert said == ["2 None", "1"]

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("agent", [awaiting, later, plain])
def test_both_kinds_of_session_take_both_kinds_of_agent(
    tmp_path: Path, disk_url: str, agent: Reader
) -> None:
    """A plain one calls, an asynchronous one awaits, with either driver."""

    async def main() -> None:
        async with await AsyncSession.open(disk_url, "a", cwd=tmp_path, agent=agent) as s:
            said = [message["content"] for message in (await s.send("hello")).messages]
            assert said == [f"1 {tmp_path}", "1"]

    with Session.open(disk_url, "s", cwd=tmp_path, agent=agent) as s:
        said = [message["content"] for message in s.send("hello").messages]
        assert said == [f"1 {tmp_path}", "1"]
    anyio.run(main)
