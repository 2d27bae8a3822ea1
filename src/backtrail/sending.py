"""Sending: a session with an agent answers. The synchronous driver of the turn engine.

Every message is in the log before the next step begins. A turn ends with a `turn_end` event
that says why; a turn without one was cut short, and `proceed` finishes it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from .agents import resolve_agent
from .calls import INTERRUPTED, answer_to
from .errors import Conflict, InvalidData, NotFound, Unsupported
from .events import Event, Json, NewEvent
from .filepoints import changes_by_turn
from .messages import message_event, text_of
from .rewinding import Rewinding
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

Content = str | list[Json] | Mapping[str, Json]
"""What a user says: text, blocks, or a whole message."""

Step = Generator[Delta | Event, None, Json]


class Cancelled(Exception):
    """The turn was cancelled while a model or a tool was at work."""


class Sending(Rewinding):
    """A session that its agent answers."""

    _cancelled = threading.Event()

    def _begin_cancelling(self) -> None:
        self._cancelled = threading.Event()

    def _is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def send(
        self,
        content: Content,
        *,
        id: str | None = None,
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | None = None,
    ) -> Result:
        """Say something and run the turn to its end.

        A known `id` returns the recorded result, or finishes its turn. `max_turns` limits
        how often the model is asked, `budget` what it may cost in dollars.
        """
        return _exhaust(self._send(content, id, model, Limits(max_turns, None, budget)))

    def stream(
        self,
        content: Content,
        *,
        id: str | None = None,
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | None = None,
    ) -> Iterator[Delta | Event]:
        """`send`, giving every delta and event as it comes; the last is a delta "done"."""
        return self._send(content, id, model, Limits(max_turns, None, budget))

    def proceed(
        self,
        *,
        pending: Literal["fail", "retry"] = "fail",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | None = None,
    ) -> Result:
        """Finish a turn that a crash cut short, from the head, without a new message.

        No tool that has a result runs again. Calls that began and have none are answered
        "interrupted", or with "retry" left for the agent to run. `NotFound` if no turn is
        unfinished.
        """
        return _exhaust(self._proceed(pending, model, Limits(max_turns, None, budget)))

    def cancel(self) -> None:
        """End the turn under way, with `interrupted`; tools that run are stopped."""
        self._cancelled.set()

    # --- turns ---------------------------------------------------------------------------

    def _send(
        self, content: Content, id: str | None, model: str | None, limits: Limits
    ) -> Generator[Delta | Event, None, Result]:
        self._check_open()
        with self._driving():
            known = self._known_turn(id) if id is not None else None
            if known is not None:
                ended = self._end_of(known)
                if ended is not None:
                    return self._result_of(known, ended)
                self._answer_pending()
                return (yield from self._run(known, model, limits))
            event = self.append(user_message(content), id=id)
            yield event
            return (yield from self._run(event, model, limits))

    def _proceed(
        self, pending: str, model: str | None, limits: Limits
    ) -> Generator[Delta | Event, None, Result]:
        if pending not in ("fail", "retry"):
            raise InvalidData(f"pending is 'fail' or 'retry', not {pending!r}")
        with self._driving():
            event = self._last_turn()
            if event is None or self._end_of(event) is not None:
                raise NotFound(f"session `{self.id}` has no turn to finish")
            if pending == "fail":
                self._answer_pending()
            return (yield from self._run(event, model, limits))

    def _known_turn(self, id: str) -> Event | None:
        try:
            event = self.store.find(self.id, id)
        except NotFound:
            return None
        if event.kind != "user_message":
            raise Conflict(f"event `{id}` of session `{self.id}` is no user's message")
        last = self._last_turn()
        if self._end_of(event) is None and (last is None or last.seq != event.seq):
            raise Conflict(f"the turn `{id}` was left unfinished, and the session went on")
        return event

    def _last_turn(self) -> Event | None:
        said = (e for e in self.store.walk(self.id, until=self._at) if e.kind == "user_message")
        return next(said, None)

    def _end_of(self, turn: Event) -> Event | None:
        """The event that ended a turn, if it ended."""
        for event in self.events(after=turn.seq, kinds=("turn_end",)):
            if event.data.get("turn") == turn.seq:
                return event
        return None

    def _answer_pending(self) -> None:
        """Answer calls that a crash left open, in the log."""
        for call in self.pending():
            answer = answer_to(call.id, self._asking(call.id), INTERRUPTED, failed=True)
            self._append([message_event(answer, kind="tool_result")])

    # --- the driver ----------------------------------------------------------------------

    def _run(
        self, event: Event, model: str | None, limits: Limits
    ) -> Generator[Delta | Event, None, Result]:
        """Run the agent on a turn, and record how it ended."""
        self._begin_cancelling()
        agent = self._resolved_agent()
        turn = LiveTurn(self, event, limits, self._is_cancelled, model)
        try:
            yield from self._drive(turn, agent)
        except Cancelled:
            turn.end = End("interrupted")
        except BaseException as error:
            stopped = isinstance(error, (KeyboardInterrupt, GeneratorExit))
            reason: Literal["interrupted", "error"] = "interrupted" if stopped else "error"
            self._cancelled.set()
            self._ended(turn, End(reason, f"{type(error).__name__}: {error}"))
            raise
        ended = self._ended(turn, turn.end)
        result = self._result_of(event, ended)
        yield from self._tell("done", exit_reason=result.exit_reason, usage=result.usage)
        return result

    def _drive(self, turn: LiveTurn, agent: Callable[[LiveTurn], Json]) -> Step:
        """Carry out what the agent yields, until it ends."""
        advance = _stepper(agent(turn))
        answer: Json = None
        while turn.end.reason == "end_turn":
            if self._cancelled.is_set():
                raise Cancelled
            try:
                item = advance(answer)
            except StopIteration:
                return None
            answer = yield from self._carry(turn, item)
        return None

    def _carry(self, turn: LiveTurn, item: object) -> Step:
        todo = carry(turn, item)
        answer: Json = None
        while True:
            try:
                request = todo.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield from self._do(request)

    def _do(self, request: Todo) -> Step:
        """Carry out one request."""
        if isinstance(request, Append):
            event = self._append([request.event], spans=request.spans)[0]
            yield event
            return event
        if isinstance(request, Tell):
            self.emit(request.delta)
            yield request.delta
            return None
        if isinstance(request, Ask):
            return (yield from self._ask(request))
        if isinstance(request, Run):
            return (yield from self._run_jobs(request))
        assert isinstance(request, Pause)
        if self._cancelled.wait(request.seconds):
            raise Cancelled
        return None

    def _ask(self, request: Ask) -> Step:
        """Call a model: its deltas go out as they come, its reply is the answer."""
        parts = iter(request.model.stream(request.request))
        while True:
            try:
                part = next(parts)
            except StopIteration:
                return Failed(Unsupported("the model ended its stream without a reply"))
            except Exception as error:
                return Failed(error)
            if self._cancelled.is_set():
                raise Cancelled
            if not hasattr(part, "text"):
                return part
            yield from self._tell(part.kind, text=part.text)

    def _run_jobs(self, request: Run) -> Step:
        """Run tools, each in a bracket; its result is in the log when it is told."""
        for job in request.jobs:
            call = job.call
            yield from self._tell("tool_call", id=call.id, name=call.name, input=call.arguments)
        if len(request.jobs) > 1 and request.parallel:
            with ThreadPoolExecutor(len(request.jobs), "backtrail-tool") as pool:
                waiting = [pool.submit(self._run_job, job) for job in request.jobs]
                try:
                    events = [future.result() for future in waiting]
                except BaseException:
                    self._cancelled.set()
                    raise
        else:
            events = [self._run_job(job) for job in request.jobs]
        for job, event in zip(request.jobs, events, strict=True):
            yield event
            yield from self._tell("tool_result", id=job.call.id, seq=event.seq)
        return events

    def _run_job(self, job: Job) -> Event:
        """Run one tool; what it raises is its result, unless the turn is to end."""
        call = None
        try:
            with self.tool(
                job.call.name, job.call.arguments, id=job.call.id, paths=job.paths
            ) as call:
                if job.refused is not None:
                    raise PermissionError(job.refused)
                if self._cancelled.is_set():
                    raise InterruptedError("the turn was cancelled")
                call.result = job.run()
        except Exception:
            # An error is recorded with the call, and the model is told of it.
            if call is None or call.event is None:
                raise
        assert call.event is not None
        return call.event

    def _tell(self, type: str, **data: Json) -> Iterator[Delta]:
        delta = Delta(type, data)
        self.emit(delta)
        yield delta

    # --- results -------------------------------------------------------------------------

    def _ended(self, turn: LiveTurn, end: End) -> Event:
        data: dict[str, Json] = {"turn": turn.event.seq, "reason": end.reason}
        if end.error:
            data["error"] = end.error
        return self._append([NewEvent("turn_end", data)])[0]

    def _result_of(self, turn: Event, ended: Event) -> Result:
        """The result of a turn, as the log has it."""
        until = ended.seq or None
        events = list(self.events(after=turn.seq, until=until))
        messages = [e.data["message"] for e in events if isinstance(e.data.get("message"), dict)]
        usage: dict[str, int] = {}
        cost: float | None = None
        text = ""
        for event in events:
            for name, number in (event.data.get("usage") or {}).items():
                usage[name] = usage.get(name, 0) + number
            if isinstance(event.data.get("cost_usd"), (int, float)):
                cost = (cost or 0.0) + event.data["cost_usd"]
            if event.kind == "assistant_message":
                text = text_of(event.data.get("message")) or text
        reason, error = ended.data.get("reason", "end_turn"), ended.data.get("error")
        return Result(text, messages, usage, self._paths_of(turn), reason, cost, error, turn)

    def _paths_of(self, turn: Event) -> list[str]:
        """The paths that the calls of a turn changed."""
        if self._workspace is None:
            return []
        found: set[str] = set()
        for changed in changes_by_turn(self.store, self.id, self._workspace.get, turn.seq):
            if changed.seq == turn.seq:
                for call in changed.calls:
                    found |= {file.path for file in call.files if call.by != "others"}
        return sorted(found)

    def _resolved_agent(self) -> Callable[[LiveTurn], Json]:
        if self.agent is None:
            raise Unsupported(
                "the session has no agent: give `agent=`, or append messages yourself"
            )
        if not callable(self.agent):
            self.agent = resolve_agent(self.agent, self._agent_options)
        return self.agent


def _exhaust(flow: Generator[Delta | Event, None, Result]) -> Result:
    while True:
        try:
            next(flow)
        except StopIteration as stop:
            result: Result = stop.value
            return result


def _stepper(flow: Json) -> Callable[[Json], Json]:
    """A function that sends an answer into an agent's flow and gives what it yields next."""
    if inspect.isgenerator(flow):

        def advance(answer: Json) -> Json:
            failed = isinstance(answer, Failed)
            return flow.throw(answer.error) if failed else flow.send(answer)

        return advance
    if hasattr(flow, "__anext__"):
        return _async_stepper(flow)
    items = iter(flow)
    return lambda answer: next(items)


def _async_stepper(flow: Json) -> Callable[[Json], Json]:
    """The same for an asynchronous agent, on a loop of its own."""
    from .awaiting import stepper

    def step(answer: Json) -> Json:
        if isinstance(answer, Failed):
            return flow.athrow(answer.error)
        return flow.asend(answer) if hasattr(flow, "asend") else flow.__anext__()

    return stepper(step)
