"""The usual way to checkpoint, as many agents do it: a second git repository whose work tree
is the project. A checkpoint is `add -A` and a commit; a restore is `checkout` and `clean`.

It is written with care where care costs nothing: no hooks, no user's configuration, no line
endings of its own, and it never writes into the user's repository.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from .driver import Driver, Token

_WAIT = 20.0


class ShadowGit(Driver):
    """Snapshots in a git repository beside the project."""

    name = "shadow git"

    def start(self, root: Path) -> None:
        self.root = root
        if not self.place.exists():
            self.place.mkdir(parents=True)
            self._git("init", "--quiet")
            self._git("config", "core.autocrlf", "false")
            self._git("config", "core.worktree", str(root))
            self._git("config", "gc.auto", "0")
            self._git("commit", "--quiet", "--allow-empty", "-m", "start")

    def checkpoint(self) -> Token:
        self._git("add", "-A", ".")
        self._git("commit", "--quiet", "--allow-empty", "-m", "checkpoint")
        return self._git("rev-parse", "HEAD").decode().strip()

    def restore(self, token: Token) -> None:
        self._checkout(token)
        self._git("clean", "-fdq")

    def _checkout(self, token: Token) -> None:
        self._git("reset", "--hard", "--quiet", str(token))

    def stop(self) -> None:
        """Nothing is held between calls."""

    def preview(self, token: Token) -> set[str]:
        changed = self._git("diff", "--name-only", "-z", str(token))
        extra = self._git("ls-files", "--others", "--exclude-standard", "-z")
        return {os.fsdecode(name) for name in (changed + extra).split(b"\0") if name}

    def another(self) -> Driver:
        """A second session that shares the repository, as the projects' tools do."""
        other = ShadowGit(self.place)
        other.start(self.root)
        return other

    def state_file(self) -> Path:
        return self.place / "config"

    def lose(self, content: bytes) -> None:
        done = self._git("hash-object", "--stdin", "--no-filters", input=content).decode().strip()
        (self.place / "objects" / done[:2] / done[2:]).unlink()

    def kill_checkpoint(self) -> None:
        """Kill `git add` while it has the index, which it takes first and gives back last."""
        adding = subprocess.Popen(
            ["git", "add", "-A", "."], cwd=self.root, env=self._env(), stderr=subprocess.DEVNULL
        )
        lock = self.place / "index.lock"
        until = time.monotonic() + _WAIT
        while not lock.exists() and adding.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        adding.send_signal(signal.SIGKILL)
        adding.wait()

    def kill_restore(self, token: Token, step: int) -> bool:
        """Die between the commands of a restore."""
        if step > 1:
            self.restore(token)
            return False
        if step == 1:
            self._checkout(token)
        return True

    def _git(self, *words: str, input: bytes | None = None) -> bytes:
        done = subprocess.run(
            ["git", *words], cwd=self.root, env=self._env(), input=input,
            capture_output=True, check=True,
        )  # fmt: skip
        return done.stdout

    def _env(self) -> dict[str, str]:
        who = {"NAME": "shadow", "EMAIL": "shadow@example.com"}
        people = {f"GIT_{p}_{k}": v for p in ("AUTHOR", "COMMITTER") for k, v in who.items()}
        clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        place = {"GIT_DIR": str(self.place), "GIT_WORK_TREE": str(self.root)}
        return {**clean, **people, **quiet, **place}
