"""The picture in the README shows what the commands print today, and loads nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.ui.viewer import CHROMIUM

from .pages import ROOT, normal

PICTURE = ROOT / "docs" / "picture.svg"
SCRIPT = ROOT / "docs" / "picture.py"
SVG = "{http://www.w3.org/2000/svg}"


def lines(picture: Path) -> list[str]:
    """The text of the terminal, line by line."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for element in ET.parse(picture).iter(f"{SVG}text"):
        # The title of the window hangs on nothing.
        if "clip-path" in element.attrib:
            place = (float(element.attrib["x"]), "".join(element.itertext()))
            rows.setdefault(float(element.attrib["y"]), []).append(place)
    shown = ["".join(text for _, text in sorted(rows[y])) for y in sorted(rows)]
    return [normal(line.replace("\xa0", " ")) for line in shown]


def test_the_picture_is_not_stale(tmp_path: Path) -> None:
    """The script makes one with the same commands and output; times aside.

    If it does not: `python docs/picture.py` makes the picture anew.
    """
    made = tmp_path / "picture.svg"
    subprocess.run([sys.executable, "-W", "error", SCRIPT, made], check=True, cwd=tmp_path)
    shown = lines(made)
    assert [line for line in shown if line.startswith("$ ")] == [
        "$ backtrail", "$ backtrail rewind --last --yes", "$ tail -n 1 notes.md",
    ]  # fmt: skip
    assert any(".env" in line for line in shown)
    assert lines(PICTURE) == shown, "stale: run `python docs/picture.py`"


def test_the_picture_loads_nothing() -> None:
    """No font, no picture, no script from anywhere; it names no address but that of SVG."""
    text = PICTURE.read_text(encoding="utf-8")
    assert re.findall(r"[a-z]+://[^\"' )]+", text) == ["http://www.w3.org/2000/svg"]
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    for forbidden in ("@font-face", "@import", "<script", "<image", "href"):
        assert forbidden not in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make test-ui` installs it")
def test_the_picture_of_the_viewer_can_be_made_anew(tmp_path: Path) -> None:
    """Of a real session, in the size of the one in the README."""
    made = tmp_path / "picture_ui.png"
    script = ROOT / "docs" / "picture_ui.py"
    subprocess.run([sys.executable, script, made], check=True, cwd=tmp_path, timeout=60)
    sizes = [path.read_bytes()[:24] for path in (made, ROOT / "docs" / "picture_ui.png")]
    assert sizes[0] == sizes[1]
    assert sizes[0][:8] == b"\x89PNG\r\n\x1a\n"
