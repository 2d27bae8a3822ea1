"""Following a log in PostgreSQL: news wake the reader, and it looks by itself from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...events import Event
from .news import Listener

if TYPE_CHECKING:
    from ..base import Store

_SAFETY = 1.0
_SLOWEST = 1.0


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
