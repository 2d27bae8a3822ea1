"""Connections at rest, and how many are open.

Taking and giving back is one operation on a list, which needs no lock: with many threads a lock
would cost as much as everything else that the client does for an append. Only a thread that finds
nothing waits under one.
"""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

T = TypeVar("T")


class Pool(Generic[T]):
    """At most `size` things, each with one thread at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[T] = []
        self._open = 0
        self._waiting = 0
        self._changed = threading.Condition()

    def take(self, wait: float) -> T | None:
        """One at rest; None if the caller may open another. `TimeoutError` if all were in use."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        deadline = time.monotonic() + wait
        with self._changed:
            # Before the next look: what is given back after it comes with a notice.
            self._waiting += 1
            try:
                while True:
                    try:
                        return self._idle.pop()
                    except IndexError:
                        pass
                    if self._open < self._size:
                        self._open += 1
                        return None
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError
                    self._changed.wait(left)
            finally:
                self._waiting -= 1

    def give(self, one: T) -> None:
        """Put one to rest."""
        self._idle.append(one)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def drop(self, count: int = 1) -> None:
        """Count off what was taken, or might have been opened, and is no more."""
        with self._changed:
            self._open -= count
            self._changed.notify(count)

    def drain(self) -> list[T]:
        """Take all that rest, for good."""
        found: list[T] = []
        while True:
            try:
                found.append(self._idle.pop())
            except IndexError:
                break
        if found:
            self.drop(len(found))
        return found
