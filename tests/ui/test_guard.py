"""Only the person's own window gets at a viewer: each guard, and a control without it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser

from backtrail.web import guard
from backtrail.web.guard import Guard

from .viewer import Viewer, until, window

Headers = dict[str, str | None]

READS: dict[str, tuple[str, int, Headers]] = {
    "another name": ("check_host", 421, {"host": "evil.example"}),
    "another port": ("check_host", 421, {"host": "127.0.0.1:1"}),
    "another site": ("check_origin", 403, {"sec-fetch-site": "cross-site"}),
    "another port of this machine": ("check_origin", 403, {"sec-fetch-site": "same-site"}),
    "another origin": ("check_origin", 403, {"origin": "http://evil.example"}),
    "no origin": ("check_origin", 403, {"origin": "null"}),
    "a frame": ("check_origin", 403, {"sec-fetch-dest": "iframe"}),
    "no token": ("check_token", 401, {"authorization": None}),
    "a wrong token": ("check_token", 401, {"authorization": "Bearer " + "0" * 64}),
    "an empty token": ("check_token", 401, {"authorization": "Bearer "}),
    "another way to say it": (
        "check_token",
        401,
        {"authorization": "Basic x", "cookie": "token=x"},
    ),
}
"""By name: the guard, the answer, and how the request differs from that of a window."""

WRITES: dict[str, tuple[str, int, Headers]] = {
    "plain text": ("check_write", 415, {"content-type": "text/plain"}),
    "a form": ("check_write", 415, {"content-type": "application/x-www-form-urlencoded"}),
    "no origin at all": ("check_write", 403, {"origin": None}),
    "another origin": ("check_origin", 403, {"origin": "http://127.0.0.1:1"}),
    "no token": ("check_token", 401, {"authorization": None}),
}


@pytest.mark.parametrize("case", READS)
def test_a_read_is_refused(viewer: Viewer, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And answered where that guard is off, so it is that guard which refuses."""
    name, wanted, headers = READS[case]
    status, found, _ = viewer.ask("/api/home", None, headers)
    assert (status, "error" in found) == (wanted, True)
    assert "sessions" not in found
    monkeypatch.setattr(Guard, name, lambda *_: None)
    assert viewer.ask("/api/home", None, headers)[0] == 200


@pytest.mark.parametrize("case", WRITES)
def test_a_write_is_refused(viewer: Viewer, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes nothing; without that guard it does."""
    name, wanted, headers = WRITES[case]
    status, _, _ = viewer.ask("/api/s/work/label", {"title": "taken"}, headers)
    assert status == wanted
    assert viewer.store.info("work").title == "The greeter"
    monkeypatch.setattr(Guard, name, lambda *_: None)
    assert viewer.ask("/api/s/work/label", {"title": "taken"}, headers)[0] == 200
    assert viewer.store.info("work").title == "taken"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_not_known(viewer: Viewer, method: str) -> None:
    """Also what a browser asks before it sends JSON to another origin."""
    status, _, headers = viewer.ask("/api/s/work/label", method=method)
    assert status == 405
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/api/home", "/api/nothing", "/static/app.js", "/s/x/e/1"])
def test_every_answer_has_the_policy(viewer: Viewer, path: str) -> None:
    """Errors, too."""
    extras: list[Headers] = [{}, {"host": "evil.example"}]
    for extra in extras:
        headers = viewer.ask(path, None, extra)[2]
        assert {name: headers[name] for name in guard.HEADERS} == guard.HEADERS
    policy = guard.HEADERS["content-security-policy"]
    assert "unsafe" not in policy and "trusted-types 'none'" in policy


def test_a_token_is_in_no_answer(viewer: Viewer) -> None:
    """Whatever is asked for."""
    for path in ("/", "/api/home", "/api/health", "/api/s/work", "/static/api.js"):
        status, found, headers = viewer.ask(path)
        assert status == 200
        assert viewer.token not in str(found) + str(headers)


@pytest.mark.parametrize("path", [
    "/static/../guard.py", "/static/%2e%2e/guard.py", "/static/..%2fguard.py",
    "/static//etc/passwd", "/static/vendor/../../site.py", "/static/%00",
])  # fmt: skip
def test_nothing_but_the_page_is_served(viewer: Viewer, path: str) -> None:
    """No path on the disk is an address."""
    status, found, _ = viewer.ask(path, None, {"authorization": None})
    assert status == 404 or found.startswith(b"<!doctype html>")


@pytest.mark.parametrize(
    "path", ["../../../etc/passwd", "/etc/passwd", "..", ".git/config", "a\0b"]
)
def test_a_path_leads_nowhere_else(viewer: Viewer, path: str) -> None:
    """Paths are looked up in trees that were captured, and in what is below the root."""
    from urllib.parse import quote

    for name in ("file", "versions", "blame", "diff"):
        status, found, _ = viewer.ask(f"/api/s/work/{name}?path={quote(path)}")
        assert status in (200, 400, 403, 404), found
        assert "root:" not in str(found)
    for body in ({"path": path}, {"path": path, "at": 2}):
        assert viewer.ask("/api/s/work/copy", body)[0] in (400, 403, 404)
    wish = {"verb": "rewind", "to": 2, "scope": "files", "paths": [path]}
    status, found, _ = viewer.ask("/api/s/work/preview", wish)
    assert status in (200, 400, 403, 404)
    assert status != 200 or not [one for one in found["files"] if ".." in one["path"]]


def test_ids_are_checked(viewer: Viewer) -> None:
    """One that is no id, or of no session, is an error and no path."""
    for id in ("..%2f..%2fetc", "nobody", "a%00b", "%2e%2e"):
        assert viewer.ask(f"/api/s/{id}")[0] in (400, 404)
        assert viewer.ask(f"/api/live?session={id}")[0] in (400, 404)


def test_read_only_changes_nothing(viewer: Viewer) -> None:
    """What is sent is refused but for previews."""
    from .viewer import viewing

    with viewing(viewer.store, read_only=True) as other:
        for path in ("act", "fork", "label", "copy"):
            assert other.ask(f"/api/s/work/{path}", {"title": "x"})[0] == 403
        plan = other.post("s/work/preview", {"verb": "undo"})
        assert plan["files"] and not plan["applied"]
        assert other.get("home")["read_only"]
    assert viewer.store.info("work").title == "The greeter"


# --- in a real browser -------------------------------------------------------------------


class Attacker(BaseHTTPRequestHandler):
    """A page that another site serves."""

    page = b""
    seen: list[str | None]

    def do_GET(self) -> None:
        """Serve the page, and note where its visitor came from."""
        type(self).seen.append(self.headers.get("referer"))
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def attacking(page: str) -> Iterator[tuple[str, list[str | None]]]:
    """A server of another site; its address, and the referrers that it saw."""
    seen: list[str | None] = []
    handler = type("Handler", (Attacker,), {"page": page.encode(), "seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert isinstance(server, socketserver.TCPServer)
        yield f"http://127.0.0.1:{server.server_address[1]}/", seen
        server.shutdown()


def test_a_name_that_points_here_gets_nothing(
    viewer: Viewer, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding, for real: the browser takes `evil.example` for this machine."""
    with window(browser, f"http://evil.example:{viewer.port}/", clean=False) as found:
        assert "goes by no other name" in found.page.content()
    monkeypatch.setattr(Guard, "check_host", lambda *_: None)
    with window(browser, f"http://evil.example:{viewer.port}/", clean=False) as found:
        assert found.page.title() == "Backtrail"


ATTACK = """<script>
const token = "TOKEN", home = "BASE", label = home + "/api/s/work/label";
const body = '{"title": "taken"}', bearer = {authorization: "Bearer " + token};
const tries = [
  fetch(home + "/api/home", {mode: "no-cors"}).then((a) => a.type),
  fetch(home + "/api/home", {headers: bearer}).then((a) => a.text()),
  fetch(label, {method: "POST", mode: "no-cors", body, headers: {"content-type": "text/plain"}})
    .then((a) => a.type),
  fetch(label, {method: "POST", body, headers: {"content-type": "application/json", ...bearer}})
    .then((a) => a.text()),
];
Promise.allSettled(tries).then((all) => {
  window.got = all.map((one) => one.value);
  document.title = "done";
});
</script>"""


def test_another_site_reads_and_writes_nothing(
    viewer: Viewer, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with the token: no answer is for it, and what it sends is not carried out."""
    page = ATTACK.replace("TOKEN", viewer.token).replace("BASE", viewer.base)
    with attacking(page) as (address, _), window(browser, address, clean=False) as found:
        until(lambda: found.page.title() == "done")
        got = found.page.evaluate("window.got")
        assert [one for one in got if one and "greeter" in one] == []
        assert viewer.store.info("work").title == "The greeter"
    # Without the guards a plain text of another site is carried out.
    for name in ("check_origin", "check_token", "check_write"):
        monkeypatch.setattr(Guard, name, lambda *_: None)
    with attacking(page) as (address, _), window(browser, address, clean=False) as found:
        until(lambda: found.page.title() == "done")
        until(lambda: viewer.store.info("work").title == "taken")


def test_a_frame_stays_empty(
    viewer: Viewer, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no button in it can be clicked unawares."""
    page = f'<iframe src="{viewer.url()}"></iframe>'
    with attacking(page) as (address, _), window(browser, address, clean=False) as found:
        found.page.wait_for_timeout(400)
        assert not [f for f in found.page.frames[1:] if "Sessions" in f.content()]
    monkeypatch.setattr(Guard, "check_origin", lambda *_: None)
    monkeypatch.setattr(guard, "HEADERS", {})
    with attacking(page) as (address, _), window(browser, address, clean=False) as found:
        until(lambda: any("Sessions" in frame.content() for frame in found.page.frames[1:]))


def test_the_token_is_in_no_referrer(
    viewer: Viewer, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in the address that people see, copy, or have in their history."""
    leave = "location.href = '{}'"
    with attacking("hello") as (address, seen), window(browser, viewer.url("/search")) as found:
        found.page.get_by_role("searchbox", name="Search").wait_for()
        assert viewer.token not in found.page.url
        with found.page.expect_navigation():
            found.page.evaluate(leave.format(address))
        assert seen[0] is None
        found.page.go_back()
        assert viewer.token not in found.page.url
    weak = {**guard.HEADERS, "referrer-policy": "unsafe-url"}
    monkeypatch.setattr(guard, "HEADERS", weak)
    with attacking("hello") as (address, seen), window(browser, viewer.url("/search")) as found:
        found.page.get_by_role("searchbox", name="Search").wait_for()
        with found.page.expect_navigation():
            found.page.evaluate(leave.format(address))
        assert seen[0] == f"{viewer.base}/search"


def test_a_window_without_a_token_says_so(viewer: Viewer, browser: Browser) -> None:
    """And shows nothing."""
    with window(browser, f"{viewer.base}/s/work") as found:
        found.page.get_by_role("heading", name="This window has no key").wait_for()
        assert "greeter" not in found.page.content()
