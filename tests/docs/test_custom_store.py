"""The code in `docs/how-to/custom-store.md`, run as it stands there."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "custom-store.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def load(page: Path) -> ModuleType:
    """The Python blocks of a page, one after another, as a module."""
    text = page.read_text(encoding="utf-8")
    # Every block keeps its line numbers, so that an error points into the page.
    lines = [""] * (text.count("\n") + 1)
    for found in BLOCK.finditer(text):
        first = text.count("\n", 0, found.start(1))
        block = found.group(1).splitlines()
        lines[first : first + len(block)] = block
    module = ModuleType(f"docs_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    exec(compile("\n".join(lines), str(page), "exec"), module.__dict__)
    return module


page = load(PAGE)
TestBroadcast = page.TestBroadcast


def test_page_shows_what_it_says(tmp_path: Path) -> None:
    """A retry is reported once, and leaves one row."""
    assert page.example(tmp_path) == ["user_message"]
    with sqlite3.connect(tmp_path / "app.db") as database:
        rows = database.execute("SELECT session_id, kind, uuid FROM agent_events").fetchall()
    database.close()
    assert rows == [("demo", "user_message", "m1")]


@pytest.mark.parametrize("name", ["batches", "records", "memory"])
def test_page_names_modules_that_exist(name: str) -> None:
    """What the page points at is there."""
    assert f"backtrail.stores.{name}" in PAGE.read_text(encoding="utf-8")
    __import__(f"backtrail.stores.{name}")
