"""A project, a store, and a session that worked on the project; and the command line on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backtrail import Session

CODE = "import sys; from backtrail.cli import main; sys.exit(main())"
ESCAPE = "\x1b"


@dataclass(frozen=True)
class Ran:
    """What a run of the command line left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """What was printed, without what differs from run to run."""
        return normal(self.out).splitlines()


@dataclass(frozen=True)
class Stage:
    """A folder with a project and a store beside it."""

    folder: Path

    @property
    def project(self) -> Path:
        """The folder that sessions work in."""
        return self.folder / "project"

    @property
    def url(self) -> str:
        """The store."""
        return f"sqlite:///{self.folder}/store/agent.db"

    def environment(self, **more: str) -> dict[str, str]:
        """A home of its own, and nothing of the person who runs the tests."""
        keep = ("PATH", "LANG", "BACKTRAIL_STATE")
        kept = {name: os.environ[name] for name in keep if name in os.environ}
        return {
            **kept,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "BACKTRAIL_STORE": self.url,
            "PYTHONWARNINGS": "error",
            # The clone that is tested may lie in a temporary folder.
            "BACKTRAIL_ALLOW_TEMPORARY": "1",
            "COLUMNS": "100",
            **more,
        }

    def run(
        self, *arguments: str, cwd: Path | None = None, input: str = "", **environment: str
    ) -> Ran:
        """Run `backtrail` in the project, with pipes."""
        done = subprocess.run(
            [sys.executable, "-c", CODE, *arguments],
            cwd=cwd or self.project, env=self.environment(**environment), input=input,
            capture_output=True, text=True,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def session(self, id: str, **options: Any) -> Session:
        """A session of the project."""
        return Session.open(self.url, id, cwd=self.project, **options)


WHEN = re.compile(r"just now|\d+ (?:s|min|h|d) ago|\b20\d\d-\d\d-\d\d\b(?!T)")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}(?:-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12})?")


def normal(text: str) -> str:
    """Text without ids, times and the widths that depend on them."""
    text = UUID.sub("ID", WHEN.sub("WHEN", text))
    return re.sub(r"(?<=\S)  +", "  ", text)


def work(stage: Stage) -> None:
    """Two turns: the agent writes a file, then breaks one with the shell."""
    (stage.project / "app.py").write_text("def hello():\n    print('hello')\n")
    (stage.project / ".env").write_text("TOKEN=only-copy\n")
    with stage.session("work", title="The greeter", model="tiny-1") as s:
        s.append({"role": "user", "content": "Add a readme."})
        s.append({"role": "assistant", "content": "I will write one."})
        with s.tool("write", {"path": "README.md"}, paths=["README.md"]) as call:
            (stage.project / "README.md").write_text("# Greeter\n")
            call.result = "written"
        s.append({"role": "assistant", "content": "Done."}, usage=usage(20, 4))
        s.checkpoint("before the cleanup")
        s.append({"role": "user", "content": "Clean up."})
        with s.tool("bash", {"command": "rm .env"}) as call:
            (stage.project / ".env").unlink()
            (stage.project / "app.py").write_text("def hi():\n    print('hello')\n")
            call.result = "exit code 0"
        s.append({"role": "assistant", "content": "All clean."}, usage=usage(30, 6))


def usage(read: int, written: int) -> dict[str, int]:
    """Tokens, as a provider counts them."""
    return {"input_tokens": read, "output_tokens": written}
