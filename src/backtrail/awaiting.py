"""Asynchronous code run from synchronous code, on a loop of its own.

The one place outside `aio` that knows an event loop; it is imported when it is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .errors import Unsupported
from .events import Json


def awaited(value: Awaitable[Json]) -> Json:
    """The result of something to be awaited, in this thread."""

    async def wait() -> Json:
        return await value

    return asyncio.run(wait())


def stepper(step: Callable[[Json], Awaitable[Json]]) -> Callable[[Json], Json]:
    """A function that takes one step of an asynchronous generator; `StopIteration` ends it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise Unsupported(
            "this agent is asynchronous and a loop is running: use AsyncSession, or await it"
        )
    loop = asyncio.new_event_loop()

    async def wait(answer: Json) -> Json:
        return await step(answer)

    def advance(answer: Json) -> Json:
        try:
            return loop.run_until_complete(wait(answer))
        except StopAsyncIteration:
            loop.close()
            raise StopIteration from None
        except BaseException:
            loop.close()
            raise

    return advance
