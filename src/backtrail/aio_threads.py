"""Store calls in worker threads, and iterators over them that never block a loop.

A call once begun finishes, even if its task is cancelled meanwhile; then the cancellation
goes on. Waiting happens on the loop, holds no thread, and can be cancelled at any time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Generic, ParamSpec, TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar, checkpoint_if_cancelled

from .errors import Closed, SessionBusy
from .events import Event, Json
from .session import Session
from .sidelog import SideLog

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 16
"""How many store calls of all sessions of a loop run at a time."""

_PAGE = 256
_POLL = 0.05

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("backtrail.aio")


def _threads() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiter.set(limiter)
        return limiter


class _Call(Generic[T]):
    """A call on its way through a worker thread, made at most once and never forgotten."""

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn = fn
        self._mutex = threading.Lock()
        self._given_up = False
        self._value: list[T] = []
        self._error: BaseException | None = None
        self.begun = False
        self.done = False

    def __call__(self) -> None:
        with self._mutex:
            if self.begun or self._given_up:
                return
            self.begun = True
        try:
            self._value.append(self._fn())
        except BaseException as error:
            self._error = error
        self.done = True

    def give_up(self) -> bool:
        """Do not begin any more; False if it has begun."""
        with self._mutex:
            self._given_up = not self.begun
            return self._given_up

    def result(self) -> T:
        """What the call returned or raised."""
        if self._error is not None:
            raise self._error
        return self._value[0]


async def run(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `fn` in a worker thread; once begun it finishes, then a cancellation goes on."""
    return await _through(_Call(partial(fn, *args, **kwargs)), always=False)


async def finish(fn: Callable[[], None]) -> None:
    """Call `fn` in a worker thread even if the task is cancelled before or meanwhile."""
    with anyio.CancelScope(shield=True):
        await _through(_Call(fn), always=True)


async def _through(call: _Call[T], always: bool) -> T:
    stop: BaseException | None = None
    while not call.done:
        try:
            if call.begun:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.001)
            else:
                await to_thread.run_sync(call, limiter=_threads())
        except anyio.get_cancelled_exc_class() as error:
            if not always and call.give_up():
                raise
            # `asyncio.Task.cancel` breaks through a shield, while the thread works on.
            stop = error
    result = call.result()
    if stop is not None:
        raise stop
    await checkpoint_if_cancelled()
    return result


async def patient(attempt: Callable[[], Awaitable[object]], wait: float) -> None:
    """Try until nobody else drives the session, for `wait` seconds, without a thread."""
    deadline = anyio.current_time() + wait
    while True:
        try:
            await attempt()
            return
        except SessionBusy:
            if anyio.current_time() >= deadline:
                raise
        await anyio.sleep(0.02)


# --- iterators: objects, since trio warns of generators that are left half-way ------------


class Pages(AsyncIterator[Event]):
    """Events, read a page at a time in worker threads."""

    def __init__(self, begin: Callable[[], Iterator[Event]]) -> None:
        self._begin = begin
        self._events: Iterator[Event] | None = None
        self._page: deque[Event] = deque()

    async def __anext__(self) -> Event:
        if not self._page:
            await run(self._turn_page)
        if not self._page:
            raise StopAsyncIteration
        return self._page.popleft()

    def _turn_page(self) -> None:
        # Filled here, so that a cancelled step loses nothing.
        if self._events is None:
            self._events = self._begin()
        self._page.extend(islice(self._events, _PAGE))


class Follow(AsyncIterator[Event]):
    """Events as they come: looked for now and then, with nothing held in between."""

    def __init__(self, session: Session, after: int | None) -> None:
        self._session = session
        self._after = after
        # It is not for the loop to ask the store where the log ends now.
        self._begin = session._listen(1) if after is None else None
        self._page: deque[Event] = deque()

    async def __anext__(self) -> Event:
        while not self._page:
            if not await run(self._look):
                raise StopAsyncIteration
            if not self._page:
                await anyio.sleep(_POLL)
        event = self._page.popleft()
        self._after = event.seq
        return event

    def _look(self) -> bool:
        """Fill the page; False once the session is closed."""
        try:
            if self._begin is not None:
                self._session._begin_listening()
                self._after = self._begin.after or 0
                self._begin.close()
                self._begin = None
            self._page.extend(islice(self._session.events(after=self._after or 0), _PAGE))
        except Closed:
            return False
        return True


class AsyncSideLog:
    """A log beside the main one: raw streams, subagents. Appends are buffered."""

    def __init__(self, log: SideLog) -> None:
        self._log = log

    @property
    def name(self) -> str:
        """The name of the log."""
        return self._log.name

    async def append(
        self, data: Mapping[str, Json], *, kind: str = "entry", id: str | None = None
    ) -> Event:
        """Append an entry; its `seq` is 0 until it is written."""
        return await run(self._log.append, data, kind=kind, id=id)

    def read(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Event]:
        """The entries in order."""
        return Pages(partial(self._log.read, after=after, limit=limit))

    async def tail(self, n: int) -> list[Event]:
        """The last `n` entries, oldest first."""
        return await run(self._log.tail, n)

    async def flush(self) -> None:
        """Return when everything appended is on the disk."""
        await run(self._log.flush)


async def apart(fn: Callable[[], T]) -> T:
    """Call `fn` in a thread of its own, however long it takes; it is always waited for.

    Not in one of the threads for store calls: tools would keep those from all others.
    """
    call = _Call(fn)
    stop: BaseException | None = None
    while not call.done:
        try:
            with anyio.CancelScope(shield=True):
                if call.begun:
                    await anyio.sleep(0.002)
                else:
                    await to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class() as error:
            if call.give_up():
                raise
            # `asyncio.Task.cancel` breaks through a shield, while the thread works on.
            stop = error
    if stop is not None:
        raise stop
    return call.result()
