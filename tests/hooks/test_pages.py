"""Every command in the pages on hooks and on `record` runs, in order."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .calling import PROGRAM, World

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["claude-code.md", "codex.md", "gemini.md", "record.md"])
def test_the_commands_of_a_page_run(name: str, world: World) -> None:
    """A reader who types the page sees no error."""
    env = {**world.env, "PATH": f"{Path(PROGRAM).parent}:{world.env['PATH']}"}
    lines = [
        line
        for block in BLOCK.findall((PAGES / name).read_text("utf-8"))
        for line in block.splitlines()
    ]
    assert len(lines) >= 4
    for line in lines:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=world.project,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert list(world.home.rglob("settings*.json")) == []
    assert list(world.project.rglob("*.before-backtrail")) == []
