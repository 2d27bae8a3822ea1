"""AsyncSession under asyncio and trio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from backtrail import (
    AsyncSession,
    Closed,
    Delta,
    Event,
    NewEvent,
    NotFound,
    Session,
    SessionBusy,
    Store,
    StoreFailed,
    open_store,
)
from backtrail.events import MAIN_LOG
from backtrail.stores import KnownIds
from backtrail.stores.wrapper import Wrapper

from .talking import assistant, child, user

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each test runs under both."""
    name: str = request.param
    return name


async def texts(session: AsyncSession) -> list[str]:
    """The contents of the conversation."""
    return [str(message["content"]) for message in await session.messages()]


async def talk(session: AsyncSession, *turns: str) -> list[Event]:
    """Turns of a question and an answer each."""
    events = []
    for text in turns:
        async with session.turn(text) as turn:
            events += [turn.event, await turn.append(assistant(f"re: {text}"))]
    return events


class Slow(Wrapper):
    """A store whose appends take a while, and may fail after it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.pause = 0.0
        self.fails = False
        self.begun = threading.Event()

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        self.begun.set()
        time.sleep(self.pause)
        if self.fails:
            raise StoreFailed("no")
        return super().append(session_id, events, log=log, expected=expected, known=known)


# --- the same flows ----------------------------------------------------------------------


async def test_a_conversation_from_beginning_to_end(url: str) -> None:
    """Open, talk, mark, go back and forth, close, come back."""
    async with await AsyncSession.open(url, "s", system_prompt="P", title="T") as s:
        assert (s.id, s.agent, s.problems) == ("s", None, [])
        events = await talk(s, "one")
        point = await s.checkpoint("here")
        assert await s.checkpoint("here") == point
        async with s.turn("two", id="req-2") as turn:
            await turn.extend([*await turn.messages(), assistant("a"), assistant("b")])
        await s.record("my.kind", {"n": 1})
        preview = await s.rewind(point, dry_run=True)
        rewind = await s.rewind(point)
        assert (preview.applied, rewind.applied) == (False, True)
        assert preview.events_dropped == rewind.events_dropped == 4
        assert await texts(s) == ["P", "one", "re: one"]
        await s.undo()
        assert await texts(s) == ["P", "one", "re: one", "two", "a", "b"]
        await s.redo()
        assert len(await s.branches()) == 1
        assert await s.checkpoints() == [point]
        assert (await s.history())[0].kind == "session_start"
        assert (await s.state()).turn_count == 1
        assert (await s.as_map())["last_user"] == user("one")
        assert await s.pending() == []
        await s.update(title="U")
        await s.end("done")
        assert [e.seq async for e in s.events(after=events[0].seq, limit=2)] == [4, 5]
    async with await AsyncSession.resume(url, "s", at=events[0]) as s:
        assert (await s.info()).title == "U"
        assert await texts(s) == ["P", "one"]
        await s.append(assistant("again"), cost_usd=0.5)
        async with await s.fork(session_id="f") as fork:
            await talk(fork, "three")
            assert (await fork.info()).parent_id == "s"
            assert await texts(fork) == ["P", "one", "again", "three", "re: three"]
        assert await texts(s) == ["P", "one", "again"]
        assert repr(s).startswith("<AsyncSession s on ")


async def test_sync_and_async_sessions_share_a_store(url: str) -> None:
    """They are one thing, seen from two worlds."""
    with open_store(url) as store:
        async with await AsyncSession.create(store, "s") as s:
            await talk(s, "one")
            with Session.open(store, "s") as other:
                async with s.turn("two"):
                    with pytest.raises(SessionBusy):
                        other.undo()
                other.undo()
            assert await texts(s) == ["one", "re: one"]
            assert s.store is store
        assert store.info("s").head > 0


async def test_errors_come_through(url: str) -> None:
    """As they are, and a closed session raises `Closed`."""
    with pytest.raises(NotFound):
        await AsyncSession.resume(url, "ghost")
    with pytest.raises(NotFound):
        await AsyncSession.latest(url, cwd="/nowhere")
    s = await AsyncSession.create(url)
    with pytest.raises(NotFound):
        await s.undo()
    await s.close()
    await s.close()
    with pytest.raises(Closed):
        await s.messages()
    with pytest.raises(Closed):
        await talk(s, "x")
    with pytest.raises(Closed):
        await anext(s.events())
    with pytest.raises(StopAsyncIteration):
        await anext(s.follow())


async def test_side_logs(url: str) -> None:
    """Buffered, and read as async iterators."""
    async with await AsyncSession.create(url) as s:
        raw = s.log("transcript")
        assert raw.name == "transcript"
        assert (await raw.append({"n": 0})).seq == 0
        for number in range(1, 600):
            await raw.append({"n": number}, kind="chunk")
        assert [e.data["n"] async for e in raw.read(after=2)] == list(range(2, 600))
        assert [e.seq for e in await raw.tail(2)] == [599, 600]
        await raw.flush()
        await s.subagent("a1").append({"n": 1}, id="x")
        assert [e.id async for e in s.subagent("a1").read(limit=1)] == ["x"]


async def test_events_can_be_left_half_way(url: str) -> None:
    """An iterator over many pages holds nothing, so it may be forgotten."""
    async with await AsyncSession.create(url) as s:
        await s.extend([user(str(n)) for n in range(700)])
        assert len([e async for e in s.events()]) == 701
        async for event in s.events(reverse=True):
            assert event.seq == 701
            break


# --- turns -------------------------------------------------------------------------------


async def test_turns_of_many_tasks_are_served_one_after_another(url: str) -> None:
    """Rewinds too: no turn mixes with another."""
    async with await AsyncSession.create(url) as s:

        async def work(number: int) -> None:
            async with s.turn(str(number)) as turn:
                await anyio.sleep(0.002)
                await turn.append(assistant(f"re: {number}"))

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(work, number)
        said = await texts(s)
        assert sorted(said[::2]) == sorted(str(n) for n in range(12))
        assert said[1::2] == [f"re: {text}" for text in said[::2]]


async def test_a_rewind_within_a_turn_is_part_of_it(url: str) -> None:
    """The task that drives may go back; others still wait."""
    async with await AsyncSession.create(url) as s:
        async with anyio.create_task_group() as group, s.turn("one") as turn:
            group.start_soon(talk, s, "two")
            await turn.append(assistant("wrong"))
            await s.rewind(turn.event)
            async with s.turn("nested"):
                await anyio.sleep(0.05)
            assert await texts(s) == ["one", "nested"]
        assert await texts(s) == ["one", "nested", "two", "re: two"]


async def test_another_driver_is_busy_and_waiting_holds_no_thread(url: str) -> None:
    """Waiting for a lease can be cancelled, and many can wait."""
    async with await AsyncSession.create(url, "s") as s, anyio.create_task_group() as group:
        async with await AsyncSession.open(url, "s") as hasty, s.turn("one"):
            with pytest.raises(SessionBusy):
                await talk(hasty, "x")
            with pytest.raises(SessionBusy):
                await hasty.rewind(0)
        waiting = [await AsyncSession.open(s.store, "s", wait=20) for _ in range(20)]
        async with s.turn("two"):
            for number, other in enumerate(waiting):
                group.start_soon(talk, other, str(number))
            await anyio.sleep(0.05)
            await s.append(assistant("there are threads left"))
            with anyio.move_on_after(0.1) as scope:
                async with await AsyncSession.open(s.store, "s", wait=20) as patient:
                    await talk(patient, "never")
            assert scope.cancelled_caught
        group.cancel_scope.deadline = anyio.current_time() + 60
        while len(await texts(s)) < 43:
            await anyio.sleep(0.02)
        assert "never" not in await texts(s)


async def test_a_session_lease_is_held_and_waited_for(disk_url: str) -> None:
    """Until close, and given back when a task is cancelled while it opens."""
    first = await AsyncSession.create(disk_url, "s", lease="session")
    with pytest.raises(SessionBusy):
        await AsyncSession.open(disk_url, "s", lease="session")
    with anyio.move_on_after(0.1) as scope:
        await AsyncSession.open(disk_url, "s", lease="session", wait=60)
    assert scope.cancelled_caught

    async with anyio.create_task_group() as group:

        async def leave() -> None:
            await anyio.sleep(0.1)
            await first.close()

        group.start_soon(leave)
        async with await AsyncSession.open(disk_url, "s", lease="session", wait=20) as second:
            await talk(second, "one")


# --- listening ---------------------------------------------------------------------------


async def test_follow_sees_other_processes_and_does_not_block(disk_url: str) -> None:
    """It waits on the loop, can be cancelled, and ends with the session."""
    code = (
        "import sys; from backtrail import Session\n"
        "with Session.open(sys.argv[1], 's') as s:\n"
        "    for n in range(300): s.append({'role': 'user', 'content': str(n)})"
    )
    s = await AsyncSession.create(disk_url, "s")
    following = s.follow()
    with anyio.move_on_after(0.1) as scope:
        await anext(following)
    assert scope.cancelled_caught
    await anyio.to_thread.run_sync(child, code, disk_url)
    events = [await anext(following) for _ in range(301)]
    assert [e.seq for e in events] == list(range(2, 303))
    assert (await anext(s.follow(after=5))).seq == 6
    async with anyio.create_task_group() as group:
        group.start_soon(s.close)
        with pytest.raises(StopAsyncIteration):
            await anext(following)


async def test_subscribers_get_events_and_deltas(url: str) -> None:
    """In order; a slow one loses deltas and no event."""
    async with await AsyncSession.create(url) as s:
        async with s.subscribe() as quick, s.subscribe(size=4) as slow:
            for number in range(20):
                await s.append(user(str(number)))
                await s.emit(Delta("text", {"n": number}))
            got = [await quick.get() for _ in range(40)]
            assert [type(item) for item in got] == [Event, Delta] * 20
            assert await quick.get(timeout=0.01) is None
            late = [await slow.get()]
            while not (isinstance(late[-1], Event) and late[-1].seq == 21):
                late.append(await slow.get())
            assert await slow.get(timeout=0.05) is None
            events = [item for item in late if isinstance(item, Event)]
            assert [event.seq for event in events] == list(range(2, 22))
            assert slow.lost_deltas == 20 - (len(late) - len(events))
        assert await quick.get() is None


async def test_a_subscriber_waits_on_the_loop(url: str) -> None:
    """It wakes for news, can be cancelled, and ends with the session."""
    s = await AsyncSession.create(url)
    got: list[Event | Delta] = []

    async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with s.subscribe() as items:
            task_status.started()
            async for item in items:
                got.append(item)

    async with anyio.create_task_group() as group:
        for _ in range(40):
            await group.start(listen)
        lonely = s.subscribe()
        with anyio.move_on_after(0.05) as scope:
            await anext(lonely)
        assert scope.cancelled_caught
        event = await s.append(user("one"))
        assert await lonely.get() == event
        await s.close()
    assert got == [event] * 40


# --- cancellation ------------------------------------------------------------------------


async def test_an_append_once_begun_is_stored_although_cancelled() -> None:
    """It finishes, then the cancellation is raised."""
    with open_store("memory:") as inner:
        store = Slow(inner)
        s = await AsyncSession.create(store, "s")
        store.pause = 0.2
        reached = False
        with anyio.move_on_after(0.05) as scope:
            await s.append(user("one"))
            reached = True
        assert scope.cancelled_caught
        assert not reached
        store.pause = 0
        assert await texts(s) == ["one"]


async def test_a_cancelled_turn_gives_its_lease_back() -> None:
    """However far it came, the next driver gets in."""
    with open_store("memory:") as inner:
        store = Slow(inner)
        s = await AsyncSession.create(store, "s")
        other = await AsyncSession.open(store, "s")
        for delay in (0.0, 0.01, 0.05, 0.15):
            store.pause = 0.1
            with anyio.move_on_after(delay):
                async with s.turn("cancelled"):
                    await anyio.sleep(0.03)
            store.pause = 0
            await talk(other, "mine")
        assert (await texts(s)).count("mine") == 4


async def test_a_failure_is_reported_although_cancelled() -> None:
    """Being cancelled hides no error of the store."""
    with open_store("memory:") as inner:
        store = Slow(inner)
        s = await AsyncSession.create(store, "s")
        store.pause, store.fails = 0.1, True
        with anyio.move_on_after(0.02), pytest.raises(StoreFailed):
            await s.append(user("one"))


async def test_closing_finishes_although_cancelled(disk_url: str) -> None:
    """A session left by a cancellation is closed, its lease free."""
    with anyio.CancelScope() as scope:
        async with await AsyncSession.create(disk_url, "s", lease="session") as s:
            await s.append(user("one"))
            scope.cancel()
            await anyio.sleep(1)
    assert scope.cancelled_caught
    async with await AsyncSession.open(disk_url, "s", lease="session") as s:
        assert await texts(s) == ["one"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tasks_of_asyncio_are_cancelled_the_same_way() -> None:
    """`Task.cancel`, `timeout` and `wait_for` break through shields; nothing is lost."""
    with open_store("memory:") as inner, ExitStack() as stack:
        store = Slow(inner)
        stack.callback(store.close)
        s = await AsyncSession.create(store, "s")
        store.pause = 0.1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(s.append(user("one")), 0.02)
        assert inner.info("s").message_count == 1
        store.begun.clear()
        task = asyncio.create_task(talk(s, "two"))
        while not store.begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert inner.info("s").message_count == 2
        store.fails = True
        with pytest.raises(StoreFailed):
            await asyncio.wait_for(s.append(user("x")), 0.02)
        store.pause, store.fails = 0, False
        for delay in range(12):
            task = asyncio.create_task(talk(s, "three"))
            await asyncio.sleep(delay / 5000)
            task.cancel()
            await asyncio.wait([task])
            await talk(s, "free")
        assert (await texts(s)).count("free") == 12


# --- many --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("anyio_backend", "scheme"),
    [("asyncio", "file:"), ("asyncio", "sqlite:///"), ("trio", "sqlite:///"), ("trio", "memory:")],
)
async def test_many_sessions_in_one_loop(scheme: str, tmp_path: Path) -> None:
    """200 sessions of 20 appends, all at once, are all there."""
    with open_store(f"{scheme}{tmp_path}/place") as store:

        async def live(number: int) -> None:
            async with await AsyncSession.create(store, f"s{number}") as s:
                for step in range(20):
                    await s.append(user(f"{number}.{step}"))

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(live, number)
        infos = store.sessions()
        assert len(infos) == 200
        assert {info.message_count for info in infos} == {20}
        last = [event.data["message"]["content"] for event in store.read("s7", after=1)]
        assert last == [f"7.{step}" for step in range(20)]


async def test_the_loop_goes_on_while_the_store_works() -> None:
    """A slow store does not hold up anything else."""
    with open_store("memory:") as inner:
        store = Slow(inner)
        s = await AsyncSession.create(store, "s")
        store.pause = 0.3
        ticks = 0
        async with anyio.create_task_group() as group:
            group.start_soon(s.append, user("one"))
            began = anyio.current_time()
            while anyio.current_time() - began < 0.2:
                await anyio.sleep(0.005)
                s.log("transcript")
                ticks += 1
        assert ticks > 10
