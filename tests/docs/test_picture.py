"""The picture in the README shows what the commands print today, and loads nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

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
