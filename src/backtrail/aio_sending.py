"""Sending for `AsyncSession`: the asynchronous driver of the turn engine.

Asynchronous agents and models run on the caller's loop; store calls, scans, tools and plain
agents in worker threads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Literal

import anyio

from .aio_threads import finish, run
from .errors import InvalidData, NotFound, Unsupported
from .events import Event, Json
from .sending import Cancelled, Content
from .session import Session
from .subscribing import Delta
from .turns import (
    Append,
    Ask,
    End,
    Failed,
    Job,
    Limits,
    LiveTurn,
    Pause,
    Result,
    Run,
    Tell,
    Todo,
    carry,
)
from .views import user_message

_ENDED = object()


class AsyncSending:
    """The half of an `AsyncSession` that its agent answers."""

    _session: Session

    def _tell(self) -> None:
        """Wake those who listen to the session."""
        raise NotImplementedError

    def _driving(self) -> AbstractAsyncContextManager[None]:
        """Turns and rewinds: one task at a time."""
        raise NotImplementedError

    async def send(
        self,
        content: Content,
        *,
        id: str | None = None,
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | None = None,
    ) -> Result:
        """Say something and run the turn to its end; see `Session.send`."""
        last: Result | None = None
        async with aclosing(
            self._send(content, id, model, Limits(max_turns, None, budget))
        ) as parts:
            async for item in parts:
                last = item if isinstance(item, Result) else last
        assert last is not None
        return last

    async def stream(
        self,
        content: Content,
        *,
        id: str | None = None,
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Delta | Event, None]:
        """`send`, giving every delta and event as it comes; the last is a delta "done"."""
        async with aclosing(
            self._send(content, id, model, Limits(max_turns, None, budget))
        ) as parts:
            async for item in parts:
                if not isinstance(item, Result):
                    yield item

    async def proceed(
        self,
        *,
        pending: Literal["fail", "retry"] = "fail",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | None = None,
    ) -> Result:
        """Finish a turn that a crash cut short; see `Session.proceed`."""
        if pending not in ("fail", "retry"):
            raise InvalidData(f"pending is 'fail' or 'retry', not {pending!r}")
        session = self._session
        async with self._driving():
            event = await run(session._last_turn)
            if event is None or await run(session._end_of, event) is not None:
                raise NotFound(f"session `{session.id}` has no turn to finish")
            if pending == "fail":
                await run(session._answer_pending)
            limits = Limits(max_turns, None, budget)
            async with aclosing(self._run_turn(event, model, limits)) as parts:
                async for item in parts:
                    if isinstance(item, Result):
                        return item
        raise AssertionError("unreachable")

    async def cancel(self) -> None:
        """End the turn under way, with `interrupted`; tools that run are stopped."""
        self._session.cancel()

    # --- the driver ----------------------------------------------------------------------

    async def _send(
        self, content: Content, id: str | None, model: str | None, limits: Limits
    ) -> AsyncGenerator[Delta | Event | Result, None]:
        session = self._session
        async with self._driving():
            known = await run(session._known_turn, id) if id is not None else None
            if known is not None:
                ended = await run(session._end_of, known)
                if ended is not None:
                    yield await run(session._result_of, known, ended)
                    return
                await run(session._answer_pending)
                event = known
            else:
                event = await run(session.append, user_message(content), id=id)
                self._tell()
                yield event
            async with aclosing(self._run_turn(event, model, limits)) as parts:
                async for item in parts:
                    yield item

    async def _run_turn(
        self, event: Event, model: str | None, limits: Limits
    ) -> AsyncGenerator[Delta | Event | Result, None]:
        session = self._session
        session._begin_cancelling()
        agent = await run(session._resolved_agent)
        turn = LiveTurn(session, event, limits, session._is_cancelled, model)
        try:
            async with aclosing(self._drive(turn, agent)) as parts:
                async for item in parts:
                    yield item
        except Cancelled:
            turn.end = End("interrupted")
        except BaseException as error:
            stopped = isinstance(error, (KeyboardInterrupt, GeneratorExit, _cancelled_class()))
            reason: Literal["interrupted", "error"] = "interrupted" if stopped else "error"
            session.cancel()
            end = End(reason, f"{type(error).__name__}: {error}")
            await finish(lambda: _nothing(session._ended(turn, end)))
            self._tell()
            raise
        ended = await run(session._ended, turn, turn.end)
        result = await run(session._result_of, event, ended)
        done = Delta("done", {"exit_reason": result.exit_reason, "usage": result.usage})
        yield self._emitted(done)
        yield result

    async def _drive(
        self, turn: LiveTurn, agent: Callable[[LiveTurn], Json]
    ) -> AsyncGenerator[Delta | Event, None]:
        flow = agent(turn)
        answer: Json = None
        while turn.end.reason == "end_turn":
            if self._session._is_cancelled():
                raise Cancelled
            item = await _next(flow, answer)
            if item is _ENDED:
                return
            todo = carry(turn, item)
            answer = None
            while True:
                try:
                    request = todo.send(answer)
                except StopIteration as stop:
                    answer = stop.value
                    break
                told: list[Json] = []
                async with aclosing(self._do(request, told)) as parts:
                    async for part in parts:
                        yield part
                answer = told[0] if told else None

    async def _do(self, request: Todo, answer: list[Json]) -> AsyncGenerator[Delta | Event, None]:
        """Carry out one request; its answer goes into `answer`."""
        session = self._session
        if isinstance(request, Append):
            event = (await run(session._append, [request.event], spans=request.spans))[0]
            self._tell()
            answer.append(event)
            yield event
        elif isinstance(request, Tell):
            yield self._emitted(request.delta)
        elif isinstance(request, Ask):
            async with aclosing(self._asked(request)) as parts:
                async for part in parts:
                    if not hasattr(part, "text"):
                        answer.append(part)
                        return
                    yield self._emitted(Delta(part.kind, {"text": part.text}))
        elif isinstance(request, Run):
            async with aclosing(self._run_jobs(request, answer)) as parts:
                async for part in parts:
                    yield part
        else:
            assert isinstance(request, Pause)
            await anyio.sleep(request.seconds)

    async def _asked(self, request: Ask) -> AsyncGenerator[Json, None]:
        """What a model streams; its failure comes as the last part."""
        async with aclosing(request.model.astream(request.request)) as parts:
            while True:
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    part = Failed(Unsupported("the model ended its stream without a reply"))
                except Exception as error:
                    part = Failed(error)
                if self._session._is_cancelled():
                    raise Cancelled
                yield part

    async def _run_jobs(
        self, request: Run, answer: list[Json]
    ) -> AsyncGenerator[Delta | Event, None]:
        for job in request.jobs:
            call = job.call
            data = {"id": call.id, "name": call.name, "input": call.arguments}
            yield self._emitted(Delta("tool_call", data))
        events: list[Event | None] = [None] * len(request.jobs)

        async def one(at: int, job: Job) -> None:
            events[at] = await run(self._session._run_job, job)
            self._tell()

        try:
            if request.parallel:
                async with anyio.create_task_group() as group:
                    for at, job in enumerate(request.jobs):
                        group.start_soon(one, at, job)
            else:
                for at, job in enumerate(request.jobs):
                    await one(at, job)
        except BaseException:
            self._session.cancel()
            raise
        answer.append(events)
        for job, event in zip(request.jobs, events, strict=True):
            assert event is not None
            yield event
            yield self._emitted(Delta("tool_result", {"id": job.call.id, "seq": event.seq}))

    def _emitted(self, delta: Delta) -> Delta:
        self._session.emit(delta)
        self._tell()
        return delta


async def _next(flow: Json, answer: Json) -> Json:
    """Send an answer into an agent's flow; what it yields next, or `_ENDED`."""
    if hasattr(flow, "__anext__"):
        try:
            if isinstance(answer, Failed):
                return await flow.athrow(answer.error)
            return await (flow.asend(answer) if hasattr(flow, "asend") else flow.__anext__())
        except StopAsyncIteration:
            return _ENDED

    def advance() -> Json:
        try:
            if isinstance(answer, Failed):
                return flow.throw(answer.error)
            return flow.send(answer) if hasattr(flow, "send") else next(flow)
        except StopIteration:
            return _ENDED

    return await run(advance)


def _cancelled_class() -> type[BaseException]:
    cancelled: type[BaseException] = anyio.get_cancelled_exc_class()
    return cancelled


def _nothing(value: object) -> None:
    """A value that nobody needs."""
