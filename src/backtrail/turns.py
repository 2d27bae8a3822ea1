"""The turn engine: what an agent yields becomes requests that a driver carries out.

An agent is a callable `agent(turn)` that yields messages and deltas, sync or async. It may
also yield requests (`Ask` a model, `Run` tools), and is sent their answers. The engine is a
plain generator with no I/O of its own: the synchronous driver is in `sending.py`, the
asynchronous one in `aio_sending.py`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from .calls import ToolCall
from .errors import InvalidData
from .events import Event, Format, Json, NewEvent
from .messages import message_event, text_of
from .subscribing import Delta

if TYPE_CHECKING:
    from .watching import Watching

ExitReason = Literal[
    "end_turn", "max_turns", "max_tokens", "max_budget", "interrupted", "error", "stop_sequence"
]
"""Why a turn ended."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a turn gave. `files` are the paths that changed; `cost_usd` None if unknown."""

    text: str
    messages: list[dict[str, Json]]
    usage: dict[str, int]
    files: list[str]
    exit_reason: ExitReason
    cost_usd: float | None = None
    error: str | None = None
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the agent with what is known about it; a bare mapping will do too."""

    message: Mapping[str, Json]
    usage: Mapping[str, int] | None = None
    cost_usd: float | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: call this model. The answer is its reply; its deltas are told meanwhile."""

    model: Json
    request: Json


@dataclass(frozen=True, slots=True)
class Run:
    """A request: run these tools, in parallel where `parallel` says so.

    The answer is a list of results, one for each job; each is in the log by then.
    """

    jobs: list[Job]
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A tool call to be run: `run()` gives its result, `paths` are those it declares."""

    call: ToolCall
    run: Callable[[], object]
    paths: list[str] | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """A request: wait that many seconds, or until the turn is cancelled."""

    seconds: float


@dataclass(frozen=True, slots=True)
class End:
    """The turn is over, for this reason; what an agent yields last, if not `end_turn`."""

    reason: ExitReason
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """For the driver: put this into the log. The answer is the event.

    `spans`: a call in it opens a bracket, which its result closes. Not so where the agent
    brackets its tools itself.
    """

    event: NewEvent
    spans: bool = True


@dataclass(frozen=True, slots=True)
class Tell:
    """For the driver: hand this to whoever listens."""

    delta: Delta


@dataclass(frozen=True, slots=True)
class Failed:
    """An answer that is an error: it is raised where the agent asked."""

    error: Exception


Todo = Append | Tell | Ask | Run | Pause
"""What a driver carries out."""

Flow = Iterator[Json] | AsyncIterator[Json]


class AgentLike(Protocol):
    """Any callable that answers a turn."""

    def __call__(self, turn: LiveTurn, /) -> Flow:
        """Yield messages and deltas."""


@dataclass(slots=True)
class Limits:
    """What a turn may use up; None: as much as it likes."""

    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    seconds: float | None = None


class LiveTurn:
    """A turn under way, as its agent sees it."""

    def __init__(
        self, session: Watching, event: Event, limits: Limits, cancelled: Callable[[], bool],
        model: str | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self.event = event
        self.limits = limits
        self.model = model
        self.cancelled = cancelled
        self.usage: dict[str, int] = {}
        self.cost_usd: float | None = None
        self.end = End("end_turn")
        self._began = time.monotonic()

    @property
    def prompt(self) -> str:
        """What the user said, as text."""
        return text_of(self.event.data.get("message"))

    @property
    def workspace(self) -> str | None:
        """The directory that is worked in."""
        return self.session.info().cwd

    def messages(self, format: Format | None = None) -> list[dict[str, Json]]:
        """The whole conversation, this turn included."""
        return self.session.messages(format)

    def tool(self, name: str, input: Json = None, **options: Json) -> Json:
        """A bracket around a tool call; see `Session.tool`."""
        return self.session.tool(name, input, **options)

    def emit(self, delta: Delta) -> None:
        """Hand a delta to whoever listens; it is not stored."""
        self.session.emit(delta)

    def spent(self) -> ExitReason | None:
        """The limit that is used up, if one is."""
        limits = self.limits
        if limits.max_tokens is not None and self.tokens() >= limits.max_tokens:
            return "max_tokens"
        cost = self.cost_usd or 0.0
        if limits.max_cost_usd is not None and cost >= limits.max_cost_usd:
            return "max_budget"
        if limits.seconds is not None and time.monotonic() - self._began >= limits.seconds:
            return "max_budget"
        return None

    def tokens(self) -> int:
        """Tokens read and written in this turn so far."""
        return sum(self.usage.get(name, 0) for name in ("input_tokens", "output_tokens"))

    def count(self, usage: Mapping[str, int] | None, cost_usd: float | None) -> None:
        """Add what a reply used up."""
        for name, number in (usage or {}).items():
            self.usage[name] = self.usage.get(name, 0) + number
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd


def carry(turn: LiveTurn, item: object) -> Generator[Todo, Json, Json]:
    """What is to be done about one thing that an agent yielded; its answer is returned."""
    if isinstance(item, Delta):
        yield Tell(item)
        return None
    if isinstance(item, (Ask, Run, Pause, Append)):
        return (yield item)
    if isinstance(item, End):
        if item.reason not in get_args(ExitReason):
            raise InvalidData(f"{item.reason!r} is no reason for a turn to end")
        turn.end = item
        return None
    said = item if isinstance(item, Said) else None
    message = said.message if said is not None else item
    usage, cost = (said.usage, said.cost_usd) if said is not None else (None, None)
    event = message_event(message, usage=usage, cost_usd=cost)
    if said is not None and said.model is not None:
        event = NewEvent(event.kind, {**event.data, "model": said.model})
    turn.count(usage, cost)
    return (yield Append(event, spans=said is None))
