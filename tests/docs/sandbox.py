"""A home folder and a project in which the commands of a page run, one after another."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from backtrail import Session

from ..cli.terminal import Terminal
from .pages import HOME, Step, differences

AGENT = Path(__file__).with_name("claude.py")

_AROUND = """
cd "$(cat "$STATE/folder")" || exit 1
test -e "$STATE/environment" && . "$STATE/environment"
{line}
code=$?
pwd > "$STATE/folder"
export -p > "$STATE/environment"
exit $code
"""
"""What a shell does around a line, so that `cd` and `export` last as on a terminal."""


@dataclass
class Sandbox:
    """Where a page is tried out. Nothing of the person who runs the tests is seen."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (self.project, self.state, self.bin):
            folder.mkdir(parents=True)
        (self.state / "folder").write_text(str(self.project))
        claude = self.bin / "claude"
        claude.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {AGENT} "$@"\n')
        claude.chmod(0o755)
        scripts = sysconfig.get_path("scripts")
        self.env = {
            "PATH": f"{self.bin}:{scripts}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "STATE": str(self.state),
            "BACKTRAIL_HOOK_TIMEOUT": "60",
            # The clone that is tested may lie in a temporary folder.
            "BACKTRAIL_ALLOW_TEMPORARY": "1",
            "PYTHONWARNINGS": "error",
            # Stdout and stderr in the order of a terminal.
            "PYTHONUNBUFFERED": "1",
            **self.env,
        }

    @property
    def home(self) -> Path:
        """The home folder."""
        return self.root / "home"

    @property
    def project(self) -> Path:
        """The folder that a page begins in."""
        return self.home / "project"

    @property
    def state(self) -> Path:
        """What lasts from one line to the next."""
        return self.root / "state"

    @property
    def bin(self) -> Path:
        """Programs that stand in for others."""
        return self.root / "bin"

    @property
    def url(self) -> str:
        """A store in the project, where examples in Python have it too."""
        return f"sqlite:///{self.project}/agent.db"

    @property
    def folder(self) -> Path:
        """Where the shell is now."""
        return Path((self.state / "folder").read_text().strip())

    def use_store(self) -> None:
        """Commands work on the store in the project, and not on that of the home folder."""
        self.env["BACKTRAIL_STORE"] = self.url

    def work(self) -> None:
        """A session to look at, for pages that begin with one."""
        self.use_store()
        (self.project / "app.py").write_text("print('hello')\n")
        with (
            Session.create(self.url, "greeter", cwd=self.project, title="The greeter") as s,
            s.turn("Greet. DB_PASSWORD=hunter22") as turn,
        ):
            with s.tool("bash", {"command": "sed …"}):
                (self.project / "app.py").write_text("print('hi')\n")
            turn.append({"role": "assistant", "content": "Done."})

    def python(self, text: str) -> None:
        """Run a block of Python; it must not fail."""
        done = subprocess.run(
            [sys.executable, "-c", text],
            cwd=self.folder, env=self.env, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def shell(self, line: str) -> tuple[int, str]:
        """Run a line in the shell: its exit code and what it printed, stderr too."""
        done = subprocess.run(
            ["sh", "-c", _AROUND.format(line=line)],
            cwd=self.project, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout.replace(str(self.home), HOME)

    def run(self, step: Step) -> None:
        """Run a command of a page: it must succeed, and print what the page shows."""
        code, printed = self.shell(step.command)
        assert code == 0, f"{step.command}: exit code {code}\n{printed}"
        assert "Traceback" not in printed and "\x1b" not in printed
        if step.output is not None:
            problem = differences(step.output, printed)
            assert problem is None, f"{step.command}\n{problem}"

    def on_terminal(self, line: str, talk: list[tuple[str, str]]) -> None:
        """Run `backtrail` on a terminal: wait for each text, then press the keys."""
        words = shlex.split(line, comments=True)
        assert words[0] == "backtrail"
        with Terminal(*words[1:], cwd=self.folder, env=self.env) as terminal:
            for text, keys in talk:
                terminal.wait_for(text)
                terminal.press(keys)
            code = terminal.end()
            assert code == 0, f"{line}: exit code {code}\n{terminal.screen.text}"
