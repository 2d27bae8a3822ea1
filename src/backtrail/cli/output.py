"""What people and scripts see: data on stdout, the rest on stderr.

Text is never written as it is: `clean` shows escape sequences, control, bidi and unseen characters
instead of sending them. Colour only on a terminal, and not with `NO_COLOR`, `TERM=dumb` or
`--no-color`.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from .wording import fitted

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 4000
"""Characters of a line above which people see only its beginning."""

Span = tuple[str, str]
"""A piece of text and its style, such as ("3 files", "bold green")."""

_CODES = {
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "underline": "4",
    "reverse": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class Output:
    """Where a verb writes. `as_json`: one JSON document, or one a line for streams."""

    def __init__(self, as_json: bool = False, plain: bool = False) -> None:
        self.as_json = as_json
        self.is_terminal = sys.stdout.isatty()
        self.in_color = self.is_terminal and not (plain or _without_color())
        self._console: Console | None = None
        self._bar = ""
        self._to: IO[str] | None = None

    @property
    def can_ask(self) -> bool:
        """Whether there is a person at the other end to see all that is printed."""
        both = sys.stdin.isatty() and sys.stderr.isatty()
        return both and self.is_terminal and not self.as_json

    # --- data ----------------------------------------------------------------------------

    def data(self, value: object) -> None:
        """Print a value as JSON, on one line where no terminal shows it."""
        self._write(f"{as_json(value, pretty=self.is_terminal)}\n")
        sys.stdout.flush()

    def data_line(self, value: object) -> None:
        """Print a value of a stream as JSON, always on one line."""
        self._write(f"{as_json(value)}\n")
        sys.stdout.flush()

    def flush(self) -> None:
        """Let people see now what was printed."""
        sys.stdout.flush()

    # --- for people ----------------------------------------------------------------------

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line for people. The text is cleaned here, and cut if it is endless."""
        self.spans((text, style))

    def text(self, text: str) -> None:
        """Print several lines as they are: our own words, which no one else wrote."""
        self._write(f"{clean(text)}\n")

    def raw(self, text: str) -> None:
        """Write data as it is, for a program: only where no terminal shows it."""
        self._write(clean(text) if self.is_terminal else text)

    def spans(self, *pieces: Span) -> None:
        """Print one line in several styles."""
        self._write("".join(self.styled(shortened(text), style) for text, style in pieces) + "\n")

    def styled(self, text: str, style: str) -> str:
        """Cleaned text between the codes of a style; without colour, only cleaned."""
        text = clean(text)
        codes = ";".join(_CODES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m" if codes and text and self.in_color else text

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Collection[str] = (),
        styles: Mapping[str, str] | None = None,
    ) -> None:
        """Print a table for people; columns in `right` are of numbers.

        On a terminal it fits the width, and what is cut ends in an ellipsis. In a pipe
        nothing is cut.
        """
        cells = [[clean(shortened(cell), newlines=False) for cell in row] for row in rows]
        if self.is_terminal:
            self._rich_table(columns, cells, right, styles or {})
            return
        widths = [max(map(width, column)) for column in zip(columns, *cells, strict=True)]
        for row in [list(columns), *cells]:
            padded = [
                " " * (size - width(cell)) + cell if name in right
                else cell + " " * (size - width(cell))
                for name, cell, size in zip(columns, row, widths, strict=True)
            ]  # fmt: skip
            self._write("  ".join(padded).rstrip() + "\n")

    def _rich_table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: Collection[str],
        styles: Mapping[str, str],
    ) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        widths = [max(map(width, column)) for column in zip(columns, *rows, strict=True)]
        sizes = fitted(widths, self.console.width)
        shown = [at for at, size in enumerate(sizes) if size]
        for at in shown:
            name = columns[at]
            table.add_column(
                Text(name), justify="right" if name in right else "left",
                style=styles.get(name, ""), width=sizes[at], no_wrap=True, overflow="ellipsis",
            )  # fmt: skip
        for row in rows:
            table.add_row(*(Text(row[at]) for at in shown))
        self.console.print(table)
        if len(shown) < len(columns):
            left = ", ".join(name for name, size in zip(columns, sizes, strict=True) if not size)
            self.note(f"the window is too narrow for: {left}")

    @property
    def console(self) -> Console:
        """Rich's console on stdout, for what needs more than lines. Clean what it prints."""
        self._clear()
        if self._console is None:
            from shutil import get_terminal_size

            from rich.console import Console as Plain

            class Console(Plain):
                """Rich ends the process where the reader is gone; our callers know better."""

                def on_broken_pipe(self) -> None:
                    raise BrokenPipeError

            self._console = Console(
                file=self._to, width=None if self._to is None else get_terminal_size()[0],
                color_system="auto" if self.in_color else None,
                highlight=False, markup=False, emoji=False, soft_wrap=False,
                force_terminal=self.in_color or None,
            )  # fmt: skip
        return self._console

    @contextmanager
    def paged(self, *, stay: bool = False) -> Iterator[None]:
        """What is printed goes through the person's pager, on a terminal; it may be left early.

        With `stay` the pager stays also for little, and without one the person is waited for.
        """
        pager = _pager() if self.is_terminal and not self.as_json else None
        if pager is None:
            yield
            if stay:
                self.ask("Enter: back")
            return
        import subprocess

        self._clear()
        sys.stdout.flush()
        environment = {"LESS": "R" if stay else "FRX", "LV": "-c", **os.environ}
        process = subprocess.Popen(
            pager, stdin=subprocess.PIPE, env=environment, encoding="utf-8", errors="replace"
        )
        assert process.stdin is not None
        self._to, self._console = process.stdin, None
        try:
            with suppress(BrokenPipeError):
                yield
        finally:
            self._to, self._console = None, None
            with suppress(BrokenPipeError):
                process.stdin.close()
            while process.poll() is None:
                # Ctrl-C is for the pager.
                with suppress(KeyboardInterrupt):
                    process.wait()

    # --- beside the data -----------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print something beside the data, on stderr."""
        self._clear()
        sys.stderr.write(f"{clean(text)}\n")
        sys.stderr.flush()

    def failed(self, code: str, message: str) -> None:
        """Print an error: on stderr, and as JSON on stdout where that was asked for."""
        if self.as_json:
            self.data({"error": {"code": code, "message": message}})
        self.note(f"backtrail: {message}")

    def ask(self, question: str) -> str:
        """Ask the person a question and return the line; empty at the end of input.

        What was typed before the question was there is no answer to it, and is dropped.
        """
        import termios

        self._clear()
        sys.stdout.flush()
        with suppress(termios.error):
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        try:
            sys.stderr.write(f"{clean(question)} ")
            sys.stderr.flush()
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            self._end_line()
            raise
        if not answer.endswith("\n"):
            self._end_line()
        return answer.strip()

    def _end_line(self) -> None:
        """Without an Enter, what comes next would stand behind the question."""
        sys.stderr.write("\n")
        sys.stderr.flush()

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """A count of what is done, on stderr: after a second, and only on a terminal.

        A caller may keep the step and call it later; then it shows nothing.
        """
        began = shown = time.monotonic()
        over = False

        def step(done: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if over or now - began < 1 or now - shown < 0.1 or not sys.stderr.isatty():
                return
            shown = now
            self._clear()
            self._bar = f"{what}: {_bar(done, total)}"
            sys.stderr.write(self._bar)
            sys.stderr.flush()

        try:
            yield step
        finally:
            over = True
            self._clear()

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Say how long something takes that cannot be counted, as `progress` does."""
        if not sys.stderr.isatty():
            yield
            return
        done = threading.Event()

        def tick() -> None:
            seconds = 0
            while not done.wait(1):
                seconds += 1
                self._clear()
                self._bar = f"{what}: {seconds} s"
                sys.stderr.write(self._bar)
                sys.stderr.flush()

        ticking = threading.Thread(target=tick, daemon=True)
        ticking.start()
        try:
            yield
        finally:
            done.set()
            ticking.join()
            self._clear()

    def abandon(self) -> None:
        """The reader of stdout is gone: write no more to it, not even at exit."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

    def _write(self, text: str) -> None:
        self._clear()
        (self._to or sys.stdout).write(text)

    def _clear(self) -> None:
        """Take a bar away before anything else is written."""
        if self._bar:
            sys.stderr.write("\r" + " " * len(self._bar) + "\r")
            sys.stderr.flush()
            self._bar = ""


def _pager() -> list[str] | None:
    """The command of the pager; None if there is none."""
    import shlex
    import shutil

    given = os.environ.get("PAGER")
    words = shlex.split("less" if given is None else given)
    return words if words and words != ["cat"] and shutil.which(words[0]) else None


def _without_color() -> bool:
    return os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))


def _bar(done: int, total: int | None) -> str:
    if not total:
        return f"{done:,}"
    filled = min(20, 20 * done // total)
    return f"[{'#' * filled}{' ' * (20 - filled)}] {done:,} of {total:,}"


# --- text that a terminal may see --------------------------------------------------------

_BIDI = "\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c"
_UNSEEN = "\u200b\u2060-\u2064\ufeff\U000e0000-\U000e007f"
"""What takes no room and can hide a text; joiners stay, since scripts and emoji need them."""
_ODD = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}{_UNSEEN}\ud800-\udfff]")
_ODD_JSON = f"[\x7f-\x9f\u2028\u2029{_BIDI}{_UNSEEN}]"


def clean(text: str, *, newlines: bool = True) -> str:
    """Text without anything a terminal would obey; what it was is shown, such as `\\x1b`.

    Without `newlines` it is one line, each run of white space one space.
    """
    if not newlines:
        text = " ".join(text.split())
    return _ODD.sub(_visible, text.replace("\r\n", "\n") if newlines else text)


def _visible(found: re.Match[str]) -> str:
    code = ord(found.group())
    if found.group() == "\r":
        return "\\r"
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def shortened(text: str, limit: int = LONGEST) -> str:
    """Text whose lines are no longer than `limit`, and say what is missing."""
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    return "\n".join(
        line if len(line) <= limit else f"{line[:limit]} … ({len(line) - limit:,} more characters)"
        for line in lines
    )


def width(text: str) -> int:
    """The columns that a text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def as_json(value: object, *, pretty: bool = False) -> str:
    """A value as JSON that is safe on a terminal: what is not printable is escaped."""
    import msgspec

    try:
        encoded = msgspec.json.encode(value)
        text = (msgspec.json.format(encoded) if pretty else encoded).decode()
    except UnicodeEncodeError:
        # Lone surrogates, such as names of files that are not UTF-8.
        import json

        plain = msgspec.to_builtins(value)
        text = json.dumps(plain, indent=2 if pretty else None)
    return re.sub(_ODD_JSON, _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    import json

    return json.dumps(found.group())[1:-1]
