"""A program on a terminal of its own, with real keys and a real screen: `tmux` has both."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def has_terminal() -> bool:
    """Whether there is a `tmux`."""
    return shutil.which("tmux") is not None


class Terminal:
    """A program that a person uses."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        # The path of a socket must be short.
        self._socket = f"/tmp/backtrail-test-{os.getpid()}-{time.monotonic_ns() % 10**8}"
        # What the program starts, and what stays behind it, has this in its environment.
        self._mark = f"BACKTRAIL_TEST_TERMINAL={self._socket}"
        given = [f"{name}={value}" for name, value in env.items()]
        words = ["env", "-i", "TERM=xterm-256color", self._mark, *given, *words]
        size = ("-x", "120", "-y", "45")
        self._tmux("new-session", "-d", "-s", "m", *size, "-c", str(cwd), shlex.join(words))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self._mark.encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                continue
        Path(self._socket).unlink(missing_ok=True)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *words], capture_output=True, text=True, check=False
        )
        return done.stdout

    def screen(self) -> str:
        """What a person sees."""
        return self._tmux("capture-pane", "-p", "-t", "m")

    def press(self, key: str) -> None:
        """Press a key, such as `Enter` or `Escape`."""
        self._tmux("send-keys", "-t", "m", key)

    def say(self, text: str, is_heard: Callable[[], bool]) -> None:
        """Type a prompt, and press Enter until it is heard: a program that starts loses keys."""
        for letter in text:
            self._tmux("send-keys", "-t", "m", "-l", letter)
            time.sleep(0.05)
        for _ in range(30):
            time.sleep(1)
            if is_heard():
                return
            self.press("Enter")
        raise AssertionError(f"{text!r} was not heard:\n{self.screen()}")

    def wait(self, text: str, seconds: float = 60) -> None:
        """Wait until something is on the screen."""
        self.until(lambda: text in self.screen(), seconds, text)

    def until(self, holds: Callable[[], bool], seconds: float = 60, what: str = "it") -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if holds():
                return
            time.sleep(0.2)
        raise AssertionError(f"{what!r} did not come:\n{self.screen()}")
