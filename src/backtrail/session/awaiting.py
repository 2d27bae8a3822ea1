"""Asynchronous code run from synchronous code, on a loop of its own.

The one place outside `aio` that knows an event loop; it is imported when it is needed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from ..errors import Unsupported
from ..events import Json


def awaited(value: Callable[[], Awaitable[Json]]) -> Json:
    """The result of something to be awaited, in this thread."""
    _refuse_within_a_loop()

    async def wait() -> Json:
        return await value()

    return asyncio.run(wait())


def stepper(step: Callable[[Json], Awaitable[Json]]) -> Callable[[Json], Json]:
    """A function that takes one step of an asynchronous generator; `StopIteration` ends it."""
    _refuse_within_a_loop()
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


def _refuse_within_a_loop() -> None:
    if _is_within_asyncio() or is_within_trio():
        raise Unsupported(
            "this agent or tool is asynchronous, and a loop is running: use AsyncSession"
        )


def _is_within_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_within_trio() -> bool:
    """Whether the caller runs under trio."""
    # A caller under trio has imported it.
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True
