"""Requests as the parts of the viewer see them, and what they answer: JSON, errors included."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from ..errors import (
    BacktrailError,
    Conflict,
    Damaged,
    InvalidData,
    InvalidId,
    NotFound,
    SessionBusy,
    StoreFailed,
    Unsafe,
    Unsupported,
)
from ..telemetry import logger

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..events import Json, SessionInfo
    from ..stores.base import Store
    from .outline import Outlines

_STATUS: tuple[tuple[type[BaseException], int, str], ...] = (
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (SessionBusy, 423, "busy"),
    (InvalidData, 400, "usage"),
    (InvalidId, 400, "usage"),
    (Unsafe, 403, "unsafe"),
    (Unsupported, 422, "unsupported"),
    (Damaged, 500, "damaged"),
    (StoreFailed, 503, "store_failed"),
    (BacktrailError, 500, "error"),
    (OSError, 503, "store_failed"),
)
"""Which error has which status, and its name in the answer."""


def answer(value: Json, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def failure(status: int, code: str, message: str) -> Response:
    """An error as JSON."""
    return answer({"error": {"code": code, "message": message}}, status)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: the store it is about, and what it names."""

    store: Store
    outlines: Outlines
    read_only: bool = False
    path: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Json] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The session that the request is about."""
        return self.path["id"]

    def place(self, seq: int | None) -> str:
        """Where an event of the session is, as people count; empty for none."""
        return "" if seq is None else self.outlines.of(self.store, self.id).place(seq)

    def record(self) -> SessionInfo:
        """The session's record; what is counted in it may be of an earlier moment."""
        return self.store.record(self.id)

    def text(self, name: str) -> str | None:
        """A word of the query."""
        return self.query.get(name) or None

    def number(self, name: str, usual: int | None = None) -> int | None:
        """A number of the query."""
        given = self.query.get(name)
        if not given:
            return usual
        if not (given.isascii() and given.isdecimal() and len(given) < 16):
            raise InvalidData(f"`{name}` is a number")
        return int(given)

    def count(self, name: str, usual: int, most: int) -> int:
        """A number of the query that is at most so much."""
        found = self.number(name, usual)
        return min(usual if found is None else found, most)

    def given(self, name: str, kind: type, usual: Json = None) -> Json:
        """A value of the body, of a kind; the usual one where it is not there."""
        value = self.body.get(name)
        if value is None:
            return usual
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise InvalidData(f"`{name}` is not {kind.__name__}")
        return value


Part = Callable[[Asked], "Json"]
"""What answers a request: it is called in a thread, since a store blocks."""


def endpoint(part: Part, make: Callable[[], Asked]) -> Callable[[Request], Awaitable[Response]]:
    """A part of the viewer as an endpoint; `make` gives what each request is about."""

    async def answered(request: Request) -> Response:
        base = make()
        try:
            body = await _body(request) if request.method == "POST" else {}
        except InvalidData as error:
            return failure(400, "usage", str(error))
        asked = Asked(
            base.store, base.outlines, base.read_only, dict(request.path_params),
            dict(request.query_params), body,
        )  # fmt: skip
        return await run_in_threadpool(_called, part, asked)

    return answered


async def _body(request: Request) -> dict[str, Json]:
    try:
        found = msgspec.json.decode(await request.body())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidData(f"the request is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidData("the request is a JSON object")
    return found


def _called(part: Part, asked: Asked) -> Response:
    try:
        return answer(part(asked))
    except (BacktrailError, OSError) as error:
        return failed(error)


def failed(error: BaseException) -> Response:
    """The answer for an error of the library or of the system."""
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            if status >= 500:
                logger().warning("the viewer could not answer: %s", error)
            return failure(status, code, str(error))
    raise error
