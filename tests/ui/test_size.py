"""What a window costs: bytes of the first screen, rows on the page, a session of any length."""

from __future__ import annotations

import math
import re
import time
import zlib
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from backtrail import Session
from backtrail.events import NewEvent
from backtrail.stores.base import Store
from backtrail.web import site

from .viewer import Viewer, shot, viewing, window

ROWS = 600
LONG = 100_000


def fill(store: Store, id: str, count: int) -> None:
    """A session of so many events, a prompt in twenty."""
    Session.create(store, id, title=f"{count} events", files=False).close()
    batch: list[NewEvent] = []
    for n in range(count):
        kind = "assistant_message" if n % 20 else "user_message"
        role = "assistant" if n % 20 else "user"
        text = f"{role} {n} " + "words and more words " * 6
        batch.append(
            NewEvent(kind, {"message": {"role": role, "content": text}, "format": "openai"})
        )
        if len(batch) == 5000:
            store.append(id, batch)
            batch = []
    if batch:
        store.append(id, batch)


def test_the_first_screen_is_small(
    viewer: Viewer, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    """At most 60 KB come over the wire, page, code and data; and nothing from elsewhere."""
    for path in ("/", "/s/work"):
        with window(browser, "about:blank") as found:
            session = found.context.new_cdp_session(found.page)
            session.send("Network.enable")
            sizes: list[float] = []
            session.on(
                "Network.loadingFinished", lambda e, s=sizes: s.append(e["encodedDataLength"])
            )
            found.page.goto(viewer.url(path))
            found.page.get_by_text("The greeter").first.wait_for()
            found.page.wait_for_timeout(300)
            with capsys.disabled():
                print(f"\ntransferred for {path}: {sum(sizes):,.0f} bytes")
            assert 10_000 < sum(sizes) <= 60_000, sizes


def test_the_assets_are_small() -> None:
    """All that the page is, licences too: in the wheel, which is packed, at most 150 KB."""
    found = site.assets()
    static = Path(site.__file__).with_name("static")
    files = [path.read_bytes() for path in static.rglob("*") if path.is_file()]
    assert sum(len(zlib.compress(one)) for one in files) <= 150_000
    assert {"index.html", "app.js", "app.css", "vendor/preact.js"} <= found.keys()


def test_a_page_names_no_other_place() -> None:
    """No address in it leads anywhere but to this server."""
    for name, (plain, _) in site.assets().items():
        for address in re.findall(rb"https?://[^\s\"'`)]+", plain):
            assert address.startswith((b"http://www.w3.org/", b"https://www.w3.org/")), (
                name,
                address,
            )


def test_what_is_served_is_in_the_wheel() -> None:
    """Nothing of the page is outside of the package; licences are beside what they are of."""
    static = Path(site.__file__).with_name("static")
    names = {str(path.relative_to(static)) for path in static.rglob("*") if path.is_file()}
    assert {"vendor/LICENSE-preact", "vendor/LICENSE-htm", "vendor/README.md"} <= names
    assert set(site.assets()) <= names
    assert not [name for name in names if name.endswith((".map", ".ts"))]


def test_a_long_session_opens_like_a_short_one(
    store: Store, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred thousand events: few rows on the page, at its end, its middle and its beginning."""
    fill(store, "long", LONG)
    fill(store, "short", 100)
    with viewing(store) as viewer:
        took: dict[str, list[float]] = {"long": [], "short": []}
        for id in ("short", "long") * 3:
            with window(browser, viewer.url("/")) as found:
                found.page.get_by_role("link", name="100 events").wait_for()
                began = time.perf_counter()
                found.page.evaluate(f"document.querySelector('a[href=\"/s/{id}\"]').click()")
                last = LONG - 1 if id == "long" else 99
                found.page.get_by_text(f"assistant {last} words").wait_for()
                took[id].append(time.perf_counter() - began)
        with window(browser, viewer.url("/s/long")) as found:
            page = found.page
            rows = page.locator(".row")
            page.get_by_text(f"assistant {LONG - 1} words").wait_for()
            assert rows.count() <= ROWS
            shot(page, "long")
            page.get_by_role("slider", name="Time").fill(str(LONG // 2))
            page.get_by_text(re.compile(rf"(assistant|user) {LONG // 2}\d? words")).first.wait_for()
            assert rows.count() <= ROWS
            page.goto(viewer.base + "/s/long/e/2")
            page.get_by_text("user 0 words").first.wait_for()
            assert rows.count() <= ROWS
            box = page.get_by_role("group", name="Conversation").first
            box.evaluate("node => { node.scrollTop = node.scrollHeight / 3 }")
            page.wait_for_timeout(400)
            assert 0 < rows.count() <= ROWS
    with capsys.disabled():
        ratio = sorted(took["long"])[1] / sorted(took["short"])[1]
        print(f"\nopen 100,000 events against 100: {ratio:.2f} times ({took})")


@pytest.mark.torture
def test_an_event_is_on_the_screen_soon(
    viewer: Viewer, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eighty events as they come; how long each took to be seen is printed."""
    watch = """() => {
        globalThis.seen = {};
        new MutationObserver(() => {
            for (const one of document.querySelectorAll(".step")) {
                const tick = /tick (\\d+)/.exec(one.textContent)?.[1];
                if (tick) globalThis.seen[tick] ??= Date.now();
            }
        }).observe(document.body, {subtree: true, childList: true, characterData: true});
    }"""
    with window(browser, viewer.url("/s/work")) as found:
        found.page.get_by_role("article", name="prompt 3").wait_for()
        found.page.wait_for_timeout(1000)
        found.page.evaluate(watch)
        began: dict[str, float] = {}
        with Session.resume(viewer.store, "work", files=False) as s:
            for n in range(80):
                began[str(n)] = time.time() * 1000
                s.append({"role": "assistant", "content": f"tick {n}"})
                # Not asleep: what the page asks for goes through this process.
                found.page.wait_for_timeout(100 + 1.3 * n)
        found.page.get_by_text("tick 79").wait_for()
        seen: dict[str, float] = found.page.evaluate("globalThis.seen")
    # What had left the window before it was there counts as never seen.
    took = sorted(seen.get(n, math.inf) - began[n] for n in began)
    with capsys.disabled():
        print(f"\nevent to screen: median {took[39]:.0f} ms, p95 {took[75]:.0f} ms")
