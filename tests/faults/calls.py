"""Calls to the operating system that can be counted, and made to fail at a chosen one.

`Calls` replaces functions of the `os` module. The call with the chosen number is handed to
a strike, which kills the process, raises, or cuts a write short. Only the thread that put
the shim in place is counted, so that a run can be repeated.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

NAMES = (
    "open",
    "write",
    "pwrite",
    "copy_file_range",
    "fsync",
    "fdatasync",
    "ftruncate",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "close",
)
"""The calls that change files, and those that make a change possible or lasting."""

WRITES = ("write", "pwrite")

READS = ("pread",)
"""Calls that change nothing, and may be refused as well."""

Function = Callable[..., Any]
Strike = Callable[[str, Function, tuple[Any, ...], dict[str, Any]], Any]

REAL: dict[str, Function] = {
    name: getattr(os, name) for name in (*NAMES, *READS) if hasattr(os, name)
}
"""The functions as they were, for what must not be counted."""


class Calls:
    """A context in which calls are counted, and the `point`-th is struck.

    With `lasting`, every later call of the same kind is struck as well. `names` restricts
    what is counted.
    """

    def __init__(
        self,
        strike: Strike | None = None,
        point: int = 0,
        *,
        names: tuple[str, ...] = NAMES,
        lasting: bool = False,
    ) -> None:
        self.count = 0
        self.struck: list[str] = []
        self._strike = strike
        self._point = point
        self._names = [name for name in names if name in REAL]
        self._lasting = lasting
        self._thread = threading.get_ident()

    def __enter__(self) -> Calls:
        for name in self._names:
            setattr(os, name, self._counting(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            setattr(os, name, REAL[name])

    def _counting(self, name: str) -> Function:
        real = REAL[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return real(*args, **kwargs)
            self.count += 1
            later = self._lasting and name in self.struck
            if self._strike is not None and (self.count == self._point or later):
                self.struck.append(name)
                return self._strike(name, real, args, kwargs)
            return real(*args, **kwargs)

        return call


# --- strikes -----------------------------------------------------------------------------


def killing(dice: random.Random) -> Strike:
    """Kill the process with SIGKILL; a write first gets some of its bytes through."""

    def strike(name: str, real: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in WRITES:
            data = bytes(args[1])
            real(args[0], data[: _cut(data, dice)], *args[2:])
        elif name == "copy_file_range":
            count = dice.randint(0, args[2])
            if count:
                real(args[0], args[1], count, *args[3:], **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    return strike


def _cut(data: bytes, dice: random.Random) -> int:
    """Where to cut a write: anywhere, and often beside the end of a line."""
    ends = [at + shift for at, byte in enumerate(data) if byte == 10 for shift in (0, 1)]
    if ends and dice.random() < 0.3:
        return dice.choice(ends)
    return dice.randint(0, len(data))


def refusing(code: int) -> Strike:
    """Raise an `OSError`. A descriptor to be closed is closed all the same, as by Linux."""

    def strike(name: str, real: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "close":
            real(*args, **kwargs)
        raise OSError(code, os.strerror(code))

    return strike


def filling(code: int, dice: random.Random) -> Strike:
    """A disk that fills up: the struck write is short, every later one is refused."""
    full = False

    def strike(name: str, real: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal full
        if name in WRITES and not full:
            full = True
            data = bytes(args[1])
            count = dice.randint(0, max(0, len(data) - 1))
            if count:
                return real(args[0], data[:count], *args[2:])
        if name == "close":
            real(*args, **kwargs)
        raise OSError(code, os.strerror(code))

    return strike
