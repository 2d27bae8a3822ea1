"""Listening to an AsyncSession: nothing is lost between asking and the first step."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from backtrail import AsyncSession, Buffered, Delta, Event, Session, Unsupported, open_store
from backtrail.events import Json
from backtrail.stores.wrapper import Wrapper

from .talking import user

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each test runs under both."""
    name: str = request.param
    return name


async def test_a_subscription_begins_when_it_is_asked_for(url: str) -> None:
    """What comes before its first step is in it, what was there before is not."""
    async with await AsyncSession.create(url, "s") as s:
        old = await s.append(user("old"), id="known")
        listening = s.subscribe()
        assert await s.append(user("old"), id="known") == old
        first = await s.append(user("first"))
        await s.emit(Delta("text"))
        second = await s.append(user("second"))
        got = [await listening.get(timeout=5) for _ in range(3)]
        assert got == [first, Delta("text"), second]
        assert await listening.get(timeout=0.01) is None
        await listening.close()


async def test_a_slow_subscription_reads_what_it_missed_before_its_first_step(url: str) -> None:
    """Also where events get their numbers later."""
    async with await AsyncSession.create(Buffered(open_store(url)), "s") as s:
        await s.append(user("old"))
        listening = s.subscribe(size=2)
        for number in range(10):
            await s.append(user(str(number)))
        got = [await listening.get(timeout=5) for _ in range(10)]
        assert [item.seq for item in got if isinstance(item, Event)] == list(range(3, 13))
        s.store.close()


async def test_follow_begins_when_it_is_asked_for(url: str) -> None:
    """With the next event of this session; others count from the first step on."""
    async with await AsyncSession.create(url, "s") as s:
        await s.append(user("old"))
        following = s.follow()
        events = [await s.append(user(str(number))) for number in range(3)]
        assert [await anext(following) for _ in range(3)] == events
        later = s.follow()
        with anyio.move_on_after(0.05):
            await anext(later)
        with Session.resume(s.store, "s") as other:
            event = other.append(user("by others"))
        assert [(await anext(later)).kind, await anext(later)] == ["session_resume", event]


async def test_asking_never_waits_for_the_store() -> None:
    """The loop goes on: where the log ends is asked in a thread."""

    class Unread(Wrapper):
        """A store that must not be read now."""

        shut = False

        def read(self, *args: Json, **options: Json) -> Iterator[Event]:
            assert not self.shut
            return super().read(*args, **options)

    store = Unread(open_store("memory:"))
    async with await AsyncSession.create(store, "s") as s:
        store.shut = True
        listening, following = s.subscribe(), s.follow()
        store.shut = False
        event = await s.append(user("hi"))
        assert await listening.get(timeout=5) == await anext(following) == event


async def test_a_plain_session_cannot_wait_for_an_asynchronous_agent_here() -> None:
    """Under either loop, it says what to use."""

    async def agent(turn: Json) -> Json:
        yield {"role": "assistant", "content": "hi"}

    with (
        Session.open("memory:", agent=agent) as s,
        pytest.raises(Unsupported, match="AsyncSession"),
    ):
        s.send("hello")
