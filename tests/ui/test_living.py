"""What a window shows while things happen: an agent at work, a server that ends, a store in use."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import PIPE, Popen

from playwright.sync_api import Browser

from backtrail import Session
from backtrail.stores import open_store
from backtrail.stores.base import Store

from .viewer import Viewer, files_in, shot, until, viewing, window, work


def test_what_an_agent_does_comes_by_itself(viewer: Viewer, browser: Browser, root: Path) -> None:
    """Words, calls with their answers, files; and the prompt in the contents."""
    with window(browser, viewer.url("/s/work"), width=1440) as found:
        page = found.page
        page.get_by_role("article", name="prompt 3").wait_for()
        page.wait_for_timeout(300)
        with Session.resume(viewer.store, "work") as s, s.turn("And now something else."):
            page.get_by_role("article", name="prompt 4").wait_for()
            s.append({"role": "assistant", "content": "I am at it."})
            page.get_by_text("I am at it.").wait_for()
            with s.tool("bash", {"command": "touch fresh"}) as call:
                (root / "fresh").write_text("new\n")
                call.result = "made"
            page.get_by_role("button", name="bash touch fresh").wait_for()
            page.get_by_role("button", name="fresh +1").first.wait_for()
            page.get_by_title("an agent is at work").wait_for()
        page.get_by_role("list").get_by_role("button", name="And now something else.").wait_for()
        shot(page, "live")


def test_the_list_follows(viewer: Viewer, browser: Browser, root: Path) -> None:
    """A new session is in it, with a dot while it is at work."""
    with window(browser, viewer.url()) as found:
        found.page.get_by_role("link", name="The greeter").wait_for()
        found.page.wait_for_timeout(1200)
        with Session.create(viewer.store, "new", cwd=root, title="Another one", files=False) as s:
            s.append({"role": "user", "content": "go"})
            found.page.get_by_role("link", name="Another one").wait_for()
            found.page.get_by_title("at work").wait_for()


def test_a_session_that_is_deleted_under_the_page(viewer: Viewer, browser: Browser) -> None:
    """The page says so, and leads back to the list."""
    with window(browser, viewer.url("/s/work"), clean=False) as found:
        found.page.get_by_role("article", name="prompt 3").wait_for()
        viewer.store.delete("work")
        found.page.get_by_text("This session was deleted").wait_for()
        shot(found.page, "deleted")
        found.page.get_by_role("link", name="All sessions").click()
        found.page.get_by_role("heading", name="Sessions").wait_for()


def test_a_server_that_ends_and_comes_back(store: Store, root: Path, browser: Browser) -> None:
    """The page says so, and goes on by itself where it answers again."""
    import threading

    import uvicorn

    from backtrail.web import app
    from backtrail.web.serve import listening

    from .viewer import TOKEN

    work(store, root)
    with viewing(store) as viewer:
        port = viewer.port
        context = window(browser, viewer.url("/s/work"), clean=False)
        found = context.__enter__()
        found.page.get_by_role("article", name="prompt 3").wait_for()
    try:
        found.page.get_by_text("The viewer does not answer").wait_for()
        shot(found.page, "down")
        with listening(port) as again:
            made = app(store, token=TOKEN)
            config = uvicorn.Config(made, log_level="error", lifespan="off", ws="none",
                                    timeout_graceful_shutdown=1)  # fmt: skip
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [again]}, daemon=True)
            thread.start()
            found.page.get_by_text("The viewer does not answer").wait_for(state="detached")
            with Session.resume(store, "work", files=False) as s:
                s.append({"role": "user", "content": "still there?"})
            found.page.get_by_role("article", name="prompt 4").wait_for()
            server.should_exit = server.force_exit = True
            thread.join(20)
    finally:
        context.__exit__(None, None, None)


def test_a_session_in_use_is_named(viewer: Viewer, browser: Browser, root: Path) -> None:
    """Going back does not wait: the holder of the session is named, and nothing is done."""
    before = files_in(root)
    with window(browser, viewer.url("/s/work/undo"), clean=False) as found:
        page = found.page
        button = page.get_by_role("button", name="Undo 1 file")
        button.wait_for()
        with viewer.store.lease("work"):
            button.click()
            page.get_by_role("alert").get_by_text("process").wait_for()
            shot(page, "busy")
        assert files_in(root) == before
        page.get_by_role("button", name="Try again").click()
        button.click()
        page.get_by_role("heading", name="Undone").wait_for()
    assert "LICENSE" not in files_in(root)


def test_a_call_under_way_is_waited_for_or_overruled(
    viewer: Viewer, browser: Browser, root: Path
) -> None:
    """It is named, and nothing is done; who insists goes back all the same."""
    address = viewer.url("/s/work/undo")
    with Session.create(viewer.store, "other", cwd=root) as s, s.tool("bash"):  # noqa: SIM117
        with window(browser, address, clean=False) as found:
            page = found.page
            page.get_by_role("button", name="Undo 1 file").click()
            page.get_by_role("alert").get_by_text("is under way").wait_for()
            assert "LICENSE" in files_in(root)
            page.get_by_role("checkbox", name="Go back though a call is under way").check()
            page.get_by_role("button", name="Undo 1 file").click()
            page.get_by_role("heading", name="Undone").wait_for()
    assert "LICENSE" not in files_in(root)


def test_a_database_that_is_locked_can_be_read(
    viewer: Viewer, browser: Browser, tmp_path: Path
) -> None:
    """Another program holds its write lock: the page shows all the same; it writes again after."""
    # In a process of its own: those of one process do not lock each other out.
    lock = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], isolation_level=None)"
        ".execute('BEGIN IMMEDIATE'); print('locked', flush=True); input()"
    )
    words = [sys.executable, "-c", lock, f"{tmp_path}/store.db"]
    with Popen(words, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        with window(browser, viewer.url("/s/work")) as found:
            found.page.get_by_role("article", name="prompt 3").wait_for()
            found.page.goto(viewer.base + "/s/work/undo")
            found.page.get_by_role("button", name="Undo 1 file").wait_for()
        other.kill()
    assert viewer.ask("/api/s/work/label", {"title": "x"})[0] == 200


def test_a_read_only_viewer_offers_nothing_that_it_refuses(
    viewer: Viewer, browser: Browser
) -> None:
    """The plan is shown, and its button is off."""
    with viewing(open_store(viewer.store.url), read_only=True) as other:
        with window(browser, other.url("/s/work/undo")) as found:
            found.page.get_by_text("This viewer is read-only.").wait_for()
            assert found.page.get_by_role("button", name="Undo 1 file").is_disabled()
        with window(browser, other.url()) as found:
            found.page.get_by_text("Read-only").wait_for()
            assert found.page.get_by_role("button", name="Rename The greeter").count() == 0
        other.store.close()
    until(lambda: viewer.store.info("work").turn_count == 3)
