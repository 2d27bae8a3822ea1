"""Every command in the pages on hooks and on `record` runs, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from .calling import World

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("name", ["claude-code.md", "codex.md", "gemini.md", "record.md"])
def test_the_commands_of_a_page_run(name: str, world: World) -> None:
    """A reader who types the page sees no error."""
    assert world.follow(PAGES / name) >= 4
    assert list(world.home.rglob("settings*.json")) == []
    assert list(world.project.rglob("*.before-backtrail")) == []
