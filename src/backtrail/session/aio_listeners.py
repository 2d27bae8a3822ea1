"""Subscriptions for `AsyncSession`: waiting happens on the loop, reading in worker threads."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from ..events import Event
from .listeners import Delta, Subscription
from .threads import finish, run

if TYPE_CHECKING:
    from .aio import AsyncSession


class AsyncSubscription:
    """What happens in a session from now on, until `close` or the session's end."""

    def __init__(self, session: AsyncSession, size: int, after: int | None) -> None:
        self._session = session
        self._inner: Subscription = session._session._listen(size, after)

    @property
    def lost_deltas(self) -> int:
        """How many deltas did not fit into the queue."""
        return self._inner.lost_deltas

    async def _begun(self) -> Subscription:
        if self._inner.after is None and not self._inner.closed:
            await run(self._session._session._begin_listening)
        return self._inner

    async def get(self, timeout: float | None = None) -> Event | Delta | None:
        """The next event or delta; None after `timeout` seconds or when closed."""
        inner = await self._begun()
        with anyio.move_on_after(timeout):
            while True:
                news = self._session._next_news()
                item = inner.take()
                if item is None and inner.behind:
                    await run(inner.fill)
                    continue
                if item is not None or inner.closed:
                    return item
                await news.wait()
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | Delta:
        item = await self.get()
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """End the subscription; what is queued can still be taken."""
        await finish(self._inner.close)
        self._session._tell()

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
