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

    def type(self, text: str) -> None:
        """Type a text at once, as one who pastes it."""
        self._tmux("send-keys", "-t", "m", "-l", text)

    def spell(self, text: str) -> None:
        """Type letter by letter, as a person does."""
        for letter in text:
            # A bare semicolon would end the command of `tmux`.
            self._tmux("send-keys", "-t", "m", "-l", letter.replace(";", "\\;"))
            time.sleep(0.03)

    def say(self, text: str, is_heard: Callable[[], bool]) -> None:
        """Type a prompt, and press Enter until it is heard: a program that starts loses keys."""
        for tries in range(4):
            self.spell(text)
            # What comes too fast is taken for pasted, and an Enter in it for a new line.
            time.sleep(0.4)
            if tries == 3 or len(text) > 100 or text in self.screen():
                break
            self.press("C-u")
        for _ in range(20):
            self.press("Enter")
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                if is_heard():
                    return
                time.sleep(0.1)
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
