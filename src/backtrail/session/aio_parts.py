"""What an `AsyncSession` is made of, and what it hands out: subscriptions, streams, turns.

Waiting happens on the loop, reading in worker threads.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

import anyio

from ..events import Event, Json, NewEvent
from .aio_drive import Turning
from .listeners import Delta, Subscription
from .parts import Parts
from .threads import Loop, append, finish, patient, run, this_loop
from .toolcalls import Call
from .turnlog import Turn

if TYPE_CHECKING:
    from .aio import AsyncSession


P = ParamSpec("P")
T = TypeVar("T")


class AsyncParts:
    """Parts, and what the tasks that use them wait for."""

    def __init__(self, parts: Parts, wait: float) -> None:
        self.parts = parts
        self.wait = wait
        self.turning: Turning | None = None
        """The turn under way."""
        self.stoppable: anyio.CancelScope | None = None
        """What a cancelled turn puts an end to."""
        # Not a lock: a stream that is dropped may be closed by another task.
        self._turns = anyio.Semaphore(1)
        self._driving_task: int | None = None
        self._loop: Loop | None = None
        self._line = anyio.Lock()
        self._news: anyio.Event | None = None

    async def append(self, events: list[NewEvent], *, spans: bool = True) -> list[Event]:
        """Append to the main log, and wake the listeners."""
        if self._loop is None:
            self._loop = this_loop()
        try:
            return await append(self._loop, self._line, self.parts, events, spans=spans)
        finally:
            self.notify()

    async def write(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn` in a worker thread, and wake the listeners."""
        try:
            return await run(fn, *args, **kwargs)
        finally:
            self.notify()

    def notify(self) -> None:
        """Wake the listeners."""
        news, self._news = self._news, None
        if news is not None:
            news.set()

    def next_news(self) -> anyio.Event:
        """What is set when there is something new; made only where a task listens."""
        if self._news is None:
            self._news = anyio.Event()
        return self._news

    @asynccontextmanager
    async def driving(self) -> AsyncIterator[None]:
        """A turn or a rewind: one task at a time; a task may rewind within its own turn."""
        task = anyio.get_current_task().id
        if self._driving_task == task:
            yield
            return
        async with self._turns:
            held = ExitStack()
            lease = self.parts.lease
            try:
                await patient(lambda: run(lambda: held.enter_context(lease.taken(0))), self.wait)
                self._driving_task = task
                yield
            finally:
                self._driving_task = None
                await finish(held.close)

    @asynccontextmanager
    async def tool(
        self, name: str, input: Json, id: str | None,
        paths: Collection[str | os.PathLike[str]] | None,
    ) -> AsyncIterator[Call]:  # fmt: skip
        """A bracket around a tool call; see `Session.tool`."""
        capture, call = self.parts.capture, Call(name, input, id)
        await run(capture.recorder.drop_asked, id)
        bracket = await run(capture.begin_call, call, paths)
        try:
            yield call
        except BaseException as error:
            # A cancelled call is recorded too.
            await finish(partial(capture.end_call, call, bracket, error))
            self.notify()
            raise
        await finish(partial(capture.end_call, call, bracket, None))
        self.notify()


class AsyncStream(AsyncIterator[Delta | Event]):
    """What a turn shows, as it comes. The turn begins with the first step."""

    def __init__(self, turning: Turning) -> None:
        self._turning = turning

    async def __anext__(self) -> Delta | Event:
        return await anext(self._turning)

    async def aclose(self) -> None:
        """End the turn if it has not ended; twice is the same as once."""
        await self._turning.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._turning.forget()


class AsyncTurn:
    """A turn under way: what was said, and what is appended to it."""

    def __init__(self, session: AsyncSession, turn: Turn) -> None:
        self.session = session
        self._turn = turn

    @property
    def event(self) -> Event:
        """What the user said."""
        return self._turn.event

    @property
    def is_new(self) -> bool:
        """Whether it was said just now."""
        return self._turn.is_new

    @property
    def ended(self) -> bool:
        """Whether it needs no work any more."""
        return self._turn.ended

    async def append(self, message: object, **details: Json) -> Event:
        """Append one message of the turn; see `Session.append`."""
        return await self.session.append(message, **details)

    async def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append messages, or what is new in a whole conversation."""
        return await self.session.extend(messages)

    async def messages(self) -> list[dict[str, Json]]:
        """The whole conversation, this turn included."""
        return await self.session.messages()


class AsyncSubscription:
    """What happens in a session from now on, until `close` or the session's end."""

    def __init__(self, parts: AsyncParts, size: int, after: int | None) -> None:
        self._parts = parts
        self._log = parts.parts.log
        self._inner: Subscription = self._log.listeners.add(size, after)

    @property
    def lost_deltas(self) -> int:
        """How many deltas did not fit into the queue."""
        return self._inner.lost_deltas

    async def _begun(self) -> Subscription:
        if self._inner.after is None and not self._inner.closed:
            await run(self._log.begin_listening)
        return self._inner

    async def get(self, timeout: float | None = None) -> Event | Delta | None:
        """The next event or delta; None after `timeout` seconds or when closed."""
        inner = await self._begun()
        with anyio.move_on_after(timeout):
            while True:
                news = self._parts.next_news()
                item = inner.take()
                if item is None and inner.behind:
                    await run(inner.fill)
                    continue
                if item is not None or inner.closed:
                    return item
                await news.wait()
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | Delta:
        item = await self.get()
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """End the subscription; what is queued can still be taken."""
        await finish(self._inner.close)
        self._parts.notify()

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
