"""A temporary folder with a project and a store in it; commands, shown and run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ...errors import BacktrailError
from ..output import Output

FILES = {
    "app.py": "from lib.greet import hello\n\nprint(hello('world'))\n",
    "lib/greet.py": "def hello(name):\n    return f'Hello, {name}!'\n",
    "notes.md": "# Notes\n\nAsk before deleting anything.\n",
    ".env": "TOKEN=the-only-copy\n",
}
"""The project before anybody works on it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the tour takes place."""

    folder: Path
    out: Output

    @classmethod
    def build(cls, out: Output) -> Stage:
        """A new folder, with the project in it."""
        # Real, since a session's folder is compared by its real path, and people will `cd` here.
        stage = cls(Path(os.path.realpath(tempfile.mkdtemp(prefix="backtrail-demo-"))), out)
        # The person's own machine need not know of this root.
        os.environ["BACKTRAIL_STATE"] = str(stage.folder / "state")
        for name, text in FILES.items():
            path = stage.project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return stage

    @property
    def project(self) -> Path:
        """The folder that the agent works in."""
        return self.folder / "project"

    @property
    def url(self) -> str:
        """The store."""
        return f"sqlite:///{self.folder / 'agent.db'}"

    def say(self, text: str) -> None:
        """Tell what comes next."""
        self.out.line()
        self.out.line(text, "bold")

    def run(self, line: str) -> None:
        """Show a command line and run it in the project.

        `backtrail` is run by this very interpreter, so that it is this version of it.
        """
        self.out.line(f"$ {line}", "green")
        self.out.flush()
        words = shlex.split(line)
        command = ["sh", "-c", line]
        if words[0] == "backtrail":
            # -P: a module of the project must not be taken for one of ours.
            command = [sys.executable, "-P", "-m", "backtrail", *words[1:]]
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            # Where the reader is gone, this says so, and the failure is none.
            self.out.line(f"(exit code {done.returncode})")
            self.out.flush()
            raise BacktrailError(f"the tour failed at `{line}`; its folder is {self.folder}")

    def environment(self) -> dict[str, str]:
        """The environment of commands: that of the person, with our store."""
        # Unbuffered, so that notes on stderr come in a pipe where they come on a terminal.
        return {**os.environ, "BACKTRAIL_STORE": self.url, "PYTHONUNBUFFERED": "1"}
