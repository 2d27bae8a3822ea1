"""A server that gives every request the same answer."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server on the loopback; its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        """Reads the request and answers."""

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    for verb in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{verb}", Handler._answer)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
