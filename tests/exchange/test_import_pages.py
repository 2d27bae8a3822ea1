"""Every command in the page on importing runs, in order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..hooks.calling import World
from .test_codex import ID, LINES
from .transcripts import SAMPLES, rollout

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "import.md"


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
    assert world.follow(PAGE) >= 8
