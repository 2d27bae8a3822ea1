"""Every command in the page on importing runs, in order."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from ..hooks.calling import PROGRAM, World
from .test_codex import ID, LINES
from .transcripts import SAMPLES, rollout

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "import.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """A reader who types the page sees no error."""
    world = World(tmp_path)
    shutil.copytree(SAMPLES / "claude-code", world.home / ".claude")
    for file in (world.home / ".claude").rglob("*.jsonl"):
        # The folder that Claude Code ran in is here.
        file.write_text(file.read_text().replace("/home/dev/project", str(world.project)))
    rollout(world.home / ".codex", LINES, ID)
    chat = [{"role": "user", "content": "hi"}]
    (world.project / "chat.json").write_text(json.dumps(chat))
    (world.project / "messages.jsonl").write_text(json.dumps(chat[0]) + "\n")
    env = {**world.env, "PATH": f"{Path(PROGRAM).parent}:{world.env['PATH']}"}
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) >= 8
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
