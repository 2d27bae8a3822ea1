"""Listeners of a live session: every event, and deltas as far as they keep up.

Each subscription has a bounded queue. When it is full, deltas are lost, since they only
animate a screen; events are not: what was missed is read again from the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
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
        self.after = after
        """The last event that was given, or was there before; None while that is not known."""
        self.behind = after is not None
        """Whether events wait in the log because they did not fit into the queue."""
        self.closed = False
        """Whether nothing more will come."""
        self.lost_deltas = 0
        self._size = size
        self._queue: deque[Event | Delta] = deque()
        self._ready = threading.Condition()
        forks.register(self)

    def after_fork(self) -> None:
        """Read again what a thread of the parent may have been about to take."""
        self._ready = threading.Condition()
        self._queue = deque()
        self.behind = self.after is not None

    def put(self, item: Event | Delta) -> None:
        """Hand over an event or delta; never waits."""
        with self._ready:
            if isinstance(item, Event):
                # A buffered event has no number yet: reading it from the log gives it one.
                if self.behind or item.seq == 0 or len(self._queue) >= self._size:
                    self.behind = True
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
            self._ready.wait_for(lambda: self._queue or self.behind or self.closed, timeout=timeout)
            self.fill()
            return self.take()

    def take(self) -> Event | Delta | None:
        """What is queued next, without waiting and without looking into the log."""
        with self._ready:
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, Event):
                    if self.after is not None and item.seq <= self.after:
                        continue
                    self.after = item.seq
                return item
            return None

    def fill(self) -> None:
        """Read what did not fit from the log, a queue's length at a time."""
        with self._ready:
            if self._queue or not self.behind:
                return
            for count, event in enumerate(self._missed(self.after or 0), 1):
                self._queue.append(event)
                if count == self._size:
                    return
            self.behind = False

    def __iter__(self) -> Iterator[Event | Delta]:
        while True:
            item = self.get()
            if item is not None:
                yield item
            elif self.closed:
                return

    def close(self) -> None:
        """End the subscription; what is queued can still be taken."""
        with self._ready:
            self.closed = True
            self._ready.notify_all()
        self._ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listeners:
    """The subscriptions to one session object."""

    def __init__(self, missed: Callable[[int], Iterator[Event]]) -> None:
        self._missed = missed
        self._lock = threading.Lock()
        self.all: list[Subscription] = []
        self.unbegun: list[Subscription] = []
        """Those for which it is not known yet which events are news."""

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def add(self, size: int, after: int | None = None) -> Subscription:
        """A new subscription. The store is not asked: without `after`, `begin` follows."""
        new = Subscription(self._missed, self._ended, size, after)
        with self._lock:
            self.all = [*self.all, new]
            if after is None:
                self.unbegun = [*self.unbegun, new]
        return new

    def _ended(self, subscription: Subscription) -> None:
        with self._lock:
            self.all = [s for s in self.all if s is not subscription]

    def begin(self, new: list[Subscription], after: int) -> None:
        """Set the starting `seq` of new subscriptions, before anything is published to them."""
        for subscription in new:
            subscription.after = after
        with self._lock:
            self.unbegun = [s for s in self.unbegun if s not in new]

    def put(self, item: Event | Delta) -> None:
        """Hand an event or a delta to each."""
        for subscription in self.all:
            subscription.put(item)

    def close(self) -> None:
        """End every subscription."""
        for subscription in self.all:
            subscription.close()
