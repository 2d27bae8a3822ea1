"""Running the viewer for a person: one server a store, on a port of this machine's loopback.

Where it runs, a file in the user's state says: its port and token, for this user's eyes. Another
call opens a window on that one. A lock on the file lasts as long as the server, and the kernel
drops it when the server is killed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .._startup.folders import state_folder
from .._startup.hashing import sha256
from ..errors import StoreFailed, Unsupported
from ..stores.disk.fs import failed, make_directory
from ..stores.wrapper import unwrapped

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..stores.base import Store

ADDRESS = "127.0.0.1"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a viewer answers, and what a window must bear."""

    port: int
    token: str
    read_only: bool = False

    @property
    def url(self) -> str:
        """What to open. The token is behind `#`, which no browser sends anywhere."""
        return f"http://{ADDRESS}:{self.port}/#token={self.token}"


class Place:
    """The file that says where the viewer of a store runs."""

    def __init__(self, store: Store) -> None:
        name = unwrapped(store).id or store.url
        self._path = Path(state_folder(), "ui", sha256(name.encode()).hexdigest()[:24])
        self._fd = -1

    def take(self) -> bool:
        """Whether no other viewer runs; then none does until `leave`, or our death."""
        make_directory(self._path.parent)
        try:
            fd = os.open(self._path, _FLAGS, 0o600)
        except OSError as error:
            raise failed(error, f"open {self._path}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        os.ftruncate(fd, 0)
        return True

    def write(self, address: Address) -> None:
        """Say where it runs."""
        os.fchmod(self._fd, 0o600)
        os.pwrite(self._fd, msgspec.json.encode(address), 0)

    def read(self) -> Address:
        """Where the other one runs; it may just be beginning."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            with suppress(OSError, msgspec.MsgspecError):
                return msgspec.json.decode(self._path.read_bytes(), type=Address)
            if time.monotonic() > deadline:
                raise StoreFailed(f"another viewer of this store runs, and {self._path} does not "
                                  "say where: end it, and try again")  # fmt: skip
            time.sleep(0.05)

    def leave(self) -> None:
        """Let go; another one may run."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


@contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A socket on the loopback; port 0 is any that is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((ADDRESS, port))
        except OSError as error:
            raise Unsupported(f"port {port} cannot be had: {error.strerror}") from error
        found.listen(128)
        yield found


class Idle:
    """Counts what is under way, so that an idle server can stop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0
        self._last = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
            self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long nothing has been asked for."""
        return 0.0 if self._open else time.monotonic() - self._last


def serve(
    store: Store, *, port: int = 0, read_only: bool = False, idle: float = 43_200.0,
    ready: Callable[[Address, bool], None],
) -> None:  # fmt: skip
    """Run the viewer until it is ended, or nothing was asked for `idle` seconds.

    `ready` gets where it runs, and whether it ran already: then this returns.
    """
    import uvicorn

    from . import app

    place = Place(store)
    if not place.take():
        ready(place.read(), True)
        return
    try:
        with listening(port) as found:
            address = Address(found.getsockname()[1], secrets.token_urlsafe(32), read_only)
            inner = Idle(app(store, token=address.token, read_only=read_only))
            config = uvicorn.Config(
                inner, log_level="warning", access_log=False, server_header=False,
                date_header=False, lifespan="off", timeout_graceful_shutdown=1, ws="none",
                http="h11", loop="asyncio",
            )  # fmt: skip
            server = uvicorn.Server(config)
            place.write(address)
            watcher = threading.Thread(target=_watch, args=(server, inner, idle), daemon=True)
            watcher.start()
            ready(address, False)
            server.run(sockets=[found])
    finally:
        place.leave()


def _watch(server: object, inner: Idle, idle: float) -> None:
    while inner.seconds < idle:
        time.sleep(min(1.0, max(0.05, idle / 10)))
    server.should_exit = True  # type: ignore[attr-defined]
