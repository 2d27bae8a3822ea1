"""Appends of an AsyncSession wait in the store's queue, never on the loop."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from backtrail import (
    AsyncSession,
    Closed,
    Event,
    NotFound,
    Session,
    SessionBusy,
    Store,
    open_store,
    telemetry,
)
from backtrail.session import threads
from backtrail.stores.batches import Call, Outcome
from backtrail.stores.jsonl import opened
from backtrail.telemetry import Signal

from .talking import user

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each test runs under both."""
    name: str = request.param
    return name


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of a JSONL store waits for a session's lock as long as that of SQLite."""
    monkeypatch.setattr(opened, "_BRIEF", 20.0)


@contextmanager
def locked(store: Store, session_id: str) -> Iterator[None]:
    """Another holds the lock that a writer of the session takes."""
    place = Path(store.places[0])
    path = place / "sessions" / session_id / "lock" if place.is_dir() else Path(f"{place}-lock")
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


async def texts(session: AsyncSession) -> list[str]:
    """The contents of the conversation."""
    return [str(message["content"]) for message in await session.messages()]


async def ready(store: Store, session_id: str) -> AsyncSession:
    """A session that was appended to before."""
    session = await AsyncSession.create(store, session_id)
    await session.append(user("first"))
    return session


async def busy(store: Store) -> None:
    """Return when the writer of the store is at work."""
    while not store.queue._writer:
        await anyio.sleep(0.001)


async def test_a_locked_store_holds_no_loop(disk_url: str) -> None:
    """The loop goes on, and what waited is stored as soon as the lock is free."""
    with open_store(disk_url) as store:
        s = await ready(store, "s")
        stored: list[Event] = []

        async def append(number: int) -> None:
            stored.append(await s.append(user(str(number))))

        async with anyio.create_task_group() as group:
            with locked(store, "s"):
                for number in range(20):
                    group.start_soon(append, number)
                for _ in range(50):
                    await anyio.sleep(0.001)
                assert not stored
        # trio starts tasks in any order.
        assert sorted(event.seq for event in stored) == list(range(3, 23))
        assert sorted(await texts(s)) == sorted(["first", *map(str, range(20))])


@pytest.mark.usefixtures("patient")
async def test_what_waits_is_written_together(
    disk_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sessions behind one lock: the first, then all the others in one group."""
    with open_store(disk_url) as store:
        sizes: list[int] = []
        real = type(store)._append_queued

        def write(self: Store, calls: Sequence[Call]) -> list[Outcome]:
            sizes.append(len(calls))
            return real(self, calls)

        monkeypatch.setattr(type(store), "_append_queued", write)
        sessions = [await ready(store, f"s{number}") for number in range(30)]
        sizes.clear()
        async with anyio.create_task_group() as group:
            with locked(store, "s0"):
                group.start_soon(sessions[0].append, user("more"))
                await busy(store)
                for session in sessions[1:]:
                    group.start_soon(session.append, user("more"))
                while store.queue._jobs.qsize() < 29:
                    await anyio.sleep(0.001)
        assert sizes == [1, 29]
        for session in sessions:
            assert await texts(session) == ["first", "more"]


@pytest.mark.usefixtures("patient")
async def test_all_else_has_a_turn_while_many_appends_come_back(disk_url: str) -> None:
    """However many were written together: their tasks do not go on in one round of the loop."""
    with open_store(disk_url) as store:
        sessions = [await ready(store, f"s{number}") for number in range(80)]
        rounds, ended = 0, list[int]()

        async def append(session: AsyncSession) -> None:
            await session.append(user("more"))
            ended.append(rounds)

        async with anyio.create_task_group() as group:
            with locked(store, "s0"):
                for session in sessions:
                    group.start_soon(append, session)
                await busy(store)
            while len(ended) < len(sessions):
                rounds += 1
                await anyio.lowlevel.checkpoint()
        # All but the first were written together. trio takes tasks of a round in any order, so that
        # two rounds may look like one.
        assert max(ended.count(number) for number in set(ended)) <= 2 * threads.ROUND
        for session in sessions:
            assert await texts(session) == ["first", "more"]


async def test_one_locked_session_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Where each session has a lock of its own, only those wait that are locked."""
    with open_store(f"file:{tmp_path}/store") as store:
        one, other = [await ready(store, id) for id in "ab"]
        async with anyio.create_task_group() as group:
            with locked(store, "a"):
                for text in ("1", "2"):
                    group.start_soon(one.append, user(text))
                await busy(store)
                for text in ("3", "4", "5"):
                    await other.append(user(text))
                assert await texts(other) == ["first", "3", "4", "5"]
                assert await texts(one) == ["first"]
        assert sorted(await texts(one)) == ["1", "2", "first"]


@pytest.mark.parametrize("resumed", [False, True], ids=["queued", "threaded"])
async def test_a_locked_session_takes_no_thread_from_others_and_keeps_its_order(
    tmp_path: Path, resumed: bool
) -> None:
    """However many append to it; what was appended first is stored first."""
    numbers = list(map(str, range(40)))
    with open_store(f"file:{tmp_path}/store") as store:
        one, other = [await ready(store, id) for id in "ab"]
        if resumed:
            # What follows a resume is more than the queue can do.
            await one.close()
            one = await AsyncSession.open(store, "a")
        async with anyio.create_task_group() as group:
            with locked(store, "a"):
                for number in numbers:
                    group.start_soon(one.append, user(number))
                    # trio starts tasks in any order.
                    await anyio.sleep(0.002)
                await anyio.sleep(0.1)
                with anyio.fail_after(10):
                    assert await texts(other) == ["first"]
                    assert await texts(one) == ["first"]
                    await other.extend([user("more")])
        assert await texts(one) == ["first", *numbers]


async def test_a_postponed_append_can_be_cancelled(tmp_path: Path) -> None:
    """While the lock is held: it is not stored, and its task ends."""
    with open_store(f"file:{tmp_path}/store") as store:
        s = await ready(store, "a")
        async with anyio.create_task_group() as staying:
            with locked(store, "a"):
                staying.start_soon(s.append, user("stays"))
                async with anyio.create_task_group() as group:
                    group.start_soon(s.append, user("goes"))
                    with anyio.fail_after(10):
                        while len(list(store.queue.held)) < 2:
                            await anyio.sleep(0.001)
                        group.cancel_scope.cancel()
                assert await texts(s) == ["first"]
        assert await texts(s) == ["first", "stays"]


async def test_a_session_locked_for_long_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long wait, the caller gets the name of the holder, and can try again."""
    monkeypatch.setattr(opened, "WAIT", 0.3)
    with open_store(f"file:{tmp_path}/store") as store:
        s = await ready(store, "a")
        busy = pytest.raises(SessionBusy, match="session `a` is locked by")
        with locked(store, "a"), anyio.fail_after(10), busy as reported:
            await s.append(user("never"))
        assert reported.value.owner.pid == os.getpid()
        await s.append(user("again"))
        assert await texts(s) == ["first", "again"]


async def test_closing_a_store_ends_what_is_postponed(tmp_path: Path) -> None:
    """It gets `Closed`, though the lock is still held."""
    store = open_store(f"file:{tmp_path}/store")
    s = await ready(store, "a")
    reported: list[Closed] = []

    async def append() -> None:
        try:
            await s.append(user("never"))
        except Closed as error:
            reported.append(error)

    with locked(store, "a"), anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(append)
            while not list(store.queue.held):
                await anyio.sleep(0.001)
            await anyio.to_thread.run_sync(store.close)
    assert len(reported) == 1


@pytest.mark.usefixtures("patient")
async def test_a_cancelled_append_is_taken_back_or_finished(disk_url: str) -> None:
    """What the writer has begun is stored before the cancellation goes on; the rest is not."""
    with open_store(disk_url) as store:
        s = await ready(store, "s")
        ended: list[str] = []

        async def append(text: str) -> None:
            try:
                await s.append(user(text))
            finally:
                ended.append(text)

        async with anyio.create_task_group() as group:
            with locked(store, "s"):
                group.start_soon(append, "begun")
                await busy(store)
                for text in ("second", "third"):
                    group.start_soon(append, text)
                while store.queue._jobs.qsize() < 2:
                    await anyio.sleep(0.001)
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    while len(ended) < 2:
                        await anyio.sleep(0.001)
                    assert sorted(ended) == ["second", "third"]
        assert ended[-1] == "begun"
        assert await texts(s) == ["first", "begun"]
        await s.append(user("after"))
        assert await texts(s) == ["first", "begun", "after"]


async def test_an_error_is_raised_in_its_own_task(disk_url: str) -> None:
    """A session deleted under its feet is `NotFound` for it alone."""
    with open_store(disk_url) as store:
        sessions = {id: await ready(store, id) for id in "abc"}
        store.delete("b")
        reported: dict[str, str] = {}

        async def append(id: str) -> None:
            try:
                await sessions[id].append(user("more"))
                reported[id] = "stored"
            except NotFound:
                reported[id] = "gone"

        async with anyio.create_task_group() as group:
            for id in sessions:
                group.start_soon(append, id)
        assert reported == {"a": "stored", "b": "gone", "c": "stored"}


async def test_threads_and_tasks_publish_in_order(disk_url: str) -> None:
    """A subscriber misses nothing of what both append to one session, and gets it in order."""
    with open_store(disk_url) as store:
        s = await ready(store, "s")
        inner: Session = s._session
        with inner.subscribe(size=10_000) as listener:
            await s.append(user("begin"))

            def work() -> None:
                for number in range(60):
                    inner.append(user(f"thread {number}"))

            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()

            async def tasks() -> None:
                for number in range(60):
                    await s.append(user(f"task {number}"))

            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(tasks)
            for thread in threads:
                await anyio.to_thread.run_sync(thread.join)
            got = []
            while (item := listener.get(0)) is not None:
                assert isinstance(item, Event)
                got.append(item.seq)
        assert got == list(range(3, 3 + 1 + 6 * 60))


@pytest.mark.usefixtures("patient")
async def test_a_thread_waits_for_what_tasks_have_queued(disk_url: str) -> None:
    """Its event comes after theirs, in the log and for listeners."""
    with open_store(disk_url) as store:
        s = await ready(store, "s")
        with s._session.subscribe() as listener:
            await s.append(user("begin"))
            async with anyio.create_task_group() as group:
                with locked(store, "s"):
                    group.start_soon(s.append, user("task"))
                    await busy(store)
                    thread = threading.Thread(target=s._session.append, args=(user("thread"),))
                    thread.start()
                    await anyio.sleep(0.02)
            await anyio.to_thread.run_sync(thread.join)
            items = [listener.get(1) for _ in range(3)]
        said = [i.data["message"]["content"] for i in items if isinstance(i, Event)]
        assert said == ["begin", "task", "thread"]
        assert await texts(s) == ["first", *said]


@pytest.mark.usefixtures("patient")
async def test_closing_waits_for_what_is_queued(disk_url: str) -> None:
    """And what comes after it is refused."""
    with open_store(disk_url) as store:
        s = await ready(store, "s")
        async with anyio.create_task_group() as group:
            with locked(store, "s"):
                group.start_soon(s.append, user("more"))
                await busy(store)
                group.start_soon(s.close)
                await anyio.sleep(0.02)
        with pytest.raises(Closed):
            await s.append(user("late"))
        said = [event.data["message"]["content"] for event in store.read("s", after=1)]
        assert said == ["first", "more"]


async def test_appends_through_the_queue_reach_telemetry(disk_url: str) -> None:
    """Once each, with the session and how many there were."""
    with open_store(disk_url) as store:
        s = await ready(store, "s")
        heard: list[Signal] = []
        stop = telemetry.listen(heard.append)
        try:
            await s.append(user("more"))
            store.delete("s")
            with pytest.raises(NotFound):
                await s.append(user("never"))
        finally:
            stop()
        appended = [one for one in heard if one.name.startswith("store.")]
        assert [one.name for one in appended] == ["store.append", "store.error"]
        assert {one.metadata["session_id"] for one in appended} == {"s"}
        assert appended[0].measurements["count"] == 1


@pytest.mark.usefixtures("patient")
def test_a_loop_that_is_gone_leaves_a_session_that_works(disk_url: str) -> None:
    """What was on its way is stored, and the session can be used on and closed."""
    with open_store(disk_url) as store:
        loop = asyncio.new_event_loop()
        s = loop.run_until_complete(ready(store, "s"))
        with locked(store, "s"):
            task = loop.create_task(s.append(user("on its way")))
            loop.run_until_complete(busy(store))
            loop.close()
        store.queue.do(None)
        s._session.append(user("by a thread"))
        said = [str(message["content"]) for message in s._session.messages()]
        assert said == ["first", "on its way", "by a thread"]
        s._session.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
