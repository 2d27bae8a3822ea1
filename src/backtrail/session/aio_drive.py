"""A turn of an `AsyncSession`: the asynchronous driver of the turn engine.

Asynchronous agents, models and tools run on the caller's loop; store calls, scans, plain
tools and plain agents in worker threads.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import from_thread

from ..errors import Closed, Conflict, Unsupported
from ..events import Event, Json
from . import turns as requests
from .flows import AsyncFlow, Reading, SyncFlow, checked_flow
from .listeners import Delta
from .liveturn import Agent, Around, T, stopped
from .threads import apart, run
from .turnlog import Opened
from .turns import (
    Cancelled,
    Engine,
    Failed,
    Job,
    Limits,
    LiveTurn,
    Result,
    check_job,
    engine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .aio_parts import AsyncParts
    from .session import Session
    from .toolcalls import Call


class Turning(AsyncIterator[Delta | Event]):
    """A turn under way: carries out what the engine asks for, and gives what it shows.

    No generators here: a cancellation goes into the engine, which ends the turn.
    """

    def __init__(
        self,
        owner: AsyncParts,
        begin: Callable[[], Opened],
        model: str | None,
        limits: Limits,
    ) -> None:
        self._owner = owner
        self._driver = owner.parts.driver
        self._log = owner.parts.log
        self._begin = begin
        self._model = model
        self._limits = limits
        self._held: AbstractAsyncContextManager[None] | None = None
        self._opened: Opened | None = None
        self._engine: Engine | None = None
        self._turn: LiveTurn | None = None
        self._recorded: list[Event | Delta] = []
        self._is_over = False
        self._is_left = False
        self._task: int | None = None
        self.is_forgotten = False
        self.result: Result | None = None

    async def finished(self) -> Result:
        """Run to the end."""
        try:
            async for _ in self:
                pass
        finally:
            await self.aclose()
        assert self.result is not None
        return self.result

    async def __anext__(self) -> Delta | Event:
        if self._is_over:
            raise StopAsyncIteration
        if self._held is None:
            await self._start()
        if self._recorded:
            return self._recorded.pop(0)
        self._driver.close_stream = None
        item = await self._on(None) if self._engine is not None else None
        if item is None:
            self._is_over = True
            raise StopAsyncIteration
        self._driver.close_stream = partial(from_thread.run, self._end_with_session)
        return item

    async def aclose(self) -> None:
        """End the turn if it has not ended; twice is the same as once."""
        if self._held is None or self._is_over:
            return
        self._driver.close_stream = None
        try:
            if self._engine is not None:
                await self._on(GeneratorExit())
        except (GeneratorExit, Closed):
            pass
        finally:
            self._is_over = True
            await self._leave()

    def forget(self) -> None:
        """The stream was dropped: no further step comes."""
        self.is_forgotten = True
        if not self._is_over and self._engine is not None:
            self._driver.cancel()

    async def _end_with_session(self) -> None:
        try:
            await self.aclose()
        except RuntimeError:
            # The lock belongs to the task that took it; no task waits for it any more.
            return

    # --- beginning and ending ------------------------------------------------------------

    async def _start(self) -> None:
        owner, driver = self._owner, self._driver
        self._log.check_open()
        self._task = anyio.get_current_task().id
        before = owner.turning
        if before is not None and before.is_forgotten:
            await before.aclose()
        elif before is not None and before._task == self._task:
            raise Conflict(
                f"a turn of session `{self._log.id}` is under way here: let it end first"
            )
        held = owner.driving()
        await held.__aenter__()
        self._held = held
        owner.turning = self
        try:
            opened = self._opened = await run(self._begin)
            owner.notify()
            if opened.agent is None:
                await self._recall(opened)
                return
            self._turn = driver.begun(opened.event, self._model, self._limits, _Host(owner))
            if driver.turns.close_agent is not None and hasattr(opened.agent, "aclose"):
                driver.turns.close_agent = partial(from_thread.run, opened.agent.aclose)
            first = opened.event if opened.is_new else None
            self._engine = engine(self._turn, opened.agent, first)
        except BaseException:
            self._is_over = True
            await self._leave()
            raise

    async def _recall(self, opened: Opened) -> None:
        """A turn that has ended: its events and its result come from the log."""
        assert opened.ended is not None
        ended = opened.ended
        self._recorded += await run(self._log.since, opened.event, ended.seq)
        result = self.result = await run(self._driver.turns.result_of, opened.event, ended)
        data = {"exit_reason": result.exit_reason, "usage": result.usage}
        self._recorded.append(Delta("done", data))
        await self._leave()

    async def _leave(self) -> None:
        """Let others have their turn."""
        if self._owner.turning is not self:
            return
        self._owner.turning = None
        held = self._held
        assert held is not None
        with anyio.CancelScope(shield=True):
            try:
                if self._turn is not None:
                    await run(self._driver.abandon)
            finally:
                await held.__aexit__(None, None, None)

    # --- the driver ----------------------------------------------------------------------

    async def _on(self, error: BaseException | None) -> Delta | Event | None:
        """Go on to the next thing to be shown; None at the end."""
        todo, turn = self._engine, self._turn
        assert todo is not None and turn is not None
        answer: requests.Answer = None
        self._is_left = error is not None
        try:
            while True:
                try:
                    request = todo.send(answer) if error is None else todo.throw(error)
                except StopIteration as stop:
                    assert self._opened is not None
                    event = self._opened.event
                    self.result = await run(self._driver.turns.result_of, event, stop.value)
                    break
                answer = error = None
                if isinstance(request, (requests.Notify, requests.Show)):
                    item = self._shown(request)
                    if not self._is_left:
                        return item
                    continue
                try:
                    with anyio.CancelScope(shield=self._is_left):
                        answer = await self._perform(turn, request)
                except BaseException as failed:
                    error = failed
                    # The caller does not see the rest, and it must not be cut short.
                    self._is_left = self._is_left or not isinstance(failed, Exception)
        except BaseException:
            self._is_over = True
            await self._leave()
            raise
        await self._leave()
        return None

    def _shown(self, request: requests.Notify | requests.Show) -> Delta | Event:
        if isinstance(request, requests.Notify):
            self._driver.notify(request.delta)
        self._owner.notify()
        return request.delta if isinstance(request, requests.Notify) else request.event

    async def _perform(self, turn: LiveTurn, request: requests.Todo) -> requests.Answer:
        """Carry out one request."""
        if isinstance(request, requests.Step):
            return await self._step(turn, request)
        if isinstance(request, requests.Next):
            with self._stoppable(turn):
                return await _part(request.parts)
            raise stopped(turn)
        if isinstance(request, requests.Append):
            return (await self._owner.append([request.event], spans=request.spans))[0]
        if isinstance(request, requests.Open):
            return request.ask.model.astream(request.ask.request)
        if isinstance(request, requests.Run):
            return await self._run_jobs(turn, request.jobs)
        if isinstance(request, requests.Finish):
            return await run(self._driver.finish, turn, request.end)
        if isinstance(request, requests.Start):
            flow = checked_flow(await apart(partial(_started, request.agent, turn)))
            turn.is_async = hasattr(flow, "__anext__")
            return AsyncFlow(flow) if turn.is_async else SyncFlow(flow)
        if isinstance(request, requests.Shut):
            return await _shut(request.what)
        if isinstance(request, requests.Do):
            return await self._do(turn, request)
        assert isinstance(request, requests.Pause)
        with self._stoppable(turn):
            await anyio.sleep(request.seconds)
            return None
        raise stopped(turn)

    @contextmanager
    def _stoppable(self, turn: LiveTurn) -> Iterator[None]:
        """What `AsyncSession.cancel` and the turn's time put an end to."""
        left = turn.left()
        deadline = float("inf") if left is None else anyio.current_time() + left
        with anyio.CancelScope(deadline=deadline) as scope:
            self._owner.stoppable = scope
            try:
                turn.check()
                yield
            finally:
                self._owner.stoppable = None

    async def _step(self, turn: LiveTurn, request: requests.Step) -> object:
        flow, answer = request.flow, request.answer
        if not isinstance(flow, AsyncFlow):
            return await apart(partial(flow.advance, answer))
        with self._stoppable(turn):
            return await flow.advance(answer)
        raise stopped(turn)

    async def _do(self, turn: LiveTurn, request: requests.Do) -> Json:
        try:
            if request.later is None:
                return await apart(request.now)
            with self._stoppable(turn):
                return await request.later()
        except Cancelled:
            raise
        except Exception as error:
            return Failed(error)
        raise stopped(turn)

    # --- tools ---------------------------------------------------------------------------

    async def _run_jobs(self, turn: LiveTurn, jobs: list[Job]) -> list[Event]:
        """Run tools; all have ended when this returns or raises."""
        events: dict[int, Event] = {}
        errors: list[Exception] = []

        running = anyio.CancelScope()

        async def one(at: int, job: Job) -> None:
            try:
                events[at] = await self._run_job(job)
            except Exception as error:
                errors.append(error)
                self._driver.cancel()
            self._owner.notify()
            if len(events) + len(errors) == len(jobs):
                running.cancel()

        async def watch() -> None:
            # A tool in a thread can see a cancellation; it is waited for all the same.
            try:
                with running:
                    await anyio.sleep_forever()
            finally:
                if len(events) < len(jobs):
                    self._driver.cancel()

        with self._stoppable(turn):
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                for at, job in enumerate(jobs):
                    group.start_soon(one, at, job)
        if errors:
            raise errors[0]
        if len(events) < len(jobs):
            raise stopped(turn)
        return [events[at] for at in range(len(jobs))]

    async def _run_job(self, job: Job) -> Event:
        if not job.is_async:
            done: Event = await apart(partial(self._driver.run_job, job))
            return done
        call: Call | None = None
        given = job.call
        try:
            async with self._owner.tool(given.name, given.arguments, given.id, job.paths) as call:
                check_job(job, self._driver.turns.cancelled.is_set())
                call.result = await job.run()
        except Exception:
            # An error is recorded with the call, and goes to the model.
            if call is None or call.event is None:
                raise
        assert call.event is not None
        return call.event


class _Host:
    """What a turn needs of an asynchronous driver."""

    def __init__(self, owner: AsyncParts) -> None:
        self._owner = owner
        self._loop = threading.get_ident()

    @property
    def session(self) -> Session:
        return self._owner.parts.driver.session

    def notify(self, delta: Delta) -> None:
        self._owner.parts.driver.notify(delta)
        if threading.get_ident() == self._loop:
            self._owner.notify()
            return
        try:
            from_thread.run_sync(self._owner.notify)
        except RuntimeError:
            # A thread of the agent's own: listeners hear of it at the next step.
            return

    def bracket(self, name: str, input: Json, options: dict[str, Json]) -> Around:
        plain = self._owner.parts.capture.tool(name, input, **options)
        return Around(plain, self._owner.tool(name, input, **options))

    def wait_for(self, make: Callable[[], Awaitable[T]]) -> T:
        async def wait() -> T:
            return await make()

        return from_thread.run(wait)

    def later(self, read: Callable[[], T]) -> Awaitable[T]:
        return run(read)


def _started(agent: Agent, turn: LiveTurn) -> object:
    # Read here and kept: an agent asks for it on the loop.
    _ = turn.workspace
    return agent(turn)


async def _part(parts: Reading | AsyncIterator[object]) -> object:
    assert not isinstance(parts, Reading)
    try:
        return await anext(parts)
    except StopAsyncIteration:
        return Failed(Unsupported("the model ended its stream without a reply"))
    except Exception as error:
        return Failed(error)


async def _shut(what: object) -> None:
    with anyio.CancelScope(shield=True):
        if hasattr(what, "aclose"):
            await what.aclose()
        elif hasattr(what, "close"):
            await apart(what.close)
