"""Maps of the house name what is there: docstrings of packages, and the page of architecture."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_conventions import FILES, LAYERS, SOURCE, ids

ROOMS = [name for names in LAYERS for name in names[:1]]
"""The layers by their rooms; the rest of a row are doors to it."""

PACKAGES = [path for path in FILES if path.name == "__init__.py"]
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"


def test_the_package_draws_the_layers() -> None:
    """In their order, in its docstring."""
    text = ast.get_docstring(ast.parse((SOURCE / "__init__.py").read_text())) or ""
    drawn = text.partition("from those before it:")[2].rstrip(".\n")
    assert re.split(r",\s+", drawn.strip()) == ROOMS


def test_the_page_of_architecture_draws_the_layers() -> None:
    """In their order, each with what it knows."""
    table = ARCHITECTURE.read_text().partition("## The layers")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == ROOMS


def test_the_page_of_architecture_names_what_is_there() -> None:
    """Each module in it exists."""
    named = set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE.read_text()))
    assert {name for name in named if not (SOURCE / name).exists()} == set()


@pytest.mark.parametrize("path", PACKAGES, ids=ids)
def test_a_package_names_what_is_there(path: Path) -> None:
    """Each module and folder that its docstring names exists in it."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    named = set(re.findall(r"(?<![\w./<>])([\w/]+(?:\.py|/))(?![\w.<])", text))
    missing = {name for name in named if not (path.parent / name).exists()}
    assert missing - FORMATS.get(ids(path), set()) == set()


FORMATS = {"stores.jsonl": {"DIR/memory/", "DIR/"}}
"""What a docstring says of folders on a disk, which are no packages."""
