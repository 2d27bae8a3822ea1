"""Going back in the browser: what it previews is what happens, by keys alone, and undone."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from .viewer import BEGIN, Viewer, files_in, shot, until, window

FIRST = {**BEGIN, "app.py": "def hello():\n    print('Hello!')\n"}


def test_a_rewind_by_keys_alone(viewer: Viewer, browser: Browser, root: Path) -> None:
    """A conflict is merged, the button pressed, and all of it taken back, without a mouse."""
    before = files_in(root)
    with window(browser, viewer.url("/s/work")) as found:
        page = found.page
        page.get_by_role("article", name="prompt 3").wait_for()
        page.keyboard.press("k")
        page.keyboard.press("k")
        page.wait_for_url("**/e/*")
        page.keyboard.press("r")
        merge = page.get_by_role("radio", name="Merge")
        merge.wait_for()
        shot(page, "conflict")
        assert files_in(root) == before
        keep = page.get_by_role("radio", name="Keep")
        for _ in range(60):
            if keep.evaluate("node => node === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        page.get_by_text("take only this session's changes out").wait_for()
        button = page.get_by_role("button", name="Rewind 3 files")
        button.wait_for()
        assert merge.is_checked()
        for _ in range(60):
            if button.evaluate("node => node === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Rewound").wait_for()
        shot(page, "rewound")
        # The person's line stays, the agent's are gone.
        assert files_in(root) == {**FIRST, "notes.md": BEGIN["notes.md"] + "mine\n"}
        assert viewer.store.info("work").turn_count == 1
        undo = page.get_by_role("button", name="Undo")
        for _ in range(60):
            if undo.evaluate("node => node === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_text("all is as before").wait_for()
        assert files_in(root) == before
        assert viewer.store.info("work").turn_count == 3


def test_a_plan_that_is_not_so_any_more_is_not_carried_out(
    viewer: Viewer, browser: Browser, root: Path
) -> None:
    """A person saves a file after the preview: nothing is done, and the new plan is shown."""
    first = viewer.get("s/work/outline")["prompts"][0]
    with window(browser, viewer.url(f"/s/work/rewind?before={first}"), clean=False) as found:
        page = found.page
        button = page.get_by_role("button", name="Rewind 3 files")
        button.wait_for()
        (root / "LICENSE").write_text("mine now\n")
        before = files_in(root)
        button.click()
        page.get_by_text("have moved since you looked").wait_for()
        shot(page, "moved")
        assert files_in(root) == before
        page.get_by_role("button", name="Rewind 2 files").click()
        page.get_by_role("heading", name="Rewound").wait_for()
    assert files_in(root)["LICENSE"] == "mine now\n"


def test_one_turn_is_taken_out_of_the_middle(viewer: Viewer, browser: Browser, root: Path) -> None:
    """The later turn and the person's line stay."""
    second = viewer.get("s/work/outline")["prompts"][1]
    with window(browser, viewer.url(f"/s/work/rewind?turn={second}")) as found:
        page = found.page
        page.get_by_role("button", name="Take out 2 files").click()
        page.get_by_role("heading", name="Rewound").wait_for()
    wanted = {**FIRST, "LICENSE": "free\n", "notes.md": BEGIN["notes.md"] + "mine\n"}
    assert files_in(root) == wanted
    assert viewer.store.info("work").turn_count == 3


def test_an_old_version_of_a_file_is_restored(viewer: Viewer, browser: Browser, root: Path) -> None:
    """That file alone; and by the tree, a fork goes on from an earlier point."""
    first = viewer.get("s/work/outline")["prompts"][0]
    wish = f"to={first}&scope=files&mode=exact&path=notes.md"
    with window(browser, viewer.url(f"/s/work/rewind?{wish}")) as found:
        page = found.page
        page.get_by_role("button", name="Restore 1 file").click()
        page.get_by_role("heading", name="Rewound").wait_for()
        assert files_in(root)["notes.md"] == BEGIN["notes.md"]
        assert files_in(root)["LICENSE"] == "free\n"
        page.goto(viewer.base + "/s/work/tree")
        page.get_by_role("button", name="Say hello nicely.").click()
        page.get_by_role("button", name="Continue from here").click()
        page.get_by_text("Forked.").wait_for()
    (fork,) = [info for info in viewer.store.sessions() if info.relation == "fork"]
    assert (fork.parent_id, fork.fork_seq) == ("work", first)


def test_a_second_window_learns_of_it(viewer: Viewer, browser: Browser, root: Path) -> None:
    """What one window rewinds, the other shows."""
    with window(browser, viewer.url("/s/work")) as one:
        one.page.get_by_role("article", name="prompt 3").wait_for()
        with window(browser, viewer.url("/s/work/undo")) as other:
            other.page.get_by_role("button", name="Undo 1 file").click()
            other.page.get_by_role("heading", name="Undone").wait_for()
        one.page.get_by_role("article", name="prompt 3").wait_for(state="detached")
        one.page.get_by_role("article", name="prompt 2").wait_for()
    until(lambda: "LICENSE" not in files_in(root))
