"""Every screen, light and dark, narrow and wide: what it shows, and that anybody can use it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from backtrail import Session
from backtrail.stores import open_store

from .viewer import AXE, Viewer, shot, viewing, window, work

SCREENS = {
    "home": ("/", "heading", "Sessions"),
    "session": ("/s/work", "heading", "The greeter"),
    "event": ("/s/work/e/2", "heading", "The greeter"),
    "diff": ("/s/work/diff?turn=PROMPT", "heading", "What this turn changed"),
    "range": ("/s/work/diff?from=0&to=PROMPT", "heading", "From the beginning to prompt 2"),
    "sessions": ("/s/work/diff?other=second", "heading", "Two sessions"),
    "tree": ("/s/work/tree", "heading", "Where it went"),
    "rewind": ("/s/work/rewind?before=PROMPT", "button", "Rewind 2 files"),
    "undo": ("/s/work/undo", "button", "Undo 1 file"),
    "file": ("/s/work/file?path=notes.md", "heading", "notes.md"),
    "then": ("/s/work/file?path=app.py&at=PROMPT", "heading", "app.py"),
    "files": ("/s/work/file", "link", "app.py"),
    "search": ("/search?q=clean", "link", "All clean."),
    "health": ("/health", "heading", "Health"),
    "captured": ("/s/work/health", "heading", "Not captured in this session"),
    "nothing": ("/nothing", "link", "All sessions"),
}
"""By name: the address, and what is on the page once it is there."""


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer for tests that change nothing: of the session `work`, and a second one."""
    place = tmp_path_factory.mktemp("still")
    with open_store(f"sqlite:///{place}/store.db") as store:
        work(store, place / "project")
        work(store, place / "other", "second", title="Another", tags=["tried"])
        with Session.resume(store, "second") as s, s.turn("More."), s.tool("bash"):
            (place / "other/app.py").write_text("def hello():\n    return 'Hello!'\n")
        with viewing(store) as found:
            yield found


def prompt(viewer: Viewer, number: int) -> int:
    """The event of a prompt."""
    found: int = viewer.get("s/work/outline")["prompts"][number - 1]
    return found


def opened(page: Page, name: str) -> None:
    """Wait until a screen is there, and quiet."""
    _, role, text = SCREENS[name]
    page.get_by_role(role, name=text).first.wait_for()  # type: ignore[arg-type]
    page.wait_for_function("() => !document.querySelector('.loading')")


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen(still: Viewer, browser: Browser, name: str) -> None:
    """It fits a phone and a desk, fails at nothing; light and dark, axe knows no fault in it."""
    path = SCREENS[name][0].replace("PROMPT", str(prompt(still, 2)))
    with window(browser, still.url(path)) as found:
        page, faults = found.page, []
        opened(page, name)
        for width, height in ((1280, 800), (360, 740)):
            page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(60)
                shot(page, f"{name}-{scheme}-{width}")
                faults += axe(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert faults == []


def test_what_opens_on_a_screen(still: Viewer, browser: Browser) -> None:
    """Dialogs, what is unfolded, what differs in a conflict: axe knows no fault in these either."""
    with window(browser, still.url("/s/work")) as found:
        page, faults = found.page, []
        page.get_by_role("article", name="prompt 3").wait_for()
        for button in page.locator("button.call-head, button.file-head, summary").all():
            button.click()
        page.locator(".diff").first.wait_for()
        faults += axe(page)
        page.get_by_role("tab", name="All files").click()
        page.get_by_role("tree").get_by_text("LICENSE").wait_for()
        faults += axe(page)
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keys").wait_for()
        faults += axe(page)
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        page.get_by_role("option").nth(8).wait_for()
        faults += axe(page)
        page.keyboard.press("Escape")
        page.goto(still.base + f"/s/work/rewind?before={prompt(still, 2)}")
        page.get_by_role("button", name="What differs").click()
        page.locator(".diff").first.wait_for()
        faults += axe(page)
        page.goto(still.base + f"/s/work/diff?turn={prompt(still, 2)}&path=notes.md")
        page.get_by_role("button", name="Side by side").click()
        page.locator("table.split").wait_for()
        faults += axe(page)
    assert faults == []


def test_a_session_that_is_not_there(still: Viewer, browser: Browser) -> None:
    """Each screen says so; axe knows no fault in that either."""
    with window(browser, still.url("/s/nobody"), clean=False) as found:
        for rest in ("", "/tree", "/diff", "/file", "/rewind", "/undo", "/health"):
            found.page.goto(f"{still.base}/s/nobody{rest}")
            found.page.get_by_text(re.compile("no (such )?session")).first.wait_for()
            assert axe(found.page) == [], rest
        assert found.elsewhere == []


def axe(page: Page) -> list[str]:
    """The faults that axe finds; none is looked for where it is not installed."""
    if not AXE.exists():
        return []
    # By the debugger, so the page's policy stays as it is.
    page.evaluate(AXE.read_text() + ";0")
    found = page.evaluate("axe.run()")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def test_axe_finds_faults(viewer: Viewer, browser: Browser) -> None:
    """Two that are planted: so an empty list says something."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `make test-ui` does that")
    with window(browser, viewer.url()) as found:
        opened(found.page, "home")
        found.page.evaluate(
            "() => { const main = document.querySelector('main');"
            "main.append(document.createElement('img'));"
            "const pale = document.createElement('p'); pale.textContent = 'pale';"
            "pale.style.color = '#ccc'; pale.style.background = '#fff'; main.prepend(pale); }"
        )
        faults = " ".join(axe(found.page))
    assert "image-alt" in faults and "color-contrast" in faults


def test_keys_lead_everywhere(viewer: Viewer, browser: Browser) -> None:
    """From the list to a session, its diff, tree and files, to search and back."""
    with window(browser, viewer.url()) as found:
        page = found.page
        page.get_by_role("link", name="The greeter").wait_for()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/s/work")
        page.get_by_role("article", name="prompt 3").wait_for()
        page.keyboard.press("k")
        page.wait_for_url(f"**/s/work/e/{prompt(viewer, 3)}")
        page.keyboard.press("k")
        page.wait_for_url(f"**/s/work/e/{prompt(viewer, 2)}")
        page.keyboard.press("d")
        page.get_by_role("heading", name="What this turn changed").wait_for()
        page.get_by_role("button", name="notes.md").wait_for()
        page.keyboard.press("n")
        page.wait_for_url("**path=notes.md")
        page.keyboard.press("Escape")
        page.wait_for_url(f"**/e/{prompt(viewer, 2)}")
        page.keyboard.press("t")
        page.get_by_role("heading", name="Where it went").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("heading", name="The greeter").wait_for()
        page.keyboard.press("b")
        page.get_by_role("link", name="app.py").wait_for()
        page.keyboard.press("/")
        page.get_by_role("searchbox", name="Search").wait_for()
        page.keyboard.type("license")
        page.get_by_text("2 hits").wait_for()
        page.keyboard.press("Enter")
        page.wait_for_url("**/s/work/e/*")
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keys").wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        page.get_by_role("combobox", name="Go to").wait_for()
        page.keyboard.type("health")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Health", exact=True).wait_for()
        page.keyboard.press("g")
        page.keyboard.press("h")
        page.get_by_role("heading", name="Sessions").wait_for()


def test_the_list_is_kept_by_keys(viewer: Viewer, browser: Browser) -> None:
    """Pinned, renamed, tagged, archived; the store has it."""
    with window(browser, viewer.url()) as found:
        page = found.page
        page.get_by_role("link", name="The greeter").wait_for()
        page.keyboard.press("p")
        page.get_by_title("pinned").wait_for()
        page.keyboard.press("e")
        page.get_by_role("textbox", name="New title").fill("Named anew")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Named anew").wait_for()
        page.keyboard.press("#")
        page.get_by_role("textbox", name="A tag to put on").fill("good")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="good", exact=True).wait_for()
        page.keyboard.press("x")
        page.get_by_text("No session yet").wait_for()
    info = viewer.store.info("work")
    assert (info.title, sorted(info.tags)) == ("Named anew", ["archived", "good", "pinned"])


def test_the_scrubber_moves_conversation_and_files(viewer: Viewer, browser: Browser) -> None:
    """Dragged to the first turn, both are as they were; let go, it says what going back does."""
    with window(browser, viewer.url("/s/work"), width=1440) as found:
        page = found.page
        page.get_by_role("article", name="prompt 3").wait_for()
        page.get_by_role("tab", name="All files").click()
        tree = page.get_by_role("tree")
        tree.get_by_text("LICENSE").wait_for()
        scrubber = page.get_by_role("slider", name="Time")
        box = scrubber.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 8, box["y"] + 12)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 12, steps=5)
        tree.get_by_text("LICENSE").wait_for(state="detached")
        tree.get_by_text("app.py").wait_for()
        page.get_by_role("article", name="prompt 1").wait_for()
        page.mouse.up()
        page.get_by_text("Going back here:").wait_for()
        shot(page, "scrubber")
        page.get_by_role("link", name="Preview").click()
        page.get_by_role("heading", name="Rewind to a point").wait_for()
        assert viewer.store.info("work").turn_count == 3


def test_a_diff_is_shown_both_ways(viewer: Viewer, browser: Browser) -> None:
    """In one column and in two, with the words that differ marked."""
    path = f"/s/work/diff?turn={prompt(viewer, 1)}"
    with window(browser, viewer.url(path)) as found:
        page = found.page
        region = page.get_by_role("region", name="Diff of app.py")
        region.get_by_text("Hello!").wait_for()
        marked = region.locator(".s-w").all_inner_texts()
        assert any("Hello" in text for text in marked) and not any("print" in t for t in marked)
        page.get_by_role("button", name="Side by side").click()
        region.locator("table.split").wait_for()
        shot(page, "diff-split")


def test_a_file_has_its_versions_and_their_authors(viewer: Viewer, browser: Browser) -> None:
    """Each line says its prompt; an old version can be looked at and copied beside."""
    with window(browser, viewer.url("/s/work/file?path=notes.md")) as found:
        page = found.page
        page.get_by_role("link", name="prompt 2 · bash").wait_for()
        shot(page, "blame")
        page.get_by_role("button", name="bash").click()
        page.get_by_role("button", name="Copy beside").click()
        page.get_by_text("Written: notes.md.at-").wait_for()
    root = viewer.store.info("work").root
    made = Path(root or "").glob("notes.md.at-*")
    assert [path.read_text() for path in made] == ["# Notes\n\ngone\n\n\n\nend\n"]


def test_subagents_are_below_their_calls(still: Viewer, browser: Browser) -> None:
    """Folded: what each said; and those that no call is known of, above the conversation."""
    call = {"id": "c1", "type": "function", "function": {"name": "task", "arguments": "{}"}}
    with Session.create(still.store, "nested", title="Nested", files=False) as s:
        s.append({"role": "user", "content": "Delegate."})
        s.append({"role": "assistant", "content": None, "tool_calls": [call]})
        for name, start in (("a1", {"call": "c1"}), ("a2", {})):
            log = s.subagent(name)
            log.append({"description": f"Count for {name}", **start}, kind="start")
            said = {"role": "assistant", "content": f"There are three, says {name}."}
            log.append({"message": said}, kind="message")
        s.append({"role": "tool", "tool_call_id": "c1", "content": "three"})
    with window(browser, still.url("/s/nested")) as found:
        page = found.page
        page.get_by_role("button", name="Count for a1").click()
        page.get_by_text("There are three, says a1.").wait_for()
        page.get_by_text("1 subagent that no call here started").click()
        page.get_by_role("button", name="Count for a2").click()
        page.get_by_text("There are three, says a2.").wait_for()
        shot(page, "subagents")
        assert axe(page) == []
        page.goto(still.base + "/search?q=says+a2")
        page.get_by_role("link", name="subagent There are three, says a2.").click()
        page.wait_for_url("**/s/nested?agent=a2")
        page.get_by_text("There are three, says a2.").wait_for()


def test_files_are_found_by_their_paths(still: Viewer, browser: Browser) -> None:
    """In what sessions last saw; a hit leads to the file."""
    with window(browser, still.url("/search?q=made+txt")) as found:
        found.page.get_by_role("link", name="file made.txt").first.click()
        found.page.wait_for_url("**/file?path=made.txt")
        found.page.get_by_role("heading", name="made.txt").wait_for()


def test_a_diff_of_a_range_has_all_its_lines(still: Viewer) -> None:
    """Wherever the range begins; more lines are asked for by another number."""
    path = f"s/work/diff?from={prompt(still, 2)}&path=notes.md"
    whole = still.get(path)
    assert len(whole["rows"]) == whole["total"] > 3
    assert still.get(f"{path}&skip=2")["rows"] == whole["rows"][2:]


def test_places_are_told_by_their_prompts(still: Viewer) -> None:
    """In the tree, of an event, of a file at a point: as the terminal numbers them."""
    second = prompt(still, 2)
    places = [node["place"] for node in still.get("s/work/tree")["nodes"]]
    assert places == ["prompt 1", "prompt 1", "prompt 2", "prompt 3"]
    assert still.get(f"s/work/event/{second + 1}")["place"] == "prompt 2"
    assert still.get(f"s/work/file?path=app.py&at={second}")["place"] == "prompt 2"
    assert still.get("s/work/event/1")["place"] == "the beginning"
