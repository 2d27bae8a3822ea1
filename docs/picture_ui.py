"""The picture of the viewer in the README, of a real session: `python docs/picture_ui.py`.

Needs Chromium, which `make test-ui` installs. Writes `docs/picture_ui.png`, or the file named.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from picture import work

from backtrail.cli.demo import Stage
from backtrail.cli.output import Output
from backtrail.stores import open_store
from backtrail.web import app
from backtrail.web.serve import listening

TOKEN = "picture-of-the-viewer"
WIDTH, HEIGHT = 1280, 720


def picture(target: Path) -> None:
    """Take it: the tour's session, at its last turn."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("no Chromium here: `make test-ui` installs it")
    stage = Stage.build(Output())
    try:
        work(stage)
        with open_store(stage.url) as store, listening(0) as found:
            config = uvicorn.Config(app(store, token=TOKEN), log_level="error", lifespan="off")
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [found]}, daemon=True)
            thread.start()
            while not server.started:
                time.sleep(0.05)
            base = f"http://127.0.0.1:{found.getsockname()[1]}"
            with sync_playwright() as driver:
                chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
                page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
                page.goto(f"{base}/s/greeter#token={TOKEN}")
                page.get_by_role("article", name="prompt 2").wait_for()
                page.get_by_role("button", name="notes.md").first.wait_for()
                # The folder of the tour has another name each time.
                page.evaluate(
                    "() => { for (const one of document.querySelectorAll('.facts span'))"
                    " if (one.textContent.startsWith('/')) one.textContent = '~/project'; }"
                )
                page.locator(".file-head", has_text=".env").click()
                page.locator(".diff").first.wait_for()
                page.wait_for_timeout(400)
                page.screenshot(path=target)
                chromium.close()
            server.should_exit = server.force_exit = True
            thread.join(10)
    finally:
        shutil.rmtree(stage.folder)


if __name__ == "__main__":
    picture(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
