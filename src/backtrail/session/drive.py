"""Driving a session: one turn or rewind at a time in this process, one driver in all.

`Driver` is the synchronous driver of the turn engine, `AsyncSession` has its own.
Every message is in the log before the next step begins. A turn ends with a `turn_end` event
that says why; a turn without one was cut short, and `proceed` finishes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from ..errors import BacktrailError, Conflict
from ..events import Event, Json
from . import turns as requests
from .capture import Capture
from .flows import Failed, Reading, SyncFlow
from .listeners import Delta
from .liveturn import Around, LiveTurn, TurnHost
from .log import SessionLog
from .turnlog import Opened, TurnLog
from .turns import (
    Content,
    End,
    Engine,
    Job,
    Limits,
    Result,
    Retry,
    check_job,
    engine,
    limits_of,
    said_by_user,
)

if TYPE_CHECKING:
    from .session import Session


T = TypeVar("T")

LeaseMode = Literal["turn", "session"] | None
"""For how long the lease is held: each turn, the whole session, or never."""


class Order:
    """One after another, like an `RLock`; but it may be left in another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def is_mine(self) -> bool:
        """Whether this thread has it."""
        return self._owner == threading.get_ident()

    def is_others(self) -> bool:
        """Whether another thread has it."""
        return self._owner not in (None, threading.get_ident())

    def claim(self) -> None:
        """From now on this thread has it, if one has: what it does goes on here."""
        if self._owner is not None:
            self._owner = threading.get_ident()

    def __enter__(self) -> None:
        if not self.is_mine():
            self._lock.acquire()
            self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._lock.release()


class DrivingLease:
    """The lease of a session, as its `mode` says; `wait` seconds are waited for it."""

    def __init__(self, log: SessionLog, mode: LeaseMode = "turn", wait: float = 0.0) -> None:
        self.mode: LeaseMode = mode
        self.wait = wait
        self.order = Order()
        self.depth = 0
        """How many blocks are driving, one within another."""
        self._log = log

    def after_fork(self) -> None:
        """Leave to the parent what it drives; a turn here takes the lease.

        Blocks that the forking thread is in keep the locks they took.
        """
        self.order = Order()
        self.depth = 0
        if self.mode == "session":
            self.mode = "turn"

    def hold(self) -> None:
        """Take the lease that is held until the log is closed, if this one is."""
        if self.mode == "session":
            self._log.held.enter_context(self._log.store.lease(self._log.id, wait=self.wait))

    @contextmanager
    def driving(self) -> Iterator[None]:
        """A turn or a rewind: one at a time in this process, one driver in all."""
        with self.order, self.taken(self.wait):
            yield

    @contextmanager
    def taken(self, wait: float) -> Iterator[None]:
        """The lease while driving; a rewind within a turn of this session is under the turn's.

        The caller keeps others out. No thread owns this: it may be left in another one.
        """
        self._log.check_open()
        with ExitStack() as stack:
            if self.mode == "turn" and self.depth == 0:
                stack.enter_context(self._log.store.lease(self._log.id, wait=wait))
            self.depth += 1
            try:
                yield
            finally:
                # A fork within the block began anew.
                self.depth = max(0, self.depth - 1)


_PATIENCE = 5.0


class Driver:
    """Runs the turns of a session: its agent answers.

    `session` is what the agent sees of it.
    """

    session: Session

    def __init__(
        self, log: SessionLog, capture: Capture, lease: DrivingLease, turns: TurnLog
    ) -> None:
        self.turns = turns
        self.live: LiveTurn | None = None
        self.close_stream: Callable[[], None] | None = None
        """Ends the turn of a stream that is under way, before the session is closed."""
        self._log = log
        self._capture = capture
        self._lease = lease

    def after_fork(self) -> None:
        """Leave the turn under way to the parent, too."""
        self.turns.new_turn()
        self.live = self.close_stream = None

    def finished(
        self, begin: Callable[[], Opened], model: str | None = None,
        max_turns: int | None = None, budget: float | Limits | None = None,
    ) -> Result:  # fmt: skip
        """Run the turn that `begin` finds or begins to its end."""
        flow = self._sent(begin, model, limits_of(max_turns, budget))
        while True:
            try:
                next(flow)
            except StopIteration as stop:
                result: Result = stop.value
                return result

    def streamed(
        self, begin: Callable[[], Opened], model: str | None = None,
        max_turns: int | None = None, budget: float | Limits | None = None,
    ) -> Iterator[Delta | Event]:  # fmt: skip
        """The same, giving every delta and event as it comes."""
        return self._claiming(self._sent(begin, model, limits_of(max_turns, budget)))

    def saying(self, content: Content, id: str | None, retry: Retry) -> Callable[[], Opened]:
        """What begins a turn with what a user says, or finds it."""
        return partial(self.turns.open_send, said_by_user(content), id, retry)

    def proceeding(self, pending: Literal["fail", "retry"]) -> Callable[[], Opened]:
        """What finds the turn that a crash cut short."""
        return partial(self.turns.open_proceed, pending)

    def _claiming(
        self, flow: Generator[Delta | Event, None, Result]
    ) -> Generator[Delta | Event, None, None]:
        """A flow whose every step may be in another thread; closing the session ends it."""
        order = self._lease.order
        try:
            item = next(flow)
            while True:
                self.close_stream = flow.close
                yield item
                self.close_stream = None
                order.claim()
                item = next(flow)
        except StopIteration:
            return
        except GeneratorExit:
            self.close_stream = None
            order.claim()
            flow.close()
            raise

    def cancel(self) -> None:
        """End the turn under way, with `interrupted`; tools that run are stopped."""
        self.turns.cancelled.set()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """End the turn under way, close what the block closes, then the agent."""
        try:
            if self.close_stream is not None:
                self.close_stream()
            self.abandon()
            yield
        finally:
            closer, self.turns.close_agent = self.turns.close_agent, None
            if closer is not None:
                closer()

    # --- the driver ----------------------------------------------------------------------

    def _sent(
        self, begin: Callable[[], Opened], model: str | None, limits: Limits
    ) -> Generator[Delta | Event, None, Result]:
        self._log.check_open()
        if self.live is not None and self._lease.order.is_mine():
            id = self._log.id
            raise Conflict(f"a turn of session `{id}` is under way here: let it end first")
        with self._lease.driving():
            opened = begin()
            if opened.agent is None:
                assert opened.ended is not None
                yield from self._log.since(opened.event, opened.ended.seq)
                result = self.turns.result_of(opened.event, opened.ended)
                yield Delta("done", {"exit_reason": result.exit_reason, "usage": result.usage})
                return result
            turn = self.begun(opened.event, model, limits, self)
            first = opened.event if opened.is_new else None
            try:
                ended = yield from carry_out(turn, engine(turn, opened.agent, first), self)
            finally:
                self.abandon()
            return self.turns.result_of(opened.event, ended)

    def begun(self, event: Event, model: str | None, limits: Limits, host: TurnHost) -> LiveTurn:
        """A turn begins: what its agent sees."""
        turns = self.turns
        self.live = LiveTurn(
            self._log, self._capture, event, limits, turns.cancelled.is_set, model, host,
            turns.recall,
        )  # fmt: skip
        return self.live

    # --- what a turn needs of its host ---------------------------------------------------

    def bracket(self, name: str, input: Json, options: dict[str, Json]) -> Around:
        """A bracket around a tool call."""
        return Around(self._capture.tool(name, input, **options))

    def wait_for(self, make: Callable[[], Awaitable[T]]) -> T:
        """The result of something to be awaited, on a loop of its own."""
        from .awaiting import awaited

        return awaited(make)

    async def later(self, read: Callable[[], T]) -> T:
        """What a call gives; the loop has nothing else to do."""
        return read()

    # --- what needs the log --------------------------------------------------------------

    def notify(self, delta: Delta) -> None:
        """Hand a delta to the listeners."""
        self._log.listeners.put(delta)

    def append(self, request: requests.Append) -> Event:
        """Append an event of the turn."""
        return self._capture.append([request.event], spans=request.spans)[0]

    def do(self, request: requests.Do) -> Json:
        """Call something for the agent."""
        return request.now()

    def finish(self, turn: LiveTurn, end: End) -> Event:
        """Record the end of the turn."""
        return self.turns.finish(turn, end)

    def run(self, jobs: list[Job]) -> list[Event]:
        """Run tools, each in a bracket; all have ended when this returns or raises."""
        if len(jobs) == 1:
            return [self.run_job(jobs[0])]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(jobs), "backtrail-tool") as pool:
            waiting = [pool.submit(self.run_job, job) for job in jobs]
            try:
                return [future.result() for future in waiting]
            except BaseException:
                self.turns.cancelled.set()
                raise

    def run_job(self, job: Job) -> Event:
        """Run one tool; what it raises is its result, unless the turn is to end."""
        call = None
        try:
            with self._capture.tool(
                job.call.name, job.call.arguments, id=job.call.id, paths=job.paths
            ) as call:
                check_job(job, self.turns.cancelled.is_set())
                call.result = self.wait_for(job.run) if job.is_async else job.run()
        except Exception:
            # An error is recorded with the call, and goes to the model.
            if call is None or call.event is None:
                raise
        assert call.event is not None
        return call.event

    # --- the end -------------------------------------------------------------------------

    def abandon(self) -> None:
        """A turn without a driver has ended, such as one in a stream left behind."""
        turn = self.live
        if turn is None or self._log.closed:
            return
        self.turns.cancelled.set()
        deadline = time.monotonic() + _PATIENCE
        while self._lease.order.is_others() and self.live is turn and time.monotonic() < deadline:
            time.sleep(0.01)
        self.live = None
        if not turn.finished:
            try:
                self.turns.finish(turn, End("interrupted", "the turn was left"))
            except BacktrailError as error:
                self._log.complain("turn", str(error))
        self.turns.recall.forget()


_TICK = 0.05


class Target(Protocol):
    """Where a turn is recorded, and what runs its tools."""

    def notify(self, delta: Delta) -> None:
        """Hand a delta to the listeners."""

    def append(self, request: requests.Append) -> Event:
        """Append an event."""

    def run(self, jobs: list[Job]) -> list[Event]:
        """Run tools; an event for each."""

    def do(self, request: requests.Do) -> Json:
        """Call something for the agent."""

    def finish(self, turn: LiveTurn, end: End) -> Event:
        """Record the end of the turn."""


def carry_out(
    turn: LiveTurn, todo: Engine, target: Target
) -> Generator[Delta | Event, None, Event]:
    """Carry out what the engine asks for, and give what it shows; the event that ends the turn.

    What goes wrong is thrown into the engine.
    """
    answer: requests.Answer = None
    error: BaseException | None = None
    is_left = False
    while True:
        try:
            request = todo.send(answer) if error is None else todo.throw(error)
        except StopIteration as stop:
            ended: Event = stop.value
            return ended
        answer = error = None
        try:
            if isinstance(request, requests.Notify):
                target.notify(request.delta)
            if not isinstance(request, (requests.Notify, requests.Show)):
                answer = _perform(turn, request, target)
            elif not is_left:
                yield request.delta if isinstance(request, requests.Notify) else request.event
        except BaseException as failed:
            error = failed
            is_left = is_left or isinstance(failed, GeneratorExit)


def _perform(turn: LiveTurn, request: requests.Todo, target: Target) -> requests.Answer:
    """Carry out one request."""
    if isinstance(request, requests.Step):
        return request.flow.advance(request.answer)
    if isinstance(request, requests.Next):
        assert isinstance(request.parts, Reading)
        return request.parts.next(turn.check)
    if isinstance(request, requests.Append):
        return target.append(request)
    if isinstance(request, requests.Open):
        ask = request.ask
        return Reading(lambda: ask.model.stream(ask.request))
    if isinstance(request, requests.Run):
        return target.run(request.jobs)
    if isinstance(request, requests.Finish):
        return target.finish(turn, request.end)
    if isinstance(request, requests.Start):
        flow = request.agent(turn)
        turn.is_async = hasattr(flow, "__anext__")
        return SyncFlow(flow)
    if isinstance(request, requests.Shut):
        return request.what.close() if hasattr(request.what, "close") else None
    if isinstance(request, requests.Do):
        try:
            return target.do(request)
        except Exception as error:
            return Failed(error)
    assert isinstance(request, requests.Pause)
    end = time.monotonic() + request.seconds
    while (left := end - time.monotonic()) > 0:
        turn.check()
        time.sleep(min(left, _TICK))
    return None
