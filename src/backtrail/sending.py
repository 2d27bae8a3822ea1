"""Sending: a session with an agent answers. The synchronous driver of the turn engine.

Every message is in the log before the next step begins. A turn ends with a `turn_end` event
that says why; a turn without one was cut short, and `proceed` finishes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from .agents import (
    Around,
    Failed,
    LiveTurn,
    Reading,
    SyncFlow,
    add_cost,
    add_usage,
    resolve_agent,
    since,
)
from .calls import INTERRUPTED, answer_to, calls_in, pending
from .conversation import SessionOptions
from .errors import BacktrailError, Conflict, InvalidData, NotFound, Unsupported
from .events import Event, Json, NewEvent
from .filepoints import paths_changed
from .history import spent
from .messages import message_event, text_of
from .rewinding import Rewinding
from .stores.base import Store
from .subscribing import Delta
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

CANCELLED = "interrupted: the turn ended before this tool call returned a result"
"""What a call is answered whose turn was cancelled or failed."""

_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A turn that is about to run, or how it ended if it has."""

    event: Event
    agent: Callable[[LiveTurn], Json] | None = None
    ended: Event | None = None
    is_new: bool = False


class Sending(Rewinding):
    """A session that its agent answers."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._order = Order()
        self._cancelled = threading.Event()
        self._live: LiveTurn | None = None
        self._close_agent: Callable[[], None] | None = None
        self._close_stream: Callable[[], None] | None = None

    def send(
        self,
        content: Content,
        *,
        id: str | None = None,
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Result:
        """Say something and run the turn to its end.

        A known `id` returns the recorded result, or finishes its turn. `max_turns` limits
        how often the model is asked, `budget` what it may cost in dollars; `Limits` also
        have tokens and seconds.
        """
        message = said_by_user(content)
        limits = limits_of(max_turns, budget)
        return _exhaust(self._sent(lambda: self._open_send(message, id), model, limits))

    def stream(
        self,
        content: Content,
        *,
        id: str | None = None,
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Iterator[Delta | Event]:
        """`send`, giving every delta and event as it comes; the last is a delta "done".

        It may be left early, which ends the turn, and gone on with in another thread.
        """
        message = said_by_user(content)
        limits = limits_of(max_turns, budget)
        flow = self._sent(lambda: self._open_send(message, id), model, limits)
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

    def _open_send(self, message: dict[str, Json], id: str | None) -> Opened:
        """Find the turn, or begin it: the user's message is in the log then."""
        self._cancelled = threading.Event()
        known = self._known_turn(id) if id is not None else None
        if known is not None:
            ended = self._end_of(known) or self._end_of(known, live=False)
            if ended is not None:
                return Opened(known, None, ended)
            last = self._last_turn()
            if last is None or last.id != known.id:
                raise Conflict(f"the turn `{id}` was left unfinished, and the session went on")
            agent = self._resolved_agent()
            self._answer_pending(INTERRUPTED)
            return Opened(known, agent)
        agent = self._resolved_agent()
        self._answer_pending(INTERRUPTED)
        return Opened(self.append(message, id=id), agent, is_new=True)

    def _open_proceed(self, pending: str) -> Opened:
        """Find the turn that is not finished."""
        if pending not in ("fail", "retry"):
            raise InvalidData(f"pending is 'fail' or 'retry', not {pending!r}")
        self._cancelled = threading.Event()
        event = self._last_turn()
        if event is None or self._end_of(event) is not None:
            raise NotFound(f"session `{self.id}` has no turn to finish")
        agent = self._resolved_agent()
        if pending == "fail":
            self._answer_pending(INTERRUPTED)
        return Opened(event, agent)

    def _known_turn(self, id: str) -> Event | None:
        for new in self._unsaved:
            if new.id == id:
                return Event(0, id, "", new.kind, dict(new.data))
        try:
            event = self.store.find(self.id, id)
        except NotFound:
            return None
        if event.kind != "user_message":
            raise Conflict(f"event `{id}` of session `{self.id}` is no user's message")
        return event

    def _last_turn(self) -> Event | None:
        for new in reversed(self._unsaved):
            if new.kind == "user_message":
                return Event(0, new.id or "", "", new.kind, dict(new.data))
        if self._at == 0:
            return None
        said = (e for e in self.store.walk(self.id, until=self._at) if e.kind == "user_message")
        return next(said, None)

    def _end_of(self, turn: Event, *, live: bool = True) -> Event | None:
        """The event that ended a turn, if it ended; in the history, or in all that was."""
        ends = since(self, turn) if live else self.events(after=turn.seq, kinds=("turn_end",))
        names = (turn.seq or turn.id, turn.id)
        found = [e for e in ends if e.kind == "turn_end" and e.data.get("turn") in names]
        return found[-1] if found else None

    def _answer_pending(self, text: str) -> None:
        """Answer calls that have no result, in the log."""
        messages = self.messages(repair=False)
        for call in pending(messages):
            asking = (m for m in reversed(messages) if any(c.id == call.id for c in calls_in(m)))
            answer = answer_to(call.id, next(asking, {}), text, failed=True)
            event = message_event(answer, kind="tool_result")
            self._append([NewEvent(event.kind, {**event.data, "name": call.name, "error": True})])

    def _resolved_agent(self) -> Callable[[LiveTurn], Json]:
        if self.agent is None:
            raise Unsupported(
                "the session has no agent: give `agent=`, or append messages yourself"
            )
        if not callable(self.agent):
            name = self.agent
            if isinstance(name, str) and name.endswith(":"):
                name += self.info().model or ""
            self.agent = resolve_agent(name, self._agent_options)
            self._close_agent = getattr(self.agent, "close", None)
        return self.agent

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
        self._live = LiveTurn(self, event, limits, cancelled, model, driver)
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
            return SyncFlow(request.agent(turn))
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
        with ThreadPoolExecutor(len(jobs), "backtrail-tool") as pool:
            waiting: list[Future[Event]] = [pool.submit(self._run_job, job) for job in jobs]
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

    def _finish(self, turn: LiveTurn, end: End) -> Event:
        """Record how a turn ended; a call is left open only by an agent that means to."""
        turn.finished = True
        if end.reason in ("interrupted", "error"):
            self._cancelled.set()
            self._answer_pending(CANCELLED)
        data: dict[str, Json] = {
            "turn": turn.event.seq or turn.event.id,
            "reason": end.reason,
        }
        more = {"error": end.error, "usage": turn.extra_usage, "cost_usd": turn.extra_cost}
        data |= {name: value for name, value in more.items() if value}
        return self._append([NewEvent("turn_end", data)])[0]

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

    def _result_of(self, turn: Event, ended: Event) -> Result:
        """The result of a turn, as the log has it."""
        usage: dict[str, int] = {}
        cost: float | None = None
        text = ""
        events = since(self, turn, ended.seq or None)
        for event in events:
            add_usage(usage, spent(event.data))
            cost = add_cost(cost, event.data.get("cost_usd"))
            if event.kind == "assistant_message":
                text = text_of(event.data.get("message")) or text
        messages = [e.data["message"] for e in events if isinstance(e.data.get("message"), dict)]
        reason, error = ended.data.get("reason", "end_turn"), ended.data.get("error")
        return Result(text, messages, usage, self._paths_of(turn), reason, cost, error, turn)

    def _paths_of(self, turn: Event) -> list[str]:
        """The paths that the calls of a turn changed."""
        if self._workspace is None or turn.seq == 0:
            return []
        return sorted(paths_changed(self.store, self.id, self._workspace.get, turn.seq))


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

        return awaited(make())


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
