"""Sending for `AsyncSession`: what its agent answers, whole or as it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

import anyio

from ..events import Event, Json, NewEvent
from .aio_drive import Turning
from .listeners import Delta
from .session import Session
from .turns import (
    Content,
    Limits,
    Result,
    Retry,
    limits_of,
    said_by_user,
)

if TYPE_CHECKING:
    import os

    from .watching import Call


class AsyncSending(ABC):
    """The half of an `AsyncSession` that its agent answers."""

    _session: Session
    _scope: anyio.CancelScope | None = None
    _turning: Turning | None = None

    @abstractmethod
    def _tell(self) -> None:
        """Wake those who listen to the session."""

    @abstractmethod
    async def _append(self, events: list[NewEvent], *, spans: bool = True) -> list[Event]:
        """Append to the main log, and wake those who listen."""

    @abstractmethod
    def _driving(self) -> AbstractAsyncContextManager[None]:
        """Turns and rewinds: one task at a time."""

    if TYPE_CHECKING:

        def tool(
            self,
            name: str,
            input: Json = None,
            *,
            id: str | None = None,
            paths: Collection[str | os.PathLike[str]] | None = None,
        ) -> AbstractAsyncContextManager[Call]:
            """A bracket around a tool call."""

    async def send(
        self,
        content: Content,
        *,
        id: str | None = None,
        retry: Retry = "errors",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Result:
        """Say something and run the turn to its end; see `Session.send`."""
        begin = partial(self._session._open_send, said_by_user(content), id, retry)
        return await Turning(self, begin, model, limits_of(max_turns, budget)).finished()

    def stream(
        self,
        content: Content,
        *,
        id: str | None = None,
        retry: Retry = "errors",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> AsyncStream:
        """`send`, giving every delta and event as it comes; the last is a delta "done".

        Who leaves it early closes it (`async with`, or `contextlib.aclosing`), which ends
        the turn. One that is only forgotten is ended by the next turn, or with the session.
        """
        begin = partial(self._session._open_send, said_by_user(content), id, retry)
        return AsyncStream(Turning(self, begin, model, limits_of(max_turns, budget)))

    async def proceed(
        self,
        *,
        pending: Literal["fail", "retry"] = "fail",
        model: str | None = None,
        max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Result:
        """Finish a turn that a crash cut short; see `Session.proceed`."""
        begin = partial(self._session._open_proceed, pending)
        return await Turning(self, begin, model, limits_of(max_turns, budget)).finished()

    async def cancel(self) -> None:
        """End the turn under way, with `interrupted`; tools that run are stopped."""
        self._session.cancel()
        if self._scope is not None:
            self._scope.cancel()


class AsyncStream(AsyncIterator[Delta | Event]):
    """What a turn shows, as it comes. The turn begins with the first step."""

    def __init__(self, turning: Turning) -> None:
        self._turning = turning

    async def __anext__(self) -> Delta | Event:
        return await anext(self._turning)

    async def aclose(self) -> None:
        """End the turn if it has not ended; twice is the same as once."""
        await self._turning.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._turning.forget()
