"""Sending: a session with an agent answers. The synchronous driver of the turn engine.

Every message is in the log before the next step begins. A turn ends with a `turn_end` event
that says why; a turn without one was cut short, and `proceed` finishes it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Literal

from ..errors import BacktrailError, Conflict
from ..events import Event, Json
from ..stores.base import Store
from .listeners import Delta
from .live import Around, Failed, LiveTurn, Reading, SyncFlow, since
from .options import SessionOptions
from .turnlog import Opened, TurnLog
from .turns import (
    Append,
    Do,
    End,
    Engine,
    Finish,
    Job,
    Limits,
    Next,
    Open,
    Order,
    Pause,
    Result,
    Retry,
    Run,
    Show,
    Shut,
    Start,
    Step,
    Tell,
    Todo,
    check_job,
    engine,
    limits_of,
    said_by_user,
)
from .turns import Content as Content

_PATIENCE = 5.0


class Sending(TurnLog):
    """A session that its agent answers."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._order = Order()
        self._live: LiveTurn | None = None
        self._close_stream: Callable[[], None] | None = None

    def after_fork(self) -> None:
        """Leave the turn under way to the parent, too."""
        super().after_fork()
        self._order = Order()
        self._live = self._close_stream = None

    def send(
        self,
        content: Content,
        *,
        id: str | None = None,
        retry: Retry = "errors",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Result:
        """Say something and run the turn to its end.

        A known `id` returns the recorded result. If its turn failed or was cut short, it runs
        again (`retry="errors"`): it goes on where it is the last turn, and is said anew at the
        head where it is not. Calls that have results never run again, and neither does a turn
        that a person cancelled. With `retry="never"` only a last turn without an end goes on.
        Another message under a known id is `Conflict`. `max_turns` limits
        how often the model is asked, `budget` what it may cost in dollars; `Limits` also
        have tokens and seconds.
        """
        message = said_by_user(content)
        limits = limits_of(max_turns, budget)
        return _exhaust(self._sent(lambda: self._open_send(message, id, retry), model, limits))

    def stream(
        self,
        content: Content,
        *,
        id: str | None = None,
        retry: Retry = "errors",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Iterator[Delta | Event]:
        """`send`, giving every delta and event as it comes; the last is a delta "done".

        It may be left early, which ends the turn, and gone on with in another thread.
        """
        message = said_by_user(content)
        limits = limits_of(max_turns, budget)
        flow = self._sent(lambda: self._open_send(message, id, retry), model, limits)
        return self._claiming(flow)

    def proceed(
        self,
        *,
        pending: Literal["fail", "retry"] = "fail",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Result:
        """Finish a turn that a crash cut short, from the head, without a new message.

        No tool that has a result runs again. Calls that began and have none are answered
        "interrupted", or with "retry" left for the agent to run. `NotFound` if no turn is
        unfinished.
        """
        limits = limits_of(max_turns, budget)
        return _exhaust(self._sent(lambda: self._open_proceed(pending), model, limits))

    def cancel(self) -> None:
        """End the turn under way, with `interrupted`; tools that run are stopped."""
        self._cancelled.set()

    def close(self) -> None:
        try:
            if self._close_stream is not None:
                self._close_stream()
            self._abandon()
            super().close()
        finally:
            closer, self._close_agent = self._close_agent, None
            if closer is not None:
                closer()

    # --- beginning -----------------------------------------------------------------------

    @contextmanager
    def _driving(self) -> Iterator[None]:
        """Turns and rewinds: one at a time in this process, one driver in all."""
        with self._order, self._leased(self._wait):
            yield

    def _refuse_nested(self) -> None:
        if self._live is not None and self._order.is_mine():
            raise Conflict(f"a turn of session `{self.id}` is under way here: let it end first")

    # --- the driver ----------------------------------------------------------------------

    def _sent(
        self, begin: Callable[[], Opened], model: str | None, limits: Limits
    ) -> Generator[Delta | Event, None, Result]:
        self._check_open()
        self._refuse_nested()
        with self._driving():
            opened = begin()
            if opened.agent is None:
                assert opened.ended is not None
                yield from since(self, opened.event, opened.ended.seq)
                result = self._result_of(opened.event, opened.ended)
                yield Delta("done", {"exit_reason": result.exit_reason, "usage": result.usage})
                return result
            turn = self._begun(opened.event, model, limits, _Driver(self))
            first = opened.event if opened.is_new else None
            try:
                ended = yield from self._carry_out(turn, engine(turn, opened.agent, first))
            finally:
                self._abandon()
            return self._result_of(opened.event, ended)

    def _claiming(
        self, flow: Generator[Delta | Event, None, Result]
    ) -> Generator[Delta | Event, None, None]:
        """A flow whose every step may be in another thread; closing the session ends it."""
        try:
            item = next(flow)
            while True:
                self._close_stream = flow.close
                yield item
                self._close_stream = None
                self._order.claim()
                item = next(flow)
        except StopIteration:
            return
        except GeneratorExit:
            self._close_stream = None
            self._order.claim()
            flow.close()
            raise

    def _begun(self, event: Event, model: str | None, limits: Limits, driver: Json) -> LiveTurn:
        cancelled = self._cancelled.is_set
        self._live = LiveTurn(self, event, limits, cancelled, model, driver, self._recall)
        return self._live

    def _carry_out(self, turn: LiveTurn, todo: Engine) -> Generator[Delta | Event, None, Event]:
        """Carry out what the engine asks for; what goes wrong is thrown into it."""
        answer: Json = None
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
                if isinstance(request, Tell):
                    self.emit(request.delta)
                if not isinstance(request, (Tell, Show)):
                    answer = self._perform(turn, request)
                elif not is_left:
                    yield request.delta if isinstance(request, Tell) else request.event
            except BaseException as failed:
                error = failed
                is_left = is_left or isinstance(failed, GeneratorExit)

    def _perform(self, turn: LiveTurn, request: Todo) -> Json:
        """Carry out one request."""
        if isinstance(request, Step):
            return request.flow.advance(request.answer)
        if isinstance(request, Next):
            return request.parts.next(turn.check)
        if isinstance(request, Append):
            return self._append([request.event], spans=request.spans)[0]
        if isinstance(request, Open):
            ask = request.ask
            return Reading(lambda: ask.model.stream(ask.request))
        if isinstance(request, Run):
            return self._run_jobs(request.jobs)
        if isinstance(request, Finish):
            return self._finish(turn, request.end)
        if isinstance(request, Start):
            flow = request.agent(turn)
            turn.is_async = hasattr(flow, "__anext__")
            return SyncFlow(flow)
        if isinstance(request, Shut):
            return request.what.close() if request.what is not None else None
        if isinstance(request, Do):
            return _called(request.now)
        assert isinstance(request, Pause)
        end = time.monotonic() + request.seconds
        while (left := end - time.monotonic()) > 0:
            turn.check()
            self._cancelled.wait(min(left, turn.left() or left))
        return None

    def _run_jobs(self, jobs: list[Job]) -> list[Event]:
        """Run tools, each in a bracket; all have ended when this returns or raises."""
        if len(jobs) == 1:
            return [self._run_job(jobs[0])]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(jobs), "backtrail-tool") as pool:
            waiting = [pool.submit(self._run_job, job) for job in jobs]
            try:
                return [future.result() for future in waiting]
            except BaseException:
                self._cancelled.set()
                raise

    def _run_job(self, job: Job) -> Event:
        """Run one tool; what it raises is its result, unless the turn is to end."""
        call = None
        try:
            with self.tool(
                job.call.name, job.call.arguments, id=job.call.id, paths=job.paths
            ) as call:
                check_job(job, self._cancelled.is_set())
                call.result = _Driver(self).wait_for(job.run) if job.is_async else job.run()
        except Exception:
            # An error is recorded with the call, and the model is told of it.
            if call is None or call.event is None:
                raise
        assert call.event is not None
        return call.event

    # --- the end -------------------------------------------------------------------------

    def _abandon(self) -> None:
        """A turn that nobody goes on with has ended, such as one in a stream left behind."""
        turn = self._live
        if turn is None or self._closed:
            return
        self._cancelled.set()
        deadline = time.monotonic() + _PATIENCE
        while self._order.is_others() and self._live is turn and time.monotonic() < deadline:
            time.sleep(0.01)
        self._live = None
        if not turn.finished:
            try:
                self._finish(turn, End("interrupted", "the turn was left"))
            except BacktrailError as error:
                self._complain("turn", str(error))
        self._recall.forget()


class _Driver:
    """What a turn needs of a synchronous session."""

    def __init__(self, session: Sending) -> None:
        self._session = session

    def emit_delta(self, delta: Delta) -> None:
        self._session.emit(delta)

    def bracket(self, name: str, input: Json, options: dict[str, Json]) -> Around:
        return Around(self._session.tool(name, input, **options))

    def wait_for(self, make: Callable[[], Awaitable[Json]]) -> Json:
        from .awaiting import awaited

        return awaited(make)

    async def later(self, read: Callable[[], Json]) -> Json:
        # The loop has nothing else to do.
        return read()


def _called(fn: Callable[[], Json]) -> Json:
    try:
        return fn()
    except Exception as error:
        return Failed(error)


def _exhaust(flow: Generator[Delta | Event, None, Result]) -> Result:
    while True:
        try:
            next(flow)
        except StopIteration as stop:
            result: Result = stop.value
            return result
