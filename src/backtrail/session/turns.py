"""The turn engine: what an agent yields becomes requests that a driver carries out.

An agent is a callable `agent(turn)` that yields messages and deltas, sync or async. It may
also yield requests (`Ask` a model, `Run` tools, `Pause`, `Do`), and is sent their answers.
The engine is a plain generator with no I/O of its own: the synchronous driver is in
`drive.py`, the asynchronous one in `aio_drive.py`. What goes wrong in a driver is thrown
into the engine, which has the end of the turn recorded, whatever happens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, Literal, Protocol, get_args

from .._startup.frozen import dataclass
from ..errors import BacktrailError, InvalidData
from ..events import AsDict, Event, Json, NewEvent
from ..events.calls import ToolCall, answers_in, calls_in
from ..events.messages import kind_of, message_event
from .flows import ENDED as ENDED
from .flows import Failed as Failed
from .flows import Flow, Reading
from .listeners import Delta
from .liveturn import Agent
from .liveturn import Cancelled as Cancelled
from .liveturn import End as End
from .liveturn import ExitReason as ExitReason
from .liveturn import Limits as Limits
from .liveturn import LiveTurn as LiveTurn
from .views import user_message


@dataclass(frozen=True, slots=True)
class Result(AsDict):
    """What a turn gave. `files` are the paths that changed; `cost_usd` None if unknown."""

    text: str
    messages: list[dict[str, Json]]
    usage: dict[str, int]
    files: list[str]
    exit_reason: ExitReason
    cost_usd: float | None = None
    error: str | None = None
    event: Event | None = None


# --- what an agent may yield besides messages and deltas ---------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the agent with what is known about it; a bare mapping will do too.

    Calls in it are run by the agent, so they open no brackets of their own.
    """

    message: Mapping[str, Json]
    usage: Mapping[str, int] | None = None
    cost_usd: float | None = None
    model: str | None = None
    stop_reason: str | None = None


class Streams(Protocol):
    """A model, whose stream ends with its reply; what has `text` comes before that."""

    def stream(self, request: Any) -> Iterable[object]:
        """Ask the model, in a thread."""

    def astream(self, request: Any) -> AsyncIterator[object]:
        """Ask the model, on a loop."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: call this model. The answer is its reply.

    Listeners get its deltas meanwhile, unless it is `quiet`.
    """

    model: Streams
    request: object
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A tool call to be run: `run()` gives its result, `paths` are those it declares.

    With `is_async`, what `run()` gives is awaited. A call that is `refused` is not run.
    """

    call: ToolCall
    run: Callable[[], Json]
    paths: list[str] | None = None
    refused: str | None = None
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A request: run these tools, in parallel where `parallel` says so.

    The answer is a list of events with the results, one for each job, all in the log.
    """

    jobs: list[Job]
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    """A request: wait that many seconds, or until the turn is cancelled."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Do:
    """A request: call `now`, or `later` on the event loop, if there is one of these."""

    now: Callable[[], Json]
    later: Callable[[], Awaitable[Json]] | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Put this into the log. The answer is the event.

    `spans`: a call in it opens a bracket, which its result closes. Not so where the agent
    brackets its tools itself.
    """

    event: NewEvent
    spans: bool = True


# --- what only drivers see ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Call the agent; the answer is what it yields from."""

    agent: Agent


@dataclass(frozen=True, slots=True)
class Step:
    """Send an answer into the agent's flow; the answer is what it yields next, or `ENDED`."""

    flow: Flow
    answer: object


@dataclass(frozen=True, slots=True)
class Open:
    """Ask a model; the answer is its stream."""

    ask: Ask


@dataclass(frozen=True, slots=True)
class Next:
    """The next part of a model's stream, or `Failed`."""

    parts: Reading | AsyncIterator[object]


@dataclass(frozen=True, slots=True)
class Shut:
    """A model's stream, or an agent's flow, is not needed any more."""

    what: object


@dataclass(frozen=True, slots=True)
class Notify:
    """Hand this to the listeners, and to the caller."""

    delta: Delta


@dataclass(frozen=True, slots=True)
class Show:
    """Hand this to the caller; listeners have it."""

    event: Event


@dataclass(frozen=True, slots=True)
class Finish:
    """Record the end of the turn; the answer is its event."""

    end: End


Todo = (
    Append | Do | Finish | Next | Open | Pause | Run | Show | Shut | Start | Step | Notify
)  # fmt: skip
"""What a driver carries out."""

Answer = Any
"""What a request is answered with, as its docstring says."""

Engine = Generator[Todo, Answer, Event]


# --- the engine --------------------------------------------------------------------------


def engine(turn: LiveTurn, agent: Agent, first: Event | None) -> Engine:
    """A turn from its `first` event, if that is new, to the one that ends it and is returned."""
    failure: BaseException | None = None
    flow: Flow | None = None
    try:
        if first is not None:
            yield Show(first)
        flow = begun = yield Start(agent)
        yield from _steps(turn, begun)
    except Cancelled as stop:
        turn.end = End(stop.reason, None if stop.reason == "interrupted" else str(stop))
    except BaseException as error:
        failure = error
        turn.end = end_by(error)
    try:
        yield Shut(flow)
        ended: Event = yield Finish(turn.end)
    except Exception:
        # What went wrong first is what the caller must know.
        if failure is None:
            raise
        raise failure from None
    if turn.end.reason == "error":
        yield Notify(Delta("error", {"error": turn.end.error}))
    yield Notify(Delta("done", {"exit_reason": turn.end.reason, "usage": turn.usage}))
    if failure is not None:
        raise failure
    return ended


def _steps(turn: LiveTurn, flow: Flow) -> Generator[Todo, Answer, None]:
    answer: Answer = None
    while True:
        turn.check()
        item = yield Step(flow, answer)
        if item is ENDED:
            return
        answer = yield from _answer(turn, item)
        if isinstance(item, End):
            return


def _answer(turn: LiveTurn, item: object) -> Generator[Todo, Answer, Answer]:
    """What is to be done about one thing that an agent yielded; its answer is returned."""
    if isinstance(item, Delta):
        yield Notify(item)
        return None
    if isinstance(item, Ask):
        return (yield from _ask(item))
    if isinstance(item, Run):
        return (yield from _run(item))
    if isinstance(item, (Pause, Do)):
        return (yield item)
    if isinstance(item, End):
        if item.reason not in get_args(ExitReason):
            raise InvalidData(f"{item.reason!r} is no reason for a turn to end")
        turn.end = item
        return None
    if isinstance(item, Append):
        event: Event = yield item
        yield Show(event)
        return event
    return (yield from _say(turn, item if isinstance(item, Said) else None, item))


def _say(turn: LiveTurn, said: Said | None, item: object) -> Generator[Todo, Answer, Event]:
    """A message goes into the log, then to the listeners."""
    message = said.message if said is not None else item
    usage, cost = (said.usage, said.cost_usd) if said is not None else (None, None)
    new = message_event(message, usage=usage, cost_usd=cost)
    more = {n: getattr(said, n, None) for n in ("model", "stop_reason")}
    new = NewEvent(new.kind, {**new.data, **{n: v for n, v in more.items() if v is not None}})
    turn.count(usage, cost)
    event: Event = yield Append(new, spans=said is None)
    yield Show(event)
    stored = event.data["message"]
    if event.kind == "assistant_message":
        if usage:
            yield Notify(Delta("usage", {"usage": dict(usage), "cost_usd": cost}))
        yield Notify(Delta("message", {"message": stored, "seq": event.seq, "id": event.id}))
    if said is None:
        for call in calls_in(stored):
            yield _called(call)
        for id in sorted(answers_in(stored)):
            yield Notify(Delta("tool_result", {"id": id, "seq": event.seq}))
    return event


def _ask(ask: Ask) -> Generator[Todo, Answer, Answer]:
    """Call a model: its deltas go out as they come, its reply or failure is the answer."""
    parts = yield Open(ask)
    try:
        while True:
            part = yield Next(parts)
            if isinstance(part, Failed) or not hasattr(part, "text"):
                break
            if not ask.quiet:
                yield Notify(Delta(part.kind, {"text": part.text}))
    except GeneratorExit:
        raise
    except BaseException:
        yield Shut(parts)
        raise
    yield Shut(parts)
    return part


def _run(run: Run) -> Generator[Todo, Answer, list[Event]]:
    """Run tools, each in a bracket; its result is in the log before listeners get it."""
    together = run.parallel and len(run.jobs) > 1
    done: list[Event] = []
    for group in [run.jobs] if together else [[job] for job in run.jobs]:
        for job in group:
            yield _called(job.call)
        events: list[Event] = yield Run(group)
        for job, event in zip(group, events, strict=True):
            yield Show(event)
            data = {"id": job.call.id, "name": job.call.name, "seq": event.seq}
            failed = event.data.get("error") is True
            yield Notify(Delta("tool_result", {**data, "error": failed}))
        done += events
    return done


def _called(call: ToolCall) -> Notify:
    data = {"id": call.id, "name": call.name, "input": call.arguments}
    return Notify(Delta("tool_call", data))


# --- what both drivers share -------------------------------------------------------------

Content = str | list[Json] | Mapping[str, Json]
"""What a user says: text, blocks, or a whole message."""

Retry = Literal["errors", "never"]
"""Whether a turn with a known id runs again if it failed or was cut short."""


def said_by_user(content: Content) -> dict[str, Json]:
    """What is sent, as a message of the user."""
    if not isinstance(content, (str, list, Mapping)) or not content:
        raise InvalidData(f"what is sent is a text, blocks or a message, not {content!r}")
    message = user_message(content)
    if kind_of(message) != "user_message":
        raise InvalidData(f"only a user's message is sent, not one of {message.get('role')!r}")
    return message


def end_by(error: BaseException) -> End:
    """How a turn ends that something raised out of.

    A person's Ctrl-C is no error, as a person's `cancel` is none: such a turn is not tried
    again. What else interrupts one cuts it short, such as a client that went away.
    """
    if isinstance(error, KeyboardInterrupt):
        return End("interrupted")
    why = f"{type(error).__name__}: {error}"
    return End("error" if isinstance(error, Exception) else "interrupted", why)


def was_cut_short(ended: Event) -> bool:
    """Whether a turn that ended so may run again: it failed, or was not meant to stop."""
    reason = ended.data.get("reason")
    if reason == "interrupted":
        return bool(ended.data.get("error"))
    # A prompt that was refused has left the conversation.
    return reason == "error" and ended.follows is None


def limits_of(max_turns: int | None, budget: float | Limits | None) -> Limits:
    """The limits that a caller gave."""
    if not (max_turns is None or (type(max_turns) is int and max_turns >= 0)):
        raise InvalidData(f"max_turns is a whole number, not {max_turns!r}")
    if isinstance(budget, Limits):
        return Limits(max_turns=max_turns).over(budget)
    if not (budget is None or (type(budget) in (int, float) and budget >= 0)):
        raise InvalidData(f"a budget is dollars or `Limits`, not {budget!r}")
    return Limits(max_turns=max_turns, max_cost_usd=budget)


class Refused(BacktrailError, PermissionError):
    """A call that is not to be run; the message is for the model."""


def check_job(job: Job, cancelled: bool) -> None:
    """Raise where a call is not to be run."""
    if job.refused is not None:
        raise Refused(job.refused)
    if cancelled:
        raise InterruptedError("the turn was cancelled")
