"""Any command as a session: what it does to the files, with points to go back to.

The command line is the prompt, and what changes while it runs is its own. Whenever the files
have changed and then been quiet for a second there is a point in between. A look at names,
sizes and times shows that; contents are read only then.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import NotFound
from ..files.workspace.ignore import entries_below

if TYPE_CHECKING:
    from ..session.session import Session

QUIET = 1.0
"""Seconds without a change after which a point is recorded."""

_EVERY = 0.5
_BEAT = 0.1
"""Seconds between signs of life. What changed after the last one of a killed record is kept."""

_SHARE = 10
"""A look takes at most this part of the time."""

_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
_LEFT_TO_THE_COMMAND = (signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a command went: its exit code as a shell reports it, and the points recorded."""

    exit_code: int
    points: int


def record(
    session: Session, command: Sequence[str], cwd: str, *, stdout: int | None = None
) -> Recorded:
    """Run a command in `cwd`, and record what it changes below the session's root.

    It prints where we do, unless another descriptor is given as its `stdout`. `NotFound`, with
    the system's error as its cause, if the command cannot be run.
    """
    session.checkpoint("before")
    session.append({"role": "user", "content": shlex.join(command)})
    span = _Span(session, command)
    # Before the command begins: what it does at once is a change, too.
    look = _Look(os.fsencode(session.info().root or cwd))
    code: int | None = None
    try:
        with _passing_signals() as attach:
            child = subprocess.Popen(command, cwd=cwd, stdout=stdout)
            code = 1
            attach(child)
            code = _watched(child, look, span)
    except OSError as error:
        if code is not None:
            raise
        no_program = "it is no program, and has no first line such as `#!/bin/sh`"
        why = no_program if error.errno == errno.ENOEXEC else error.strerror
        raise NotFound(f"cannot run `{command[0]}`: {why}") from error
    finally:
        span.close("not started" if code is None else {"exit": code})
    session.checkpoint("after")
    session.end(f"exit {code}")
    return Recorded(code, span.points + 2)


class _Span:
    """The command as one call, which records now and then what it did so far."""

    def __init__(self, session: Session, command: Sequence[str]) -> None:
        self.points = 0
        self._session = session
        self._open = session.tool("record", {"command": list(command)})
        self._call = self._open.__enter__()

    def mark_point(self) -> None:
        """A point here: what came before is one action, what follows another.

        No point, where only what is not captured has changed.
        """
        head = self._session.info().head
        # Another call begins: then what this one did before is recorded, without a gap.
        with self._session.tool("record") as mark:
            mark.only_files = True
        if self._session.info().head != head:
            self._session.checkpoint()
            self.points += 1

    def beat(self) -> None:
        """The command is at work."""
        self._session.parts.capture.recorder.beat()

    def close(self, result: object) -> None:
        """The command is over."""
        self._call.result = result
        self._open.__exit__(None, None, None)


class _Look:
    """Notices when files have changed and then come to rest."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._noted = self._seen = fingerprint(root)
        self._since = time.monotonic()

    def is_at_rest(self) -> bool:
        """Whether there is something new, and it has been there for a while."""
        began = time.monotonic()
        now = fingerprint(self._root)
        if now != self._seen:
            self._seen, self._since = now, began
        elif self._seen != self._noted and began - self._since >= QUIET:
            self._noted = self._seen
            return True
        return False


def _watched(child: subprocess.Popen[bytes], look: _Look, span: _Span) -> int:
    """Wait for a command, and mark a point when its files have come to rest."""
    due = time.monotonic() + _EVERY
    while True:
        try:
            code = child.wait(_BEAT)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            span.beat()
        began = time.monotonic()
        if began < due:
            continue
        rests = look.is_at_rest()
        now = time.monotonic()
        due = now + max(_EVERY, _SHARE * (now - began))
        if rests:
            span.mark_point()


@contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Signals are the command's: what ends it ends us, after what it did is recorded.

    They are caught before there is a command; what comes too early is passed on when it is
    attached. None is set to be ignored, because a command would inherit that.
    """
    attached: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, frame: object) -> None:
        for child in attached:
            child.send_signal(number)
        if not attached:
            early.append(number)

    def leave(number: int, frame: object) -> None:
        """The terminal sends it to both of us; the command decides."""

    def attach(child: subprocess.Popen[bytes]) -> None:
        attached.append(child)
        for number in early:
            child.send_signal(number)

    handlers = dict.fromkeys(_FORWARDED, forward) | dict.fromkeys(_LEFT_TO_THE_COMMAND, leave)
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        # What is ignored, as with `nohup`, is ignored by the command, too.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield attach
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def fingerprint(root: bytes) -> int:
    """A number that is another when a name, size, time or mode below `root` is."""
    found = 0
    for entry, is_folder in entries_below(root):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            # A directory's time shows only changes of names, which are looked at themselves.
            more = () if is_folder else (status.st_size, status.st_mtime_ns)
            # A sum, so that the order of names does not matter.
            found += hash((entry.path, status.st_mode, status.st_ino, *more))
    return found
