"""What stands before every request: only this page, opened by the person, gets an answer.

Any page in the same browser may send requests to this machine. So a request must name this server
as its host, which keeps out names that were made to point here; it must come from this very
origin, or from none, as by typing; and for data it must bear the token, which no other page has.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from ..errors import BacktrailError
from .answers import failure

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""The names that this server goes by."""

LARGEST = 1 << 20
"""Bytes that a request may bring."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""What every answer says."""


class Refusal(BacktrailError):
    """A request that is not answered, and with which status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """An ASGI application that lets through what may come in, and marks what goes out."""

    def __init__(self, app: ASGIApp, *, token: str, read_only: bool) -> None:
        self._app = app
        self._token = token.encode()
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self.check(scope)
        except Refusal as refusal:
            answer = failure(refusal.status, "refused", str(refusal))
            await answer(scope, receive, marked)
            return
        await self._app(scope, receive, marked)

    def check(self, scope: Scope) -> None:
        """`Refusal` for what may not come in."""
        headers = Headers(scope=scope)
        self.check_host(scope, headers)
        self.check_origin(scope, headers)
        if scope["path"].startswith("/api/"):
            self.check_token(headers)
        if scope["method"] not in ("GET", "HEAD"):
            self.check_write(scope, headers)

    def check_host(self, scope: Scope, headers: Headers) -> None:
        """The host must be this server, by its own port and not by what the request says."""
        server = scope.get("server")
        port = server[1] if server else None
        names = {f"{host}:{port}" for host in HOSTS} | (set(HOSTS) if port in (80, None) else set())
        if headers.getlist("host") not in [[name] for name in names]:
            raise Refusal(421, "this server is 127.0.0.1 and goes by no other name")

    def check_origin(self, scope: Scope, headers: Headers) -> None:
        """A page of another origin may neither ask nor link nor frame."""
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Refusal(403, "this request comes from another site")
        if headers.get("sec-fetch-dest") in ("iframe", "frame", "embed", "object"):
            raise Refusal(403, "this page is shown in no frame")
        ours = f"http://{headers.get('host')}"
        if any(origin != ours for origin in headers.getlist("origin")):
            raise Refusal(403, "this request comes from another origin")

    def check_token(self, headers: Headers) -> None:
        """Data is given to the bearer of the token only."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.encode(), self._token):
            raise Refusal(401, "the token of this viewer is missing, or is that of another one")

    def check_write(self, scope: Scope, headers: Headers) -> None:
        """A browser asks before it sends JSON to another origin; other kinds it just sends."""
        if scope["method"] != "POST":
            raise Refusal(405, "only GET and POST are understood")
        if headers.get("origin") is None:
            raise Refusal(403, "a request that changes something says where it comes from")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, "a request that changes something is application/json")
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > LARGEST:
            raise Refusal(413, f"a request has a length, of {LARGEST} bytes at most")
        if self._read_only and not scope["path"].endswith("/preview"):
            raise Refusal(403, "this viewer was started with --read-only")
