"""Stores broken on purpose. Each fault test is run on those it must catch.

Every variant is a context that patches the library in this process; a forked child inside
it is broken as well.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from backtrail.errors import StoreFailed
from backtrail.events import MAIN_LOG, Event, NewEvent
from backtrail.stores import KnownIds
from backtrail.stores.disk import sync as syncing
from backtrail.stores.jsonl import JSONLStore, lines, reading, writing
from backtrail.stores.jsonl.lines import Damage, Decoder, Line, OnLineDamage, lines_in
from backtrail.stores.jsonl.writing import LogWriter

Broken = Callable[[], AbstractContextManager[object]]

sound: Broken = nullcontext
"""No variant at all."""


@contextmanager
def acknowledging_first() -> Iterator[None]:
    """A forked child acknowledges events when handed over, and writes them with the next."""
    real = JSONLStore.append
    parent = os.getpid()
    waiting: list[tuple[str, Sequence[NewEvent], str]] = []

    def append(
        self: JSONLStore,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        if os.getpid() == parent:
            return real(self, session_id, events, log=log, expected=expected, known=known)
        while waiting:
            session, batch, name = waiting.pop()
            real(self, session, batch, log=name)
        waiting.append((session_id, events, log))
        return []

    with patch.object(JSONLStore, "append", append):
        yield


@contextmanager
def swallowing_errors() -> Iterator[None]:
    """An append that fails is acknowledged like any other."""
    real = JSONLStore.append

    def append(
        self: JSONLStore,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        try:
            return real(self, session_id, events, log=log, expected=expected, known=known)
        except StoreFailed:
            return []

    with patch.object(JSONLStore, "append", append):
        yield


@contextmanager
def not_sealing() -> Iterator[None]:
    """A torn tail is left as it is, and the next event is glued to it."""

    class Quiet:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, fd: int, data: bytes) -> int:
            return 1 if data == b"\n" else os.write(fd, data)

    with patch.object(writing, "os", Quiet()):
        yield


@contextmanager
def reusing_numbers() -> Iterator[None]:
    """A torn line's number is given to the next event."""
    real = LogWriter._learn

    def learn(self: LogWriter, data: bytes, offset: int) -> None:
        real(self, data, offset)
        self.last = self.head

    with patch.object(LogWriter, "_learn", learn):
        yield


class _BadLine(Exception):
    pass


@contextmanager
def stopping_at_bad_line() -> Iterator[None]:
    """A reader that takes the first bad line for the end of the log."""

    def stopping(
        data: bytes, offset: int, decode: Decoder, damage: OnLineDamage | None
    ) -> Iterator[Line]:
        def stop(found: Damage) -> None:
            raise _BadLine

        try:
            yield from lines_in(data, offset, decode, stop)
        except _BadLine:
            return

    with patch.object(reading, "lines_in", stopping):
        yield


@contextmanager
def not_dropping_torn_batches() -> Iterator[None]:
    """Half a batch counts like a whole one."""

    def plain(
        data: bytes, offset: int, decode: Decoder, damage: OnLineDamage | None
    ) -> Iterator[Line]:
        for line in lines_in(data, offset, decode, damage):
            yield line._replace(place=1, size=1)

    with patch.object(reading, "lines_in", plain):
        yield


@contextmanager
def not_locking() -> Iterator[None]:
    """No lock between processes, and writes go to where the end was last seen."""

    class Loose:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, fd: int, data: bytes) -> int:
            os.lseek(fd, 0, os.SEEK_END)
            return os.write(fd, data)

        def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
            return os.open(path, flags & ~os.O_APPEND, mode)

    with ExitStack() as stack:
        stack.enter_context(patch.object(fcntl, "flock", lambda fd, what: None))
        stack.enter_context(patch.object(writing, "os", Loose()))
        yield


@contextmanager
def not_syncing() -> Iterator[None]:
    """`synced` that does not sync."""
    with patch.object(syncing, "data_sync", lambda fd: None):
        yield


@contextmanager
def retrying_syncs() -> Iterator[None]:
    """A failed sync is tried again, and the second try believed."""
    real = syncing.data_sync

    def sync(fd: int) -> None:
        try:
            real(fd)
        except OSError:
            real(fd)

    with patch.object(syncing, "data_sync", sync):
        yield


@contextmanager
def keeping_short_writes() -> Iterator[None]:
    """What a failed write left in the file stays there, and is not known to be there."""

    def keep(self: LogWriter) -> None:
        self._size = os.fstat(self.fd).st_size

    with patch.object(LogWriter, "_take_back", keep):
        yield


@contextmanager
def not_checking_sums() -> Iterator[None]:
    """Lines are believed if they decode."""

    with patch.object(lines, "is_sound", lambda text, end: end >= 0):
        yield


@contextmanager
def believing_forged_lines() -> Iterator[None]:
    """A line whose check sum is right is an event, whatever it says."""
    with patch.object(lines, "_is_possible", lambda line: True):
        yield
