"""A TCP proxy that fails on purpose: it delays, cuts and holds back what a client sends.

What a client sends at once is a *piece*. `arm` says what happens to one of the next pieces:

- `before`: it never arrives, and the connection breaks.
- `after`: it arrives, and the connection breaks at once on both sides.
- `reply`: it is carried out, and the answer is lost with the connection.
- `late`: the client's connection breaks at once; the piece arrives a while later.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType

CUTS = ("before", "after", "reply", "late")


class Proxy:
    """Listens on a port of the loopback and passes on to another."""

    def __init__(self, port: int, *, delay: float = 0.0) -> None:
        self.target = ("127.0.0.1", port)
        self.delay = delay
        """Seconds that each piece takes, either way; then nothing is cut."""
        self.late = 0.1
        """Seconds after which a piece that is held back arrives."""
        self.fired = False
        """Whether what was armed has happened."""
        self.pieces = 0
        """How many pieces clients sent, apart from news of appends."""
        self._armed: tuple[str, int] | None = None
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.break_all()

    def arm(self, cut: str, skip: int) -> None:
        """Have the piece after `skip` others meet with a cut."""
        with self._guard:
            self._armed = (cut, skip)
            self.fired = False

    def disarm(self) -> None:
        """Let everything pass."""
        with self._guard:
            self._armed = None

    def break_all(self) -> None:
        """Break every connection."""
        for one in list(self._open):
            _reset(one)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target, timeout=5)
                server.settimeout(None)
            except OSError:
                _reset(client)
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open |= {client, server}
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _next(self, piece: bytes) -> str:
        """What happens to a piece."""
        if b"pg_notify" in piece:
            return ""
        with self._guard:
            self.pieces += 1
            if self._armed is None:
                return ""
            cut, skip = self._armed
            if skip:
                self._armed = (cut, skip - 1)
                return ""
            self._armed = None
            self.fired = True
            return cut

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        if self.delay:
            self._carry(client, server)
            return
        selector = selectors.DefaultSelector()
        lost = False
        try:
            for one in (client, server):
                selector.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is server:
                        if lost:
                            return
                        client.sendall(data)
                        continue
                    cut = self._next(data)
                    if cut == "before":
                        return
                    if cut == "late":
                        _reset(client)
                        time.sleep(self.late)
                        server.sendall(data)
                        # For as long as the server may take to carry it out.
                        time.sleep(self.late)
                        return
                    server.sendall(data)
                    if cut == "after":
                        return
                    lost = lost or cut == "reply"
        except (OSError, ValueError):
            # Broken from elsewhere.
            return
        finally:
            selector.close()
            for one in (client, server):
                self._open.discard(one)
                _reset(one)

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """Pass everything on, each piece as late as the others, as a long wire does."""
        other = {client: server, server: client}
        # One that waits less exactly would wait for up to a millisecond more.
        selector = selectors.SelectSelector()
        under_way: deque[tuple[float, socket.socket, bytes]] = deque()
        try:
            for one in other:
                selector.register(one, selectors.EVENT_READ)
            while True:
                wait = under_way[0][0] - time.perf_counter() if under_way else None
                for key, _ in selector.select(None if wait is None else max(wait, 0.0)):
                    source: socket.socket = key.fileobj  # type: ignore[assignment]
                    data = source.recv(1 << 20)
                    if not data:
                        return
                    under_way.append((time.perf_counter() + self.delay, other[source], data))
                while under_way and under_way[0][0] <= time.perf_counter():
                    _, target, data = under_way.popleft()
                    target.sendall(data)
        except (OSError, ValueError):
            # Broken from elsewhere.
            return
        finally:
            selector.close()
            for one in other:
                self._open.discard(one)
                _reset(one)


def _reset(one: socket.socket) -> None:
    """Break a connection as a machine that went away would."""
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # A thread that waits in `recv` wakes.
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
