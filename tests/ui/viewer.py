"""A viewer that runs, a browser that looks at it, and sessions to look at."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, Route

from backtrail import Session
from backtrail.events import Json
from backtrail.stores import open_store
from backtrail.stores.base import Store
from backtrail.web import app
from backtrail.web.serve import listening

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""Debian's browser; `make test-ui` installs it."""

AXE = Path(__file__).parents[2] / ".ui-node/node_modules/axe-core/axe.min.js"
"""What checks that a page can be used by everybody; `make test-ui` installs it, too."""

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    # A name that a stranger made to point here: rebinding, for real.
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
]  # fmt: skip

TOKEN = "0123456789abcdef" * 4


@dataclass
class Viewer:
    """A viewer of a store, in a thread of this process."""

    store: Store
    port: int
    server: uvicorn.Server
    token: str = TOKEN

    @property
    def base(self) -> str:
        """Its origin."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        """An address as it is opened, with the token."""
        return f"{self.base}{path}#token={self.token}"

    def ask(
        self, path: str, body: Json = None, headers: Mapping[str, str | None] | None = None,
        *, method: str | None = None,
    ) -> tuple[int, Any, dict[str, str]]:  # fmt: skip
        """Send a request as a window of the viewer does, but for the headers that are given."""
        sent: dict[str, str | None] = {
            "host": f"127.0.0.1:{self.port}", "authorization": f"Bearer {self.token}"
        }  # fmt: skip
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            sent |= {"origin": self.base, "content-type": "application/json"}
        sent |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method or ("GET" if data is None else "POST"), path,
                                  skip_host=True, skip_accept_encoding=True)  # fmt: skip
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if data is not None:
                connection.putheader("content-length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            text = answer.read()
            kind = answer.headers.get_content_type()
            found = json.loads(text) if kind == "application/json" else text
            return answer.status, found, {k.lower(): v for k, v in answer.headers.items()}
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """What a request gives that is answered."""
        status, found, _ = self.ask(f"/api/{path}")
        assert status == 200, found
        return found

    def post(self, path: str, body: Json) -> Any:
        """The same of one that is sent."""
        status, found, _ = self.ask(f"/api/{path}", body)
        assert status == 200, found
        return found


@contextmanager
def viewing(store: Store | str, *, read_only: bool = False) -> Iterator[Viewer]:
    """Run a viewer as long as the block lasts."""
    place = open_store(store) if isinstance(store, str) else store
    with listening(0) as found:
        made = app(place, token=TOKEN, read_only=read_only)
        config = uvicorn.Config(made, log_level="error", access_log=False, lifespan="off",
                                timeout_graceful_shutdown=1, ws="none")  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [found]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            yield Viewer(place, found.getsockname()[1], server)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(20)
    if isinstance(store, str):
        place.close()


# --- windows -----------------------------------------------------------------------------


@dataclass
class Window:
    """A page of the viewer, and what it did that it should not."""

    page: Page
    context: BrowserContext
    wrong: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    received: list[int] = field(default_factory=list)

    def check(self) -> None:
        """Nothing failed in it, and it asked this machine only."""
        assert self.wrong == []
        assert self.elsewhere == []


@contextmanager
def window(
    browser: Browser, address: str, *, scheme: str = "light", width: int = 1280,
    height: int = 800, clean: bool = True,
) -> Iterator[Window]:  # fmt: skip
    """A window on an address; it may talk to the loopback only. `clean`: nothing may fail."""
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": height},
    )
    context.set_default_timeout(15_000)
    try:
        page = context.new_page()
        found = Window(page, context)

        def only_loopback(route: Route) -> None:
            host = urlsplit(route.request.url).hostname
            if host in ("127.0.0.1", "localhost", "evil.example"):
                route.continue_()
            else:
                found.elsewhere.append(route.request.url)
                route.abort()

        context.route("**/*", only_loopback)
        page.on("pageerror", lambda error: found.wrong.append(f"error: {error}"))
        page.on("console", lambda m: found.wrong.append(m.text) if m.type == "error" else None)
        page.on("response", lambda r: found.wrong.append(r.url) if r.status >= 400 else None)
        page.goto(address)
        yield found
        if clean:
            found.check()
    finally:
        context.close()


def shot(page: Page, name: str) -> None:
    """A picture of a page, for a person to look at: `BACKTRAIL_SHOTS` is a folder."""
    folder = os.environ.get("BACKTRAIL_SHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder, f"{name}.png"))


def until(met: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for something to be so."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


# --- sessions ----------------------------------------------------------------------------

BEGIN = {"app.py": "def hello():\n    print('hello')\n", "notes.md": "# Notes\n\nkeep\n\n\n\nend\n"}


def made_project(root: Path) -> None:
    """A project with two files."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in BEGIN.items():
        (root / name).write_text(text)


def work(store: Store, root: Path, id: str = "work", **options: Json) -> None:
    """Three turns: one edits, one breaks things by the shell, one adds; a person writes between."""
    made_project(root)
    options.setdefault("title", "The greeter")
    with Session.create(store, id, cwd=root, **options) as s:
        with s.turn("Say hello nicely."):
            s.append({"role": "assistant", "content": "I **will**.\n\n```python\nprint(1)\n```"})
            with s.tool("edit", {"path": "app.py"}, paths=["app.py"]) as call:
                (root / "app.py").write_text("def hello():\n    print('Hello!')\n")
                call.result = "edited"
        s.checkpoint("before the cleanup")
        with s.turn("Clean up the project."):
            with s.tool("bash", {"command": "rm -rf x; sed -i s/keep/gone/ notes.md"}) as call:
                (root / "notes.md").write_text("# Notes\n\ngone\n\n\n\nend\n")
                (root / "made.txt").write_text("one\ntwo\n")
                call.result = "exit code 0"
            s.append({"role": "assistant", "content": "All clean."})
        with (root / "notes.md").open("a") as notes:
            notes.write("mine\n")
        with s.turn("Add a license."):
            with s.tool("write", {"path": "LICENSE"}, paths=["LICENSE"]) as call:
                (root / "LICENSE").write_text("free\n")
                call.result = "written"
            s.append({"role": "assistant", "content": "Added."})


def files_in(root: Path) -> dict[str, str]:
    """The files as they are."""
    found = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in found}
