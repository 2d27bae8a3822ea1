"""Picking one of many on a terminal, with the keys: a list that fills the screen.

`List` is the pure half: what a key does, and which lines are to be seen. `pick` puts the
terminal into another mode, draws, reads keys, and puts everything back whatever happens.
It draws on stderr, so stdout stays free for data. `Rows` are a session's prompts as such a list:
what a turn did to the files is looked up when its line is to be seen, since in a long session
all of it would take seconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Literal, overload

from .._startup.frozen import dataclass
from .output import Output, clean, width
from .plan import signed
from .wording import ago, brief, things

if TYPE_CHECKING:
    from ..events import Event
    from ..exchange.export.document import Net, Reader
    from ..session.session import Session


Outcome = Literal["go on", "chosen", "left", "look"]
"""What a key came to."""

HELP = "↑ ↓ or j k: move   number: jump   Enter: choose   q: leave"
LOOK = "↑ ↓ or j k: move   number: jump   d: diff   Enter: choose   q: leave"

_KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up", b"\x10": "up",
    b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down", b"\x0e": "down",
    b"\x1b[5~": "page up", b"\x02": "page up",
    b"\x1b[6~": "page down", b"\x06": "page down", b" ": "page down",
    b"\x1b[H": "first", b"\x1bOH": "first", b"\x1b[1~": "first", b"g": "first",
    b"\x1b[F": "last", b"\x1bOF": "last", b"\x1b[4~": "last", b"G": "last",
    b"\r": "choose", b"\n": "choose",
    b"d": "look",
    b"q": "leave", b"\x1b": "leave", b"\x04": "leave",
    b"\x7f": "rub out", b"\x08": "rub out",
    **{b"%d" % digit: str(digit) for digit in range(10)},
}  # fmt: skip

_CHANGES = 21
"""Columns of what a turn did to the files, so that what was said stands below each other."""

_LINGER = 0.05
"""Seconds in which the rest of a key's sequence must come; a lone Escape leaves."""


class List:
    """A list with one line marked, as seen through a window of any size."""

    def __init__(
        self, title: str, rows: Sequence[str], at: int = -1, *, looks: bool = False
    ) -> None:
        self.title = title
        self._looks = looks
        self.rows = rows
        self.at = at % len(self.rows)
        self._typed = ""
        self._top = 0
        self._page = 1

    def press(self, key: str) -> Outcome:
        """Take a key; its name is one of those in the table, or unknown."""
        last = len(self.rows) - 1
        if key == "choose":
            return "chosen"
        if key == "leave":
            return "left"
        if key == "look" and self._looks:
            return "look"
        if key.isdigit():
            self._type(self._typed + key)
            return "go on"
        if key == "rub out":
            self._type(self._typed[:-1])
            return "go on"
        self._typed = ""
        page = self._page
        moves = {"up": -1, "down": 1, "page up": -page, "page down": page, "first": -last - 1}
        step = last + 1 if key == "last" else moves.get(key, 0)
        self.at = min(last, max(0, self.at + step))
        return "go on"

    def _type(self, typed: str) -> None:
        """Go to the number that was typed so far; one that is not there begins anew."""
        if typed and not 1 <= int(typed) <= len(self.rows):
            typed = typed[-1]
        self._typed = typed if typed and 1 <= int(typed) <= len(self.rows) else ""
        if self._typed:
            self.at = int(self._typed) - 1

    def lines(self, columns: int, height: int) -> list[tuple[str, bool]]:
        """What a window of this size shows: lines, and whether each is the marked one."""
        head = [self.title] if height >= 3 else []
        foot = [LOOK if self._looks else HELP] if height >= 4 else []
        self._page = room = max(1, height - len(head) - len(foot))
        self._top = min(self._top, self.at, max(0, len(self.rows) - room))
        self._top = max(self._top, self.at - room + 1)
        digits = len(str(len(self.rows)))
        shown = [(clip(line, columns), False) for line in head]
        for at in range(self._top, min(len(self.rows), self._top + room)):
            mark = ">" if at == self.at else " "
            row = f"{mark} {at + 1:>{digits}}  {self.rows[at]}"
            shown.append((clip(row, columns), at == self.at))
        return [*shown, *((clip(line, columns), False) for line in foot)]


# --- text in cells -----------------------------------------------------------------------


def clip(text: str, columns: int) -> str:
    """One line of text that nothing in it can break, cut to so many columns."""
    text = clean(text[: 8 * columns + 8].translate(_BREAKS))
    if width(text) <= columns:
        return text
    taken, room = [], columns - 1
    for character in text:
        room -= width(character)
        if room < 0:
            break
        taken.append(character)
    return "".join(taken) + "…" if columns > 0 else ""


_BREAKS = dict.fromkeys(map(ord, "\t\n\r"), " ")


# --- keys --------------------------------------------------------------------------------


class Keys:
    """Bytes of a terminal as names of keys."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def waiting(self) -> bool:
        """Whether a key has begun that may go on."""
        return bool(self._held)

    def feed(self, data: bytes) -> Iterator[str]:
        """The keys that are complete; bytes that are no key are passed over."""
        held = self._held + data
        while held:
            size = _length(held)
            if size == 0:
                break
            yield _KEYS.get(held[:size], "unknown")
            held = held[size:]
        self._held = held

    def flush(self) -> Iterator[str]:
        """Nothing more comes: what was held is a key by itself."""
        held, self._held = self._held, b""
        if held:
            yield _KEYS.get(held, "unknown")


def _length(data: bytes) -> int:
    """How many bytes the first key has; 0 if that is not known yet."""
    if data[:1] != b"\x1b":
        return 1
    if len(data) == 1:
        return 0
    if data[1:2] == b"O":
        return 3 if len(data) >= 3 else 0
    if data[1:2] != b"[":
        # Escape twice, or with another key: leave.
        return 1
    for at in range(2, len(data)):
        if 0x40 <= data[at] <= 0x7E:
            return at + 1
    return 0 if len(data) < 32 else len(data)


# --- the terminal ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where keys come from and lines go to."""

    keys: int
    screen: int
    in_color: bool = True

    def write(self, text: str) -> None:
        """Write all of a text, whatever the terminal cannot show."""
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self.screen, data) :]

    def size(self) -> tuple[int, int]:
        """Columns and lines; something usual where the terminal does not say."""
        try:
            found = os.get_terminal_size(self.screen)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def draw(self, lines: Sequence[tuple[str, bool]]) -> None:
        """Show these lines and nothing else."""
        rows = []
        for text, marked in lines:
            rows.append(f"\x1b[7m{text}\x1b[0m" if marked and self.in_color else text)
        # Erased first: behind a full line the cursor still stands on its last column.
        upper = "".join(f"\x1b[2K{row}\r\n" for row in rows[:-1])
        self.write(f"\x1b[H{upper}\x1b[J{rows[-1]}")


def pick(
    title: str, rows: Sequence[str], *, at: int = -1, in_color: bool = True,
    look: Callable[[int], None] | None = None,
) -> int | None:  # fmt: skip
    """Let a person pick a row; None if they leave. Ctrl-C is `KeyboardInterrupt`.

    `look` shows more of a row, in place of the list.
    """
    if not rows:
        return None
    terminal = Terminal(sys.stdin.fileno(), sys.stderr.fileno(), in_color)
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        return _by_number(terminal, title, rows)
    shown = List(title, rows, at, looks=look is not None)
    while True:
        outcome = _picked(terminal, shown)
        if outcome != "look" or look is None:
            return shown.at if outcome == "chosen" else None
        look(shown.at)


def _picked(terminal: Terminal, shown: List) -> Outcome:
    """What the person does with a list that fills the screen."""
    with _full_screen(terminal) as resized:
        for key in _pressed(
            terminal, resized, lambda: terminal.draw(shown.lines(*terminal.size()))
        ):
            outcome = shown.press(key)
            if outcome != "go on":
                return outcome
    return "left"


def _pressed(terminal: Terminal, resized: int, draw: Callable[[], None]) -> Iterator[str]:
    """Keys until the terminal is gone; draws before each, and when the window changes."""
    keys = Keys()
    draw()
    while True:
        wait = _LINGER if keys.waiting else None
        ready, _, _ = select.select([terminal.keys, resized], [], [], wait)
        if resized in ready:
            os.read(resized, 64)
        if terminal.keys in ready:
            data = os.read(terminal.keys, 64)
            if not data:
                return
            yield from keys.feed(data)
        elif not ready:
            yield from keys.flush()
        draw()


@contextmanager
def _full_screen(terminal: Terminal) -> Iterator[int]:
    """A screen of our own without echo; yields what can be read when its size changes."""
    import termios

    before = termios.tcgetattr(terminal.keys)
    changed = termios.tcgetattr(terminal.keys)
    changed[3] &= ~(termios.ECHO | termios.ICANON)
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    # Ctrl-C still interrupts. Ctrl-Z would leave the shell with our screen.
    changed[6][termios.VSUSP] = os.fpathconf(terminal.keys, "PC_VDISABLE").to_bytes(1, "little")
    with ExitStack() as stack:
        resized = stack.enter_context(_signals())
        stack.callback(termios.tcsetattr, terminal.keys, termios.TCSADRAIN, before)
        # Last in, first out: the screen comes back before the mode does.
        stack.callback(terminal.write, "\x1b[?7h\x1b[?25h\x1b[?1049l")
        termios.tcsetattr(terminal.keys, termios.TCSADRAIN, changed)
        # Its own buffer, no cursor, and no line that runs into the next.
        terminal.write("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J")
        yield resized


@contextmanager
def _signals() -> Iterator[int]:
    """A signal to end is an exception here, so that the terminal is put back first.

    Yields what can be read after any signal: one that comes just before a wait ends it too.
    """

    def ended(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def resized(number: int, frame: FrameType | None) -> None:
        """The signal is in the pipe."""

    with ExitStack() as stack:
        heard, sent = os.pipe()
        stack.callback(os.close, heard)
        stack.callback(os.close, sent)
        os.set_blocking(sent, False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(sent, warn_on_full_buffer=False))
        for number in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, ended))
        before = signal.signal(signal.SIGWINCH, resized)
        stack.callback(signal.signal, signal.SIGWINCH, before)
        yield heard


def _by_number(terminal: Terminal, title: str, rows: Sequence[str]) -> int | None:
    """The same for a terminal that can do nothing."""
    columns = terminal.size()[0]
    for at, row in enumerate(rows, 1):
        terminal.write(clip(f"{at:>{len(str(len(rows)))}}  {row}", columns) + "\n")
    while True:
        terminal.write(f"{clip(title, columns)}\nnumber (Enter: none): ")
        answer = sys.stdin.readline().strip()
        if answer.isdecimal() and 1 <= int(answer) <= len(rows):
            return int(answer) - 1
        if answer in ("", "q"):
            return None


def choose(out: Output, question: str, words: Sequence[str]) -> str | None:
    """Ask for one of some words, or its first letter; None for Enter alone, or no."""
    while True:
        answer = out.ask(question).lower()
        if answer in ("", "n", "no", "nothing", "q", "quit"):
            return None
        for word in words:
            if answer in (word, word[0]):
                return word
        out.note(f"one of {', '.join(words)}, or nothing")


def prompts(session: Session) -> list[Event]:
    """The prompts of the history, oldest first."""
    return [event for event in session.history() if event.kind == "user_message"]


class Rows(Sequence[str]):
    """Prompts as lines of a list, each made when it is first asked for."""

    def __init__(self, session: Session, found: Sequence[Event], reader: Reader) -> None:
        self._found = found
        self._reader = reader
        self._turns: dict[int, list[Event]] = {}
        at = 0
        for event in session.history():
            at = event.seq if event.kind == "user_message" else at
            self._turns.setdefault(at, []).append(event)
        self._made: dict[int, str] = {}
        self._whens = [ago(event.ts) for event in found]
        self._broad = max(map(len, self._whens), default=0)

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...

    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if at not in self._made:
            self._made[at] = self._row(at)
        return self._made[at]

    def _row(self, at: int) -> str:
        from ..events.messages import speech_of

        event = self._found[at]
        text = brief(speech_of(event.data.get("message")), 300)
        changes = clip(self._changes(event), _CHANGES)
        changes += " " * (_CHANGES - width(changes))
        return f"{self._whens[at]:>{self._broad}}  {changes}  {text}"

    def net(self, at: int) -> Net:
        """What the turn of a prompt did to the files in all."""
        return self._reader.net(self._turns[self._found[at].seq][1:])

    def _changes(self, event: Event) -> str:
        """What a turn did to the files, in a few words."""
        from ..session.uncaptured import missing

        events = self._turns[event.seq]
        net = self._reader.net(events[1:])
        plus, minus = sum(f.insertions for f in net.own), sum(f.deletions for f in net.own)
        count = things(file.folder for file in net.own)
        perhaps = f"({len(net.perhaps)} perhaps)" if net.perhaps else ""
        lost = len(missing(events))
        unseen = f"({lost} not captured)" if lost else ""
        return " ".join(filter(None, (count, signed(plus, minus), perhaps, unseen)))


def quoted(event: Event) -> str:
    """What was said, in quotes, short enough for a sentence."""
    from ..events.messages import speech_of

    return f'"{brief(speech_of(event.data.get("message")), 60)}"'
