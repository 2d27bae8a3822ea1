"""Every Python block in the README and the pages runs, in order, in an empty folder.

A page that says `<!-- runs with: NAME -->` runs where that framework is: in `tests/frameworks`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import PAGES, name_of
from .pages import blocks as blocks_of

LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(page: Path) -> list[str]:
    """The Python of a page that needs no framework."""
    if "<!-- runs with: " in page.read_text(encoding="utf-8"):
        return []
    return [block.text for block in blocks_of(page, "python")]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """A reader who types the page gets what it says."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file that exists, and a heading in it."""
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The places in a page that a link can name."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text)]
    return {word.strip().replace(" ", "-") for word in words}
