"""Asynchronous code run from synchronous code, on a loop of its own.

The one place outside `aio` that knows an event loop; it is imported when it is needed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import Unsupported

T = TypeVar("T")


def awaited(value: Callable[[], Awaitable[T]]) -> T:
    """The result of something to be awaited, in this thread."""
    _refuse_within_a_loop()

    async def wait() -> T:
        return await value()

    return asyncio.run(wait())


def stepper(
    step: Callable[[object], Awaitable[object]], close: Callable[[], Awaitable[object]],
    ended: object,
) -> Callable[[object], object]:  # fmt: skip
    """A function that takes one step of an asynchronous flow, until that has `ended`.

    Sent `ended`, it closes the flow.
    """
    _refuse_within_a_loop()
    loop = asyncio.new_event_loop()

    async def wait(answer: object) -> object:
        return await (close() if answer is ended else step(answer))

    def advance(answer: object) -> object:
        found = ended
        try:
            found = loop.run_until_complete(wait(answer))
        finally:
            if found is ended:
                loop.close()
        return found

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
