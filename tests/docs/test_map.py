"""From the README a reader finds every page."""

from __future__ import annotations

import re
from pathlib import Path

from .pages import PAGES, ROOT, name_of

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def linked(page: Path) -> set[Path]:
    """The pages that a page links to; a link to a folder leads to all in it."""
    found: set[Path] = set()
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        found |= set(path.glob("*.md")) if path.is_dir() else {path}
    return found


def test_the_map_has_every_page() -> None:
    """The README names the map, and the map names all there is."""
    map = ROOT / "docs" / "README.md"
    assert map in linked(ROOT / "README.md")
    missing = [page for page in PAGES if page not in linked(map) | {map, ROOT / "README.md"}]
    assert [name_of(page) for page in missing] == []
