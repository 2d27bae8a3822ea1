"""An agent and the turn it answers, and from a name to an agent.

"provider:model" goes to a factory found by entry point: the core imports no agent. A factory
in the group `backtrail.agents` takes the provider, the model's name and the options of the
session, and returns a callable that answers a turn.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import copy_context
from functools import cached_property
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from .._startup.frozen import dataclass
from ..errors import Unsupported
from ..events import MAIN_LOG, Event, Format, Json
from ..events.messages import speech_of
from .listeners import Delta

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .capture import Capture
    from .log import SessionLog
    from .session import Session
    from .toolcalls import Call
    from .turnlog import Recall

T = TypeVar("T")

Agent = Callable[["LiveTurn"], object]
"""What answers a turn: it yields messages, or returns an iterable of them."""

ExitReason = Literal[
    "end_turn", "max_turns", "max_tokens", "max_budget", "interrupted", "error", "stop_sequence"
]
"""Why a turn ended."""


class Cancelled(Exception):
    """The turn is to end now, though a model or a tool is at work."""

    def __init__(self, reason: ExitReason = "interrupted", why: str = "cancelled") -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class End:
    """The turn is over, for this reason; what an agent yields last, if not `end_turn`.

    `refused`: the prompt itself is not wanted. It stays in the log and leaves the conversation,
    so that no later turn sends it to a model.
    """

    reason: ExitReason
    error: str | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a turn may use up; None: as much as it likes."""

    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    seconds: float | None = None

    def over(self, others: Limits) -> Limits:
        """These, and where they say nothing, the others."""
        own = {name: getattr(self, name) for name in self.__slots__}
        return Limits(**{n: getattr(others, n) if v is None else v for n, v in own.items()})


class TurnHost(Protocol):
    """What a turn needs of its driver; `session` is the one that agents see."""

    @property
    def session(self) -> Session:
        """The session that the turn is one of."""

    def notify(self, delta: Delta) -> None:
        """Hand a delta to the listeners, from any thread."""

    def bracket(self, name: str, input: Json, options: dict[str, Json]) -> Around:
        """A bracket around a tool call, for `with` and for `async with`."""

    def wait_for(self, make: Callable[[], Awaitable[T]]) -> T:
        """The result of something to be awaited, from a thread without a loop."""

    def later(self, read: Callable[[], T]) -> Awaitable[T]:
        """What a call gives that reads the store, without holding the loop."""


class LiveTurn:
    """A turn under way, as its agent sees it."""

    def __init__(
        self, log: SessionLog, capture: Capture, event: Event, limits: Limits,
        cancelled: Callable[[], bool], model: str | None, host: TurnHost, recall: Recall,
    ) -> None:  # fmt: skip
        self.log = log
        self.capture = capture
        self.event = event
        self.limits = limits
        self.model = model
        self.cancelled = cancelled
        self.host = host
        self.usage: dict[str, int] = {}
        self.cost_usd: float | None = None
        self.end = End("end_turn")
        self.finished = False
        self.is_async = False
        self.is_compacted: bool | None = None
        self.recall = recall
        self.extra_usage: dict[str, int] = {}
        self.extra_cost: float | None = None
        self._began = time.monotonic()

    @property
    def session(self) -> Session:
        """The session that the turn is one of."""
        return self.host.session

    @property
    def prompt(self) -> str:
        """What the user said, as text."""
        return speech_of(self.event.data.get("message"))

    @cached_property
    def workspace(self) -> str | None:
        """The directory that is worked in."""
        return self.capture.directory()

    def messages(self, format: Format | None = None) -> Json:
        """The whole conversation, this turn included: a list, which an async agent awaits."""
        return self._read(lambda: self.log.messages(format))

    def recalled(self, format: Format) -> list[dict[str, Json]]:
        """The same, cached; treat the result as read-only."""
        return self.recall.messages(format)

    def said(self) -> Json:
        """The messages of this turn so far, without the user's; an async agent awaits them."""
        return self._read(self._said)

    def _said(self) -> list[dict[str, Json]]:
        found = (event.data.get("message") for event in self.log.since(self.event))
        return [message for message in found if isinstance(message, dict)]

    def _read(self, read: Callable[[], Json]) -> Json:
        """What `read` gives; to an asynchronous agent as something to be awaited."""
        return self.host.later(read) if self.is_async else read()

    def tool(
        self,
        name: str,
        input: Json = None,
        *,
        id: str | None = None,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> Around:
        """A bracket around a tool call, for `with` or `async with`; see `Session.tool`."""
        return self.host.bracket(name, input, {"id": id, "paths": paths})

    def emit(self, delta: Delta) -> None:
        """Hand a delta to the listeners; it is not stored."""
        self.host.notify(delta)

    def left(self) -> float | None:
        """Seconds that are left; None if there is no end to them."""
        seconds = self.limits.seconds
        return None if seconds is None else seconds - (time.monotonic() - self._began)

    def is_over(self) -> bool:
        """Whether what is at work should stop: cancelled, or out of time."""
        left = self.left()
        return self.cancelled() or (left is not None and left <= 0)

    def check(self) -> None:
        """Raise `Cancelled` if the turn is to end now."""
        if self.cancelled():
            raise Cancelled
        left = self.left()
        if left is not None and left <= 0:
            raise Cancelled("max_budget", f"the turn took over {self.limits.seconds:g} seconds")

    def spent(self) -> ExitReason | None:
        """The limit that is used up, if one is."""
        limits, left = self.limits, self.left()
        if limits.max_tokens is not None and self.tokens() >= limits.max_tokens:
            return "max_tokens"
        if limits.max_cost_usd is not None and (self.cost_usd or 0.0) >= limits.max_cost_usd:
            return "max_budget"
        return "max_budget" if left is not None and left <= 0 else None

    def tokens(self) -> int:
        """Tokens read and written in this turn so far."""
        return sum(self.usage.get(name, 0) for name in ("input_tokens", "output_tokens"))

    def count(self, usage: Mapping[str, int] | None, cost_usd: float | None) -> None:
        """Add what a reply used up."""
        add_usage(self.usage, usage)
        self.cost_usd = add_cost(self.cost_usd, cost_usd)
        limit = self.limits.max_cost_usd
        if usage and cost_usd is None and limit is not None:
            self.log.complain(
                "budget", f"the model's price is not known: ${limit:g} limits nothing", MAIN_LOG
            )

    def count_extra(self, usage: Mapping[str, int] | None, cost_usd: float | None) -> None:
        """Add what no message of this turn states, as that of a subagent."""
        self.count(usage, cost_usd)
        add_usage(self.extra_usage, usage)
        self.extra_cost = add_cost(self.extra_cost, cost_usd)


def add_usage(total: dict[str, int], usage: Mapping[str, int] | None) -> None:
    """Add token counts to others."""
    for name, number in (usage or {}).items():
        total[name] = total.get(name, 0) + number


def add_cost(total: float | None, cost_usd: Json) -> float | None:
    """A sum of costs; None as long as none is known."""
    known = isinstance(cost_usd, (int, float)) and not isinstance(cost_usd, bool)
    return (total or 0.0) + float(cost_usd) if known else total


class Around:
    """A bracket for `with` and for `async with`, whichever the agent can do."""

    def __init__(
        self,
        plain: AbstractContextManager[Call],
        later: AbstractAsyncContextManager[Call] | None = None,
    ) -> None:
        self._plain = plain
        self._later = later

    def __enter__(self) -> Call:
        return self._plain.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._plain.__exit__(kind, error, trace)

    async def __aenter__(self) -> Call:
        return self.__enter__() if self._later is None else await self._later.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._later is None:
            return self.__exit__(kind, error, trace)
        return await self._later.__aexit__(kind, error, trace)


# --- what an agent or a model streams, step by step --------------------------------------


@dataclass(frozen=True, slots=True)
class Failed:
    """An answer that is an error: it is raised where the agent asked."""

    error: Exception


ENDED = object()
"""What comes after the last thing that an agent yields."""


class Flow(Protocol):
    """What an agent yields, taken step by step."""

    def advance(self, answer: object) -> object:
        """Send an answer in; what is yielded next, or `ENDED`. An `AsyncFlow`'s is awaited."""


class AsyncFlow:
    """An asynchronous agent's flow, on the loop that it belongs to."""

    def __init__(self, flow: Any) -> None:
        self._flow = flow

    async def advance(self, answer: object) -> object:
        """Send an answer in; what is yielded next, or `ENDED`."""
        flow = self._flow
        try:
            if isinstance(answer, Failed) and hasattr(flow, "athrow"):
                return await flow.athrow(answer.error)
            return await (flow.asend(answer) if hasattr(flow, "asend") else anext(flow))
        except StopAsyncIteration:
            return ENDED

    async def aclose(self) -> object:
        """Let the agent tidy up; it is not asked any more."""
        if hasattr(self._flow, "aclose"):
            await self._flow.aclose()
        return ENDED


class SyncFlow:
    """An agent's flow, taken step by step; an asynchronous one on a loop of its own."""

    def __init__(self, flow: object) -> None:
        self._flow: Any = checked_flow(flow)
        self._advance: Callable[[object], object] = self._plain
        self._over = False
        if hasattr(flow, "__anext__"):
            from .awaiting import stepper

            later = self._flow = AsyncFlow(flow)
            self._advance = stepper(later.advance, later.aclose, ENDED)

    def advance(self, answer: object) -> object:
        """Send an answer in; what is yielded next, or `ENDED`."""
        over, self._over = self._over, True
        found = self._advance(answer)
        self._over = over or found is ENDED
        return found

    def close(self) -> None:
        """Let the agent tidy up; it is not asked any more."""
        if isinstance(self._flow, AsyncFlow):
            if not self._over:
                self.advance(ENDED)
        elif hasattr(self._flow, "close"):
            self._flow.close()

    def _plain(self, answer: object) -> object:
        flow = self._flow
        try:
            if isinstance(answer, Failed) and hasattr(flow, "throw"):
                return flow.throw(answer.error)
            return flow.send(answer) if hasattr(flow, "send") else next(flow)
        except StopIteration:
            return ENDED


def checked_flow(flow: object) -> object:
    """What an agent returned, as an iterator; `Unsupported` if it is none of messages."""
    if hasattr(flow, "__anext__") or hasattr(flow, "__next__"):
        return flow
    if isinstance(flow, Awaitable) and hasattr(flow, "close"):
        flow.close()
    if not isinstance(flow, Iterable) or isinstance(flow, (str, bytes, Mapping)):
        kind = type(flow).__name__
        raise Unsupported(f"an agent yields messages, or returns a list of them, not {kind}")
    return iter(flow)


class Reading:
    """A model's stream, read in a thread, so that the turn does not wait for its next word."""

    def __init__(self, begin: Callable[[], Iterable[object]]) -> None:
        self._parts: SimpleQueue[object] = SimpleQueue()
        self._shut = False
        run, work = copy_context().run, (self._read, begin)
        self._thread = threading.Thread(None, run, "backtrail-model", work, daemon=True)
        self._thread.start()

    def _read(self, begin: Callable[[], Iterable[object]]) -> None:
        try:
            parts = iter(begin())
            try:
                while not self._shut:
                    self._parts.put(next(parts))
            finally:
                if hasattr(parts, "close"):
                    parts.close()
        except StopIteration:
            self._parts.put(Failed(Unsupported("the model ended its stream without a reply")))
        except BaseException as error:
            self._parts.put(Failed(error) if isinstance(error, Exception) else error)

    def next(self, check: Callable[[], None]) -> object:
        """The next part or `Failed`; `check` is called while nothing comes."""
        while True:
            check()
            try:
                part = self._parts.get(timeout=_TICK)
            except Empty:
                if not self._thread.is_alive() and self._parts.empty():
                    return Failed(Unsupported("the stream is read by the parent of this process"))
                continue
            if isinstance(part, BaseException):
                raise part
            return part

    def close(self) -> None:
        """Read no further than the next part."""
        self._shut = True


_TICK = 0.02


# --- by name -----------------------------------------------------------------------------

Factory = Callable[[str, str, Mapping[str, Json]], Agent]
"""What an entry point is: it takes the provider, the model, and the session's options."""

# Asking for entry points takes longer than making the agent, so our own need no asking.
_OWN = ("openai", "anthropic", "ollama", "vllm", "lmstudio", "openrouter", "scripted")


def resolve_agent(name: object, options: Mapping[str, Json]) -> Agent:
    """The agent that `"provider:model"` names."""
    provider, model = _named(name)
    if provider in _OWN:
        own = importlib.import_module("backtrail.agent.factory")
        agent: Agent = own.open_agent(provider, model, options)
        return agent
    factory: Factory = _installed(provider).load()
    return factory(provider, model, options)


def check_agent(name: object, options: Mapping[str, Json]) -> None:
    """Raise what `resolve_agent` would for a name or for options that can never be right.

    A key that the environment lacks, or a client that is not installed, may come later.
    """
    provider = _named(name)[0] if name is not None else None
    if provider is not None and provider not in _OWN:
        _installed(provider)
    elif options or provider is not None:
        importlib.import_module("backtrail.agent.factory").check_options(options)


def _named(name: object) -> tuple[str, str]:
    """The provider and the model in `"provider:model"`."""
    if not isinstance(name, str) or ":" not in name:
        raise Unsupported(f"{name!r} is no agent: give a callable, or 'provider:model'")
    provider, _, model = name.partition(":")
    return provider, model


def _installed(provider: str) -> EntryPoint:
    """The entry point of a provider that is not our own."""
    from importlib.metadata import entry_points

    for point in entry_points(group="backtrail.agents", name=provider):
        return point
    known = ", ".join(_OWN)
    raise Unsupported(f"no agent for `{provider}` is installed; this version knows {known}")
