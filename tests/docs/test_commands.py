"""Every command in the pages on going back and on chat runs, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.servers import OpenAIServer

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["rewind.md", "chat.md"])
def test_the_commands_of_a_page_run(name: str, tmp_path: Path) -> None:
    """A reader who types the page sees no error."""
    folder = tmp_path / "project"
    folder.mkdir()
    bin = Path(sys.executable).parent
    with OpenAIServer() as server:
        server.script(*["Yes."] * 20)
        env = {
            "PATH": f"{bin}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "BACKTRAIL_STORE": f"sqlite:///{folder}/agent.db",
            "BACKTRAIL_MODEL": "openai:m",
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "not-needed",
            "PYTHONWARNINGS": "error",
        }
        ran = 0
        for language, text in BLOCK.findall((PAGES / name).read_text("utf-8")):
            if language == "python":
                done = subprocess.run(
                    [sys.executable, "-c", text],
                    cwd=folder,
                    env=env,
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == 0, done.stderr
                continue
            for line in text.splitlines():
                done = subprocess.run(
                    ["sh", "-c", line], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                    capture_output=True, text=True,
                )  # fmt: skip
                assert done.returncode == 0, f"{line}\n{done.stderr}"
                assert done.stdout, line
                ran += 1
        assert ran > 5
