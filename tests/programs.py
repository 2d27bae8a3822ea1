"""Where the real programs of other agents are, which some tests run."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def program(variable: str, inside: str) -> str | None:
    """The path of a program; None unless the environment asks for it, as its `make` target does.

    The variable has a path, or 1 for the one that the target puts `inside` the clone.
    """
    given = os.environ.get(variable)
    if given != "1":
        return given or None
    found = sorted(ROOT.glob(inside))
    return str(found[0]) if found else None
