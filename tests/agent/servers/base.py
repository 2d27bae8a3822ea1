"""What both servers share: HTTP, server-sent events, the script, the ways to fail."""

from __future__ import annotations

import json
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

Json = Any


@dataclass(frozen=True)
class Answer:
    """A message, and how it is streamed.

    `events` in place of a message are sent as they are. `piece` is the number of characters
    in a piece of text or arguments; `pause` the seconds before each event; `held` keeps the
    answer back until it is set.
    """

    message: str | Mapping[str, Json] = ""
    usage: Mapping[str, Json] | None = None
    stop_reason: str | None = None
    piece: int = 5
    pause: float = 0
    held: threading.Event | None = None
    events: Sequence[Mapping[str, Json]] | None = None


@dataclass(frozen=True)
class Failure:
    """An error in place of an answer."""

    status: int
    message: str = "scripted failure"
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Broken:
    """An answer that goes wrong after some events.

    `cut` drops the connection, `end` closes the stream in good order but too early,
    `error` sends the provider's error event, `hang` says nothing more.
    """

    answer: str | Mapping[str, Json] | Answer
    after: int = 2
    how: Literal["cut", "end", "error", "hang"] = "cut"
    kind: str = "overloaded_error"


Told = str | Mapping[str, Json] | Answer | Failure | Broken
Step = Told | Callable[[dict[str, Json]], Told]


class Refused(Exception):
    """The request breaks a rule of the provider."""


class ModelServer(ABC):
    """A server with a script; use it as a context manager."""

    path: str
    prefix: str = ""

    def __init__(self) -> None:
        self.requests: list[dict[str, Json]] = []
        self.headers: list[dict[str, str]] = []
        self.refused: list[str] = []
        self.disconnected = 0
        self._script: deque[Step] = deque()
        self._lock = threading.Lock()
        self._over = threading.Event()
        server = self

        class Handler(_Handler):
            home = server

        self._http = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self) -> str:
        """What to give as `base_url`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}{self.prefix}"

    @property
    def left(self) -> int:
        """How much of the script has not been used."""
        return len(self._script)

    def script(self, *steps: Step) -> Self:
        """Add what the next valid requests are answered with."""
        self._script.extend(steps)
        return self

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Answer no more; twice is the same as once."""
        if self._over.is_set():
            return
        self._over.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    # --- what a provider spells in its own way -------------------------------------------

    @abstractmethod
    def check(self, body: dict[str, Json], headers: Mapping[str, str]) -> None:
        """Raise `Refused` if the provider would refuse the request."""

    @abstractmethod
    def events(self, answer: Answer, body: dict[str, Json]) -> list[bytes]:
        """The answer as server-sent events."""

    @abstractmethod
    def failure(self, failure: Failure) -> dict[str, Json]:
        """The body of an error."""

    @abstractmethod
    def broken(self, kind: str) -> bytes:
        """An error in the middle of a stream."""

    def plain(self, path: str, body: dict[str, Json]) -> dict[str, Json] | None:
        """The answer to a request at a path of its own, without a stream; None: no such path."""
        return None

    # --- one request ---------------------------------------------------------------------

    def answer(self, body: dict[str, Json], headers: Mapping[str, str]) -> Told:
        """What to do about a request."""
        with self._lock:
            self.requests.append(body)
            self.headers.append(dict(headers))
            try:
                self.check(body, headers)
            except Refused as refused:
                self.refused.append(str(refused))
                return Failure(400, str(refused), kind="invalid_request_error")
            if not self._script:
                # Not transient, so that it is not tried again.
                return Failure(400, "the script of the test server is over")
            step = self._script.popleft()
        return step(body) if callable(step) else step


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away between two requests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    home: ModelServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        plain = self.home.plain(self.path.partition("?")[0], body)
        if plain is not None:
            self._reply(200, plain)
            return
        if self.path.partition("?")[0] != self.home.path:
            self._fail(Failure(404, f"no such path: {self.path}"))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        notified = self.home.answer(body, headers)
        try:
            if isinstance(notified, Failure):
                self._fail(notified)
            else:
                self._stream(
                    notified if isinstance(notified, Broken) else Broken(notified, -1), body
                )
        except (BrokenPipeError, ConnectionResetError):
            self.home.disconnected += 1
            self.close_connection = True

    def _fail(self, failure: Failure) -> None:
        self._reply(failure.status, self.home.failure(failure), failure.headers)

    def _reply(
        self, status: int, notified: Mapping[str, Json], headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps(notified).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, broken: Broken, body: dict[str, Json]) -> None:
        given = broken.answer
        answer = given if isinstance(given, Answer) else Answer(given)
        if answer.held is not None:
            answer.held.wait(30)
        events = self.home.events(answer, body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events if broken.after < 0 else events[: broken.after]:
            if answer.pause:
                self.home._over.wait(answer.pause)
            self._chunk(event)
        if broken.after >= 0:
            if broken.how == "error":
                self._chunk(self.home.broken(broken.kind))
            elif broken.how == "hang":
                self.home._over.wait(30)
            if broken.how in ("cut", "hang"):
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def sse(data: Mapping[str, Json] | str, event: str | None = None) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def pieces(text: str, size: int) -> list[str]:
    """A text in pieces; an empty one is one piece."""
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def need(rule: object, otherwise: str) -> None:
    """Refuse the request unless `rule` holds."""
    if not rule:
        raise Refused(otherwise)
