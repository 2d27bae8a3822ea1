"""What happens in a session or in the store while it is looked at, as a stream of small events.

`EventSource` sends no header, so no token: the page reads the stream with `fetch`. Each event says
how far the log goes; its id is that number, and a reader that comes back names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from ..errors import BacktrailError, NotFound
from ..stores.base import Store
from .answers import Asked, failed
from .outline import head_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..events import Json

POLL = 0.08
"""Seconds between two looks at a session."""

_POLL_ALL = 1.0
_BEAT = 15.0


def stream(make: Callable[[], Asked]) -> Callable[[Request], object]:
    """The endpoint of a stream; of a session where one is named, else of the store."""

    async def answered(request: Request) -> Response:
        store = make().store
        session = request.query_params.get("session")
        given = request.query_params.get("after", "")
        after = int(given) if given.isascii() and given.isdecimal() and len(given) < 16 else 0
        try:
            if session is not None:
                await run_in_threadpool(store.record, session)
        except BacktrailError as error:
            return failed(error)
        events = _of_session(store, session, after) if session else _of_store(store)
        return StreamingResponse(events, media_type="text/event-stream")

    return answered


async def _of_session(store: Store, session_id: str, after: int) -> AsyncIterator[bytes]:
    born = (await run_in_threadpool(store.record, session_id)).created_at
    # At once: so the page knows that it is connected, and what it missed.
    yield b": here\n\n"
    quiet = 0.0
    while True:
        try:
            head = await run_in_threadpool(head_of, store, session_id)
            # The id of a deleted session may be given to another one.
            if (
                head < after
                and (await run_in_threadpool(store.record, session_id)).created_at != born
            ):
                raise NotFound(f"session `{session_id}` was deleted")
        except NotFound:
            yield _event("gone", {}, None)
            return
        except BacktrailError as error:
            yield _event("trouble", {"message": str(error)}, None)
            await anyio.sleep(_POLL_ALL)
            continue
        if head > after:
            after = head
            yield _event("events", {"head": head}, head)
            quiet = 0.0
        await anyio.sleep(POLL)
        quiet += POLL
        if quiet > _BEAT:
            yield b": still here\n\n"
            quiet = 0.0


async def _of_store(store: Store) -> AsyncIterator[bytes]:
    """Says that the list is another one."""
    known: object = None
    yield b": here\n\n"
    while True:
        try:
            newest = await run_in_threadpool(_newest, store)
        except BacktrailError as error:
            yield _event("trouble", {"message": str(error)}, None)
            newest = known
        if newest != known and known is not None:
            yield _event("sessions", {}, None)
        known = newest
        await anyio.sleep(_POLL_ALL)


def _newest(store: Store) -> object:
    found = store.sessions(limit=1)
    return [(info.id, info.updated_at, info.title, info.tags) for info in found]


def _event(name: str, data: Json, id: int | None) -> bytes:
    lines = [f"event: {name}", f"data: {msgspec.json.encode(data).decode()}"]
    if id is not None:
        lines.append(f"id: {id}")
    return ("\n".join(lines) + "\n\n").encode()
