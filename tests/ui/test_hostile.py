"""What agents write is text wherever it stands: messages, paths, titles, tools, diffs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog

from backtrail import Session
from backtrail.stores import open_store
from backtrail.stores.base import Store

from .viewer import Viewer, shot, viewing, window

EVIL = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
SVG = base64.b64encode(
    b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.hacked=1"/>'
).decode()
BIDI = "invoice\u202egnp.exe"
ANSI = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\x9bA"
MARKED = f"""```html
{EVIL}
```
**{EVIL}** `{EVIL}`
# {EVIL}
- {EVIL}
> {EVIL}
[x](javascript:hacked=1)"""
NAME = "<img src=x onerror=hacked=1>"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer of a session in which every field is hostile."""
    place = tmp_path_factory.mktemp("hostile")
    with open_store(f"sqlite:///{place}/store.db") as store:
        fill(store, place / "project")
        with viewing(store) as found:
            yield found


@pytest.fixture
def hostile(store: Store, root: Path) -> Iterator[Viewer]:
    """The same for a test that changes it."""
    fill(store, root)
    with viewing(store) as found:
        yield found


def fill(store: Store, root: Path) -> None:
    """The session."""
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/svg+xml", "data": SVG},
    }
    with Session.create(store, "work", cwd=root, title=EVIL, model=EVIL, agent_name=EVIL,
                        tags=[NAME]) as s:  # fmt: skip
        s.append({"role": "user", "content": EVIL + BIDI + ANSI})
        s.append({"role": "user", "content": [{"type": "text", "text": "a picture"}, picture]})
        s.append(
            {
                "role": "assistant",
                "content": MARKED,
            }
        )
        function = {"name": EVIL, "arguments": f'{{"command": "{NAME}"}}'}
        calls = [{"id": EVIL, "type": "function", "function": function}]
        s.append({"role": "assistant", "content": None, "tool_calls": calls})
        with s.tool(EVIL, {"command": EVIL}, id=EVIL) as call:
            (root / NAME).write_text(EVIL)
            (root / BIDI).write_text(ANSI)
            (root / "a.py").write_text(f"x = '{EVIL}'\n# {BIDI}\n")
            call.result = EVIL + ANSI + "\n" * 40
        s.checkpoint(EVIL)
        s.append({"role": "user", "content": EVIL})
    (root / "a.py").write_text("mine\n")


PAGES = [
    "/", "/s/work", "/s/work/e/2", "/s/work/diff?from=0", "/s/work/tree",
    "/s/work/rewind?before=2", "/s/work/file", "/s/work/file?path=a.py", "/search?q=img",
    "/search?q=%3Cscript%3E", "/health", "/s/work/health", "/s/%3Cimg%20src=x%3E",
    "/nothing/%3Cscript%3E",
]  # fmt: skip
THEIRS = "img[src='x'], main script, iframe, svg[onload], a[href^='javascript']"


def _waved_off(seen: list[str], dialog: Dialog) -> None:
    seen.append(dialog.message)
    dialog.dismiss()


@pytest.mark.parametrize("path", PAGES)
def test_nothing_of_it_runs(shown: Viewer, browser: Browser, path: str) -> None:
    """With all that can be unfolded: no script, no element of theirs; marks are made visible."""
    with window(browser, shown.url(path), clean=False) as found:
        page = found.page
        dialogs: list[str] = []
        page.on("dialog", partial(_waved_off, dialogs))
        page.locator("main *").first.wait_for()
        page.wait_for_function("() => !document.querySelector('.loading')")
        for button in page.locator("button.call-head, button.file-head, summary").all():
            button.click()
        page.wait_for_timeout(100)
        assert page.evaluate("window.hacked") is None
        assert page.locator(THEIRS).count() == 0
        assert dialogs == [] and found.elsewhere == []
        assert [one for one in found.wrong if "rusted" in one] == []
        text = page.inner_text("main")
        assert "\u202e" not in text and "\x1b" not in text
        if path == "/s/work":
            shot(page, "hostile")
            assert EVIL in text and "⟨U+202E⟩" in text and "␛" in text
            assert page.locator("img[src^='data:image/svg']").count() == 0


def test_the_policy_would_stop_what_slipped_through(shown: Viewer, browser: Browser) -> None:
    """A page that made HTML of it would fail; without the policy the same text runs."""
    insert = (
        "text => { const box = document.createElement('div'); box.innerHTML = text;"
        "document.body.append(box); }"
    )
    with window(browser, shown.url(), clean=False) as found:
        found.page.locator("main *").first.wait_for()
        with pytest.raises(Exception, match="TrustedHTML"):
            found.page.evaluate(insert, EVIL)
        assert found.page.evaluate("window.hacked") is None
    with window(browser, "data:text/html,<p>other</p>", clean=False) as found:
        found.page.evaluate(insert, EVIL)
        found.page.wait_for_function("() => window.hacked === 1")


def test_hostile_names_can_be_decided_on(hostile: Viewer, browser: Browser, root: Path) -> None:
    """Their files go back like any others."""
    with window(browser, hostile.url("/s/work/rewind?before=2&scope=files")) as found:
        found.page.get_by_role("radio", name="Overwrite").check()
        found.page.get_by_role("button", name="Rewind 3 files").click()
        found.page.get_by_role("heading", name="Rewound").wait_for()
    assert {path.name: path.read_text() for path in root.iterdir()} == {"a.py": "x = 1\n"}
