"""The pages about a framework, run where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..docs.pages import PAGES, blocks


def run_pages(framework: str, folder: Path) -> list[str]:
    """Run the Python of every page that needs this framework; the names of the pages."""
    mark = f"<!-- runs with: {framework} -->"
    pages = [page for page in PAGES if mark in page.read_text(encoding="utf-8")]
    for page in pages:
        script = folder / f"page_{page.stem}.py"
        script.write_text("\n".join(block.text for block in blocks(page, "python")))
        done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return [page.name for page in pages]
