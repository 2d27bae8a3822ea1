"""A program on a terminal of its own, with real keys and a real screen: `tmux` has both."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


def has_terminal() -> bool:
    """Whether there is a `tmux`."""
    return shutil.which("tmux") is not None


@dataclass(frozen=True)
class Line:
    """How a program shows the line that takes keys."""

    marks: tuple[str, ...]
    """What the line begins with."""
    hint: str
    """What it shows while it is empty."""
    busy: tuple[str, ...] = ()
    """What the screen shows while keys may be lost, although there is a line."""


class Terminal:
    """A program that a person uses."""

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path, line: Line | None = None
    ) -> None:
        self._line = line
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
        self.close()

    def once(self, is_ready: Callable[[], bool]) -> Terminal:
        """This terminal, once it is ready and takes keys; if it never is, nothing of it stays."""
        try:
            self.until(is_ready, what="its screen")
            self.empty()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the program, and what it started."""
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
        """Type a text at once, as pasting does."""
        # A semicolon at the end would end the command of `tmux`.
        last = "\\;" if text.endswith(";") else text[-1:]
        self._tmux("send-keys", "-t", "m", "-l", text[:-1] + last)

    def spell(self, text: str) -> None:
        """Type letter by letter, as a person does."""
        for letter in text:
            self.type(letter)
            time.sleep(0.03)

    def typed(self) -> str | None:
        """What stands in the line that takes keys, without blanks; None while there is none."""
        assert self._line is not None
        # Both at once: the cursor of one screen says nothing about the next one.
        look = ("display-message", "-p", "-t", "m", "#{cursor_y}")
        row, _, screen = self._tmux(*look, ";", "capture-pane", "-p", "-t", "m").partition("\n")
        if not row or any(word in screen for word in self._line.busy):
            return None
        lines = screen.splitlines()[: int(row) + 1]
        for at in reversed(range(len(lines))):
            mark = next((mark for mark in self._line.marks if lines[at].startswith(mark)), None)
            if mark is not None:
                found = squeezed("".join(lines[at:])[len(mark) :])
                return "" if found == squeezed(self._line.hint) else found
        return None

    def write(self, text: str, spell: bool = False) -> None:
        """Type a text into the line that takes keys, until it stands there and nothing else."""
        for _ in range(5):
            self.empty()
            (self.spell if spell else self.type)(text)
            if self.comes(lambda: self.typed() == squeezed(text), 6):
                # An Enter that comes at once is taken for a new line in a pasted text.
                time.sleep(0.3)
                return
        raise AssertionError(f"{text!r} could not be typed:\n{self.screen()}")

    def empty(self) -> None:
        """Wait until there is a line that takes keys, and clear it."""
        seen, end = 0, time.monotonic() + 60
        while seen < 2:
            shown = self.typed()
            seen = seen + 1 if shown == "" else 0
            if shown:
                self.press("C-u")
            if time.monotonic() > end:
                raise AssertionError(f"nothing can be typed:\n{self.screen()}")
            time.sleep(0.15)

    def say(self, text: str, is_heard: Callable[[], bool]) -> None:
        """Type a prompt and press Enter; both again if the screen shows that they were lost."""
        for _ in range(5):
            self.write(text)
            if self.enter(text, is_heard):
                return
        raise AssertionError(f"{text!r} was not heard:\n{self.screen()}")

    def enter(self, text: str, is_done: Callable[[], bool], seconds: float = 60) -> bool:
        """Press Enter after a text until it is done; whether it was, or the text is gone."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.press("Enter")
            if self.comes(is_done, 2):
                return True
            # Sent and not yet done it stands above the line, and Enter alone does no harm.
            while time.monotonic() < end and self.typed() != squeezed(text):
                if self.comes(is_done, 0.5):
                    return True
                if squeezed(text) not in squeezed(self.screen()):
                    return False
        raise AssertionError(f"{text!r} did nothing:\n{self.screen()}")

    def wait(self, text: str, seconds: float = 60) -> None:
        """Wait until something is on the screen."""
        self.until(lambda: text in self.screen(), seconds, text)

    def until(self, holds: Callable[[], bool], seconds: float = 60, what: str = "it") -> None:
        """Wait until something holds."""
        if not self.comes(holds, seconds):
            raise AssertionError(f"{what!r} did not come:\n{self.screen()}")

    @staticmethod
    def comes(holds: Callable[[], bool], seconds: float) -> bool:
        """Whether something holds, now or within some time."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True


def squeezed(text: str) -> str:
    """A text without blanks: a screen breaks lines where it likes."""
    return "".join(text.split())
