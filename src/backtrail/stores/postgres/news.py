"""What goes on behind a PostgreSQL store: news of appends, waiting for them, words for the search.

Sending the news in the append itself would make appends queue for a lock of the whole server. So a
thread with a connection of its own sends, every 10 ms at most, the numbers of the logs that were
written to. Another one listens, once a caller follows. News only wake: readers read by number, and
look by themselves where no news come through, as behind a pooler. The first thread also brings the
search up to date while nothing is appended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psycopg

from ...events import Event
from ...telemetry import logger
from ..disk import forks
from .link import Link

if TYPE_CHECKING:
    from ..base import Store

PAUSE = 0.01
"""Seconds in which news are gathered."""

_QUIET = 1.0
_ENDS = 5.0
_MOST = 400
_PROBE = "backtrail-probe"
_SAFETY = 1.0
_SLOWEST = 1.0


class News:
    """Sends news of what this store appends."""

    def __init__(self, link: Link, idle: Callable[[set[int]], None]) -> None:
        self._link = link
        self._idle = idle
        self._closed = False
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """The parent sends its own."""
        self._logs: set[int] = set()
        self._unread: set[int] = set()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._at = 0.0

    def wrote(self, log: int) -> None:
        """A log was written to."""
        self._at = time.monotonic()
        self._logs.add(log)
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None and not self._closed:
            with self._guard:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="backtrail-news", daemon=True
                    )
                    self._thread.start()

    def _run(self) -> None:
        connection: psycopg.Connection[tuple[object, ...]] | None = None
        me = threading.current_thread()
        try:
            while not self._closed and self._thread is me:
                if not self._wake.wait(_QUIET):
                    if self._unread:
                        unread, self._unread = self._unread, set()
                        self._idle(unread)
                    elif time.monotonic() - self._at > _ENDS:
                        break
                    continue
                self._wake.clear()
                logs, self._logs = self._logs, set()
                self._unread |= logs
                try:
                    if connection is None or connection.closed:
                        connection = self._link.open()
                    self._send(connection, sorted(logs))
                except psycopg.Error:
                    # Followers look by themselves as well.
                    if connection is not None:
                        connection.close()
                    connection = None
                    time.sleep(0.2)
                time.sleep(PAUSE)
        except Exception:
            if not self._closed:
                logger().exception("background work on %s failed", self._link.address.place)
        finally:
            with self._guard:
                if self._thread is me:
                    self._thread = None
            if connection is not None:
                connection.close()

    def _send(self, connection: psycopg.Connection[tuple[object, ...]], logs: list[int]) -> None:
        channel = channel_of(self._link)
        for at in range(0, len(logs), _MOST):
            text = " ".join(map(str, logs[at : at + _MOST]))
            connection.execute("SELECT pg_notify(%s, %s)", (channel, text))

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2)


def channel_of(link: Link) -> str:
    """The channel that the news of a store go through."""
    return f"backtrail-{link.address.schema}"


class Listener:
    """Waits for news, while there are followers."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._closed = False
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """A child listens by itself."""
        self._changed = threading.Condition()
        self._news: dict[int, int] = {}
        self._followers = 0
        self._thread: threading.Thread | None = None
        self.hears = False
        """Whether news come through."""

    def join(self) -> None:
        """A follower begins."""
        with self._changed:
            self._followers += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="backtrail-listener", daemon=True
                )
                self._thread.start()

    def leave(self) -> None:
        """A follower ends."""
        with self._changed:
            self._followers = max(0, self._followers - 1)

    def count(self, log: int) -> int:
        """How often there were news of a log."""
        return self._news.get(log, 0)

    def wait(self, log: int, since: int, seconds: float) -> bool:
        """Wait for news of a log behind those counted; whether some came."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._news.get(log, 0) != since or self._closed, seconds
            )

    def _run(self) -> None:
        me = threading.current_thread()
        while not self._closed and self._thread is me and self._followers:
            try:
                self._listen()
            except psycopg.Error:
                pass
            self.hears = False
            time.sleep(0.5)
        with self._changed:
            if self._thread is me:
                self._thread = None

    def _listen(self) -> None:
        """Listen on one connection, until it breaks or the last follower has gone."""
        connection = self._link.open(self._link.address.listen)
        try:
            channel = channel_of(self._link)
            connection.execute(f'LISTEN "{channel}"'.encode())
            # Behind a pooler this says nothing, and nothing ever comes.
            connection.execute("SELECT pg_notify(%s, %s)", (channel, _PROBE))
            last = time.monotonic()
            while not self._closed:
                for notice in connection.notifies(timeout=0.5, stop_after=1):
                    self._heard(notice.payload)
                if self._followers:
                    last = time.monotonic()
                elif time.monotonic() - last > _ENDS:
                    return
        finally:
            connection.close()

    def _heard(self, text: str) -> None:
        self.hears = True
        with self._changed:
            for word in text.split():
                if word.isdecimal():
                    log = int(word)
                    self._news[log] = self._news.get(log, 0) + 1
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, and wake all that wait."""
        self._closed = True
        with self._changed:
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2)


def follow(
    store: Store,
    listener: Listener,
    place: tuple[str, str, int | None],
    after: int,
    poll: float,
    stop: Callable[[], bool] | None,
) -> Iterator[Event]:
    """The events of a log behind `after`, as they come; `place` is session, log and its number.

    Where no news come through, looks are `poll` seconds apart, and up to a second while nothing
    happens.
    """
    session_id, name, log = place
    listener.join()
    try:
        pause, known = poll, -1
        while True:
            known = 0 if log is None else listener.count(log)
            found = False
            for event in store.read(session_id, log=name, after=after):
                after, found = event.seq, True
                yield event
            if stop is not None and stop():
                return
            if log is None or not listener.hears:
                # A log that nothing was written to has no number yet.
                pause = poll if found or log is None else min(pause * 1.2, _SLOWEST)
                time.sleep(pause)
                continue
            until = time.monotonic() + _SAFETY
            while not listener.wait(log, known, poll):
                if stop is not None and stop():
                    return
                if time.monotonic() > until:
                    break
    finally:
        listener.leave()
