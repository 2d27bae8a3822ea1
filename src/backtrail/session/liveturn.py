"""An agent and the turn it answers, and from a name to an agent.

"provider:model" goes to a factory found by entry point: the core imports no agent. A factory
in the group `backtrail.agents` takes the provider, the model's name and the options of the
session, and returns a callable that answers a turn.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

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
        if self.is_over():
            raise stopped(self)

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


def stopped(turn: LiveTurn) -> Cancelled:
    """Why something at work in a turn was stopped: by a caller, or out of time."""
    seconds = turn.limits.seconds
    if turn.cancelled() or seconds is None:
        return Cancelled()
    return Cancelled("max_budget", f"the turn took over {seconds:g} seconds")


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
