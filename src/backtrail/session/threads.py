"""Store calls in worker threads, and iterators over them that never block a loop.

A call once begun finishes, even if its task is cancelled meanwhile; then the cancellation
goes on. Waiting happens on the loop, holds no thread, and can be cancelled at any time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar, checkpoint_if_cancelled

from ..errors import Closed, SessionBusy
from ..events import Event, Json, NewEvent
from ..stores.batches import Call
from ..stores.queue import Job, Postponed
from .awaiting import is_within_trio
from .log import SessionLog, SideLog
from .parts import Parts

Queued = Job[Call, list[Event]]
"""An append that the store's queue has, and an event for the task that waits for it."""

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 16
"""How many store calls of all sessions of a loop read at a time, and how many others run.

A call that writes may wait for a lock; those that only read have threads of their own.
"""

ROUND = 32
"""How many tasks go on in one round of the loop, of those whose appends were written together."""

_PAGE = 256
_POLL = 0.05

Threads = RunVar[anyio.CapacityLimiter]

_readers: Threads = RunVar("backtrail.aio.readers")
_writers: Threads = RunVar("backtrail.aio.writers")


def _of_loop(threads: Threads) -> anyio.CapacityLimiter:
    try:
        return threads.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS)
        threads.set(limiter)
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
    call = _Call(partial(fn, *args, **kwargs))
    return await _over(call, await _through(call, _of_loop(_writers)))


async def read(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`run` of what waits for no lock."""
    call = _Call(partial(fn, *args, **kwargs))
    return await _over(call, await _through(call, _of_loop(_readers)))


async def finish(fn: Callable[[], None]) -> None:
    """Call `fn` in a worker thread even if the task is cancelled before or meanwhile."""
    with anyio.CancelScope(shield=True):
        call = _Call(fn)
        await _over(call, await _through(call, _of_loop(_writers), always=True))


async def apart(fn: Callable[[], T]) -> T:
    """Call `fn` in a thread of its own, however long it takes; it is always waited for.

    Not in one of the threads for store calls: tools would keep those from all others.
    """
    call = _Call(fn)
    with anyio.CancelScope(shield=True):
        stop = await _through(call, anyio.CapacityLimiter(1))
    if stop is not None:
        raise stop
    return call.result()


async def _through(
    call: _Call[T], limiter: anyio.CapacityLimiter, *, always: bool = False
) -> BaseException | None:
    """Have a call made; a cancellation that came meanwhile is returned."""
    stop: BaseException | None = None
    while not call.done:
        try:
            if call.begun:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.001)
            else:
                await to_thread.run_sync(call, limiter=limiter)
        except anyio.get_cancelled_exc_class() as error:
            if not always and call.give_up():
                raise
            # `asyncio.Task.cancel` breaks through a shield, while the thread works on.
            stop = error
    return stop


async def _over(call: _Call[T], stop: BaseException | None) -> T:
    result = call.result()
    if stop is not None:
        raise stop
    await checkpoint_if_cancelled()
    return result


# --- appends: no thread, but a place in the queue of the store ------------------------------


class Loop:
    """The loop of some sessions, as the writer of a store knows it."""

    def __init__(self) -> None:
        # In the next round: by any thread, and by one of the loop's own.
        self._soon: Callable[..., object]
        self._next: Callable[..., object]
        # Those of anyio take longer to make than an append.
        self.event: Callable[[], asyncio.Event | Any]
        if is_within_trio():
            import trio

            self._soon = self._next = trio.lowlevel.current_trio_token().run_sync_soon
            self.event = trio.Event
        else:
            loop = asyncio.get_running_loop()
            self._soon, self._next = loop.call_soon_threadsafe, loop.call_soon
            self.event = asyncio.Event

    def arrived(self, jobs: list[Queued]) -> None:
        """Wake the tasks whose appends are done."""
        try:
            self._soon(self._arrive, iter(jobs))
        except RuntimeError:
            # The loop has ended, and all its tasks with it.
            return

    def _arrive(self, jobs: Iterator[Queued]) -> None:
        """Wake some of them, and the others in the next rounds: all else has its turn between."""
        some = list(islice(jobs, ROUND))
        for job in some:
            job.waiter.set()
        if len(some) == ROUND:
            self._next(self._arrive, jobs)


_loop: RunVar[Loop] = RunVar("backtrail.aio.loop")


def this_loop() -> Loop:
    """The loop that runs: all its sessions have the same, so that one call wakes all tasks."""
    try:
        return _loop.get()
    except LookupError:
        loop = Loop()
        _loop.set(loop)
        return loop


async def append(
    loop: Loop, line: anyio.Lock, parts: Parts, events: list[NewEvent], *, spans: bool = True
) -> list[Event]:
    """`Capture.append`: by the queue of the store where it can, else in a worker thread.

    The appends of a session that need a thread stand in `line`: they would wait for each other in
    as many threads, and go on in any order.
    """
    job: Queued = Job(None, loop.arrived, loop.event())
    if line.locked() or not parts.capture.enqueue(events, job, spans=spans):
        async with line:
            return await run(parts.capture.append, events, spans=spans)
    try:
        await job.waiter.wait()
    except BaseException as stop:
        await _brought_down(job, stop)
        parts.log.land()
        if not isinstance(job.outcome, Postponed):
            job.result()
        raise
    parts.log.land()
    return job.result() or []


async def _brought_down(job: Queued, stop: BaseException) -> None:
    """Take an append back whose task is cancelled, or wait for it if it has begun."""
    if job.take_back():
        job.outcome = stop
    while job.outcome is None:
        try:
            with anyio.CancelScope(shield=True):
                await job.waiter.wait()
        except anyio.get_cancelled_exc_class():
            # `asyncio.Task.cancel` breaks through a shield, while the writer works on.
            continue


async def patient(attempt: Callable[[], Awaitable[object]], wait: float) -> None:
    """Try until no other driver has the session, for `wait` seconds, without a thread."""
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
            await read(self._turn_page)
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

    def __init__(self, log: SessionLog, after: int | None) -> None:
        self._log = log
        self._after = after
        # It is not for the loop to ask the store where the log ends now.
        self._begin = log.listeners.add(1) if after is None else None
        self._page: deque[Event] = deque()

    async def __anext__(self) -> Event:
        while not self._page:
            if not await read(self._look):
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
                self._log.begin_listening()
                self._after = self._begin.after or 0
                self._begin.close()
                self._begin = None
            self._page.extend(islice(self._log.events(after=self._after or 0), _PAGE))
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
