"""What an agent or a model streams, step by step, in a thread or on a loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from .._startup.frozen import dataclass
from ..errors import Unsupported


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
