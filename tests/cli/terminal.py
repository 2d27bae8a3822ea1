"""A terminal for tests: a real pty, a program on it, keys, and a model of what is on the screen."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

UP, DOWN, ENTER, CTRL_C, CTRL_D, ESCAPE = "\x1b[A", "\x1b[B", "\r", "\x03", "\x04", "\x1b"
LONGEST_WAIT = 20.0

# The terminal is made the one that Ctrl-C comes from.
_CODE = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from backtrail.cli import main
sys.exit(main())
"""
_PIECE = re.compile(
    r"\x1b\[(?P<args>[?0-9;]*)(?P<final>[A-Za-z])|(?P<control>[\r\n\x07\x08])|(?P<text>.)",
    re.DOTALL,
)


class Screen:
    """What a terminal shows, as far as our programs and readline ask of it."""

    def __init__(self, columns: int, lines: int) -> None:
        self.resize(columns, lines)
        self.in_other = False
        self.cursor_hidden = False
        self.wraps = True
        self.unknown: list[str] = []

    def resize(self, columns: int, lines: int) -> None:
        """A window of another size, cleared."""
        self.columns, self.lines = columns, lines
        self._main = [[" "] * columns for _ in range(lines)]
        self._rows = self._main
        self._x = self._y = 0
        self._saved = (0, 0)

    @property
    def text(self) -> str:
        """All lines, without what is empty at their ends."""
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip()

    def feed(self, text: str) -> None:
        """Take what a program wrote."""
        for found in _PIECE.finditer(text):
            if found["text"]:
                self._put(found["text"])
            elif found["control"]:
                self._control(found["control"])
            else:
                self._obey(found["args"], found["final"])

    def _put(self, character: str) -> None:
        if ord(character) < 32 or 127 <= ord(character) < 160:
            self.unknown.append(repr(character))
            return
        if self._x >= self.columns:
            if self.wraps:
                self._x = 0
                self._down()
            else:
                self._x = self.columns - 1
        self._rows[self._y][self._x] = character
        self._x += 1

    def _down(self) -> None:
        self._y += 1
        if self._y == self.lines:
            self._y -= 1
            del self._rows[0]
            self._rows.append([" "] * self.columns)

    def _control(self, character: str) -> None:
        if character == "\r":
            self._x = 0
        elif character == "\n":
            self._down()
        elif character == "\x08":
            self._x = max(0, self._x - 1)

    def _obey(self, args: str, final: str) -> None:
        if final == "H":
            self._x = self._y = 0
        elif final == "J":
            self._erase(0 if args == "2" else self._y, 0 if args == "2" else self._x)
        elif final == "K":
            row = self._rows[self._y]
            start = 0 if args == "2" else min(self._x, self.columns - 1)
            row[start:] = [" "] * (self.columns - start)
        elif final in "CD":
            self._x += int(args or 1) * (1 if final == "C" else -1)
        elif (args, final) in (("?1049", "h"), ("?1049", "l")):
            self.in_other = final == "h"
            here, (self._x, self._y) = (self._x, self._y), self._saved
            self._saved = here
            empty = [[" "] * self.columns for _ in range(self.lines)]
            self._rows = empty if self.in_other else self._main
        elif args == "?25":
            self.cursor_hidden = final == "l"
        elif args == "?7":
            self.wraps = final == "h"
        elif final != "m" and args != "?2004":
            self.unknown.append(f"{args}{final}")

    def _erase(self, y: int, x: int) -> None:
        self._rows[y][x:] = [" "] * (self.columns - x)
        for row in self._rows[y + 1 :]:
            row[:] = [" "] * self.columns


class Terminal:
    """A program on a terminal. Use it as a context manager; it does not outlive the test.

    With `output`, its stdout goes into that file.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        columns: int = 100,
        lines: int = 30,
        output: Path | None = None,
    ) -> None:
        self.screen = Screen(columns, lines)
        self.raw = b""
        self._held = b""
        self._fd, self._child = pty.openpty()
        self._set_size(columns, lines)
        self.modes = termios.tcgetattr(self._child)
        with ExitStack() as stack:
            out = self._child if output is None else stack.enter_context(output.open("wb"))
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _CODE, *arguments],
                stdin=self._child,
                stdout=out,
                stderr=self._child,
                cwd=cwd,
                env={"TERM": "xterm-256color", "LANG": "C.UTF-8", **env},
                start_new_session=True,
            )

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, *keys: str) -> None:
        """Type keys, one after another."""
        for key in keys:
            os.write(self._fd, key.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the window; the program is notified by the kernel."""
        self.screen.resize(columns, lines)
        self._set_size(columns, lines)

    def kill(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait_for(self, text: str, times: int = 1) -> str:
        """Wait until a text is on the screen so many times, and return all that is there."""
        deadline = time.monotonic() + LONGEST_WAIT
        while self.screen.text.count(text) < times:
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"no {text!r} on the screen:\n{self.screen.text}")
        return self.screen.text

    def say(self, *keys: str, mark: str = ">") -> None:
        """Wait for a line to type on, and type.

        Keys that come earlier are taken in the mode that the terminal has until then.
        """
        deadline = time.monotonic() + LONGEST_WAIT
        while self._line() != mark:
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"no line that begins with {mark!r}:\n{self.screen.text}")
        self.press(*keys)

    def ask(self, text: str, answer: str) -> str:
        """Type a line, and wait for what is on the screen then."""
        self.say(text, ENTER)
        return self.wait_for(answer)

    def end(self) -> int:
        """Wait for the program to end; its exit code."""
        deadline = time.monotonic() + LONGEST_WAIT
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        while self._read(0.05):
            pass
        return self._process.wait(1)

    def interrupt(self) -> int:
        """Press Ctrl-C until the program ends, as a person does; its exit code.

        Python may see a signal that comes just before it waits for a line only with the next.
        """
        deadline = time.monotonic() + LONGEST_WAIT
        while self._process.poll() is None and time.monotonic() < deadline:
            before = self.screen.text
            self.press(CTRL_C)
            pause = time.monotonic() + 5
            while self._process.poll() is None and time.monotonic() < pause:
                self._read(0.05)
                if self.screen.text != before and self._line() == ">":
                    break
        return self.end()

    def _line(self) -> str:
        return self.screen.text.rpartition("\n")[2]

    def is_restored(self) -> bool:
        """Whether the terminal is as it was before the program ran."""
        screen = self.screen
        plain = not screen.in_other and not screen.cursor_hidden and screen.wraps
        return plain and termios.tcgetattr(self._child) == self.modes

    def _read(self, wait: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], wait)
        if not ready:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        self.raw += data
        # A character or a sequence may be cut in two.
        data = self._held + data
        cut = data.rfind(b"\x1b", -12)
        if cut < 0 or re.search(rb"[A-Za-z]", data[cut:]):
            cut = len(data)
        while cut and (data[cut - 1] & 0xC0 == 0x80 or data[cut - 1] >= 0xC0):
            if _is_whole(data[:cut]):
                break
            cut -= 1
        self._held = data[cut:]
        self.screen.feed(data[:cut].decode())
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._fd)
        os.close(self._child)


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
