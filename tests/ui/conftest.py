"""The browser and the viewer that these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from backtrail.stores import open_store
from backtrail.stores.base import Store

from .viewer import ARGUMENTS, CHROMIUM, Viewer, viewing, work


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; a module's own, since its driver keeps a loop in this thread."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: `make test-ui` installs it and runs these tests")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store on the disk."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder that sessions work in."""
    return tmp_path / "project"


@pytest.fixture
def viewer(store: Store, root: Path) -> Iterator[Viewer]:
    """A viewer of a store with the session `work`."""
    work(store, root)
    with viewing(store) as found:
        yield found
