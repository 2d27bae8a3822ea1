"""Listeners of a live session: every event, and deltas as far as they keep up.

Each subscription has a bounded queue. When it is full, deltas are lost, since they only
animate a screen; events are not: what was missed is read again from the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from .._startup.frozen import dataclass, field
from ..events import AsDict, Event, Json
from ..stores.disk import forks


@dataclass(frozen=True, slots=True)
class Delta(AsDict):
    """A piece of something under way, such as a few words of an answer; never stored."""

    type: str
    data: dict[str, Json] = field(default_factory=dict)


class Subscription:
    """An iterator over what happens in a session from now on, until `close`.

    With `after` it begins with what the log has behind that `seq`.
    """

    def __init__(
        self,
        missed: Callable[[int], Iterator[Event]],
        ended: Callable[[Subscription], None],
        size: int = 256,
        after: int | None = None,
    ) -> None:
        self._missed = missed
        self._ended = ended
        self._after = after
        self._size = size
        self._queue: deque[Event | Delta] = deque()
        self._behind = after is not None
        self._ready = threading.Condition()
        self._closed = False
        self.lost_deltas = 0
        forks.register(self)

    def after_fork(self) -> None:
        """Read again what a thread of the parent may have been about to take."""
        self._ready = threading.Condition()
        self._queue = deque()
        self._behind = self._after is not None

    def begin(self, after: int) -> None:
        """What came up to this `seq` is not news; said before anything is put that may be."""
        self._after = after

    @property
    def after(self) -> int | None:
        """The last event that was given, or was there before; None while that is not known."""
        return self._after

    def put(self, item: Event | Delta) -> None:
        """Hand over an event or delta; never waits."""
        with self._ready:
            if isinstance(item, Event):
                # A buffered event has no number yet: reading it from the log gives it one.
                if self._behind or item.seq == 0 or len(self._queue) >= self._size:
                    self._behind = True
                else:
                    self._queue.append(item)
            elif len(self._queue) >= self._size:
                self.lost_deltas += 1
            else:
                self._queue.append(item)
            self._ready.notify()

    def get(self, timeout: float | None = None) -> Event | Delta | None:
        """The next event or delta; None after `timeout` seconds or when closed."""
        with self._ready:
            self._ready.wait_for(
                lambda: self._queue or self._behind or self._closed, timeout=timeout
            )
            self.fill()
            return self.take()

    def take(self) -> Event | Delta | None:
        """What is queued next, without waiting and without looking into the log."""
        with self._ready:
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, Event):
                    if self._after is not None and item.seq <= self._after:
                        continue
                    self._after = item.seq
                return item
            return None

    @property
    def behind(self) -> bool:
        """Whether events wait in the log because they did not fit into the queue."""
        return self._behind

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    def fill(self) -> None:
        """Read what did not fit from the log, a queue's length at a time."""
        with self._ready:
            if self._queue or not self._behind:
                return
            for count, event in enumerate(self._missed(self._after or 0), 1):
                self._queue.append(event)
                if count == self._size:
                    return
            self._behind = False

    def __iter__(self) -> Iterator[Event | Delta]:
        while True:
            item = self.get()
            if item is not None:
                yield item
            elif self._closed:
                return

    def close(self) -> None:
        """End the subscription; what is queued can still be taken."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        self._ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
