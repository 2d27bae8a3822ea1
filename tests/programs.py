"""Where the real programs of other agents are, which some tests run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .terminal import has_terminal

if TYPE_CHECKING:
    from .hooks.calling import World

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


def needs(
    name: str, found: str | None, *, terminal: bool = False, seconds: int = 300
) -> list[pytest.MarkDecorator]:
    """The marks of tests that run a real program: skipped where it is not."""
    reason = f"needs the real `{name}`: `make test-{name}` fetches and runs it"
    marks = [pytest.mark.skipif(found is None, reason=reason), pytest.mark.timeout(seconds)]
    if terminal:
        marks.append(pytest.mark.skipif(not has_terminal(), reason="needs `tmux`"))
    return marks


def environment(world: World) -> dict[str, str]:
    """What every program gets: nothing of an outer session must reach it."""
    return {
        "HOME": str(world.home),
        "PATH": "/usr/bin:/bin",
        "BACKTRAIL_STORE": world.url,
        "BACKTRAIL_STATE": world.env["BACKTRAIL_STATE"],
        "BACKTRAIL_HOOK_TIMEOUT": "8",
    }


def output_of(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> str:
    """What a program prints that runs to its end."""
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
