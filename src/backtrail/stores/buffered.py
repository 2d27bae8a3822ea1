"""A buffer in front of any store: the level `queued`, which dies with the process.

`append` checks, encodes and enqueues, and returns events whose `seq` is 0. One background
thread writes batches. Every other call is a barrier: it first writes what is queued, so
one reads what one wrote. A full buffer waits. Normal exit, `close` and SIGTERM drain it.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Literal
from weakref import WeakSet

from ..errors import BacktrailError, Closed, StoreFailed
from ..events import (
    MAIN_LOG,
    Event,
    NewEvent,
    check_log,
    check_session_id,
    encode_data,
    make_event,
    mint,
)
from ..messages import Page
from . import forking
from .base import Store
from .batches import Draft, Prepared, drafts, is_usual
from .opening import open_store
from .wrapper import Wrapper

OnError = Literal["raise", "record"] | Callable[[Exception], None]
"""What happens to an error that nobody waits for."""


_What = list[Draft] | tuple[Event, bytes]
_Call = tuple[tuple[str, str], _What]
"""One append, waiting to be written: session and log, and what goes there."""


def _drafts(what: _What) -> list[Draft]:
    if isinstance(what, list):
        return what
    event, body = what
    return [Draft(event.id, False, event.ts, event.kind, None, event.data, body)]


def _mergeable(what: _What) -> bool:
    """Whether a batch holds no ids that may be known."""
    return not isinstance(what, list) or not any(draft.given for draft in what)


class Buffered(Wrapper):
    """Writes behind the caller's back, in batches, at most `interval` seconds later.

    At most `pending` appends wait. An append that fails for good (the session is gone) is
    dropped, one that may succeed later (the disk is full) stays queued and is tried again.
    Both are counted in `counters` and go to `on_error`: "raise" raises at the next call,
    "record" only counts, a callable is called.
    """

    def __init__(
        self,
        store: Store | str,
        interval: float = 0.25,
        pending: int = 256,
        *,
        on_error: OnError = "raise",
        owns: bool = True,
    ) -> None:
        self._inner = inner = store if isinstance(store, Store) else open_store(store)
        self._describe(inner)
        self._interval = interval
        self._most = pending
        self._on_error = on_error
        self._owns = owns or inner is not store
        self._closed = False
        self.counters = {"queued": 0, "written": 0, "failed": 0, "dropped": 0}
        self._reset()
        forking.register(self)
        _live.add(self)
        _hook_exit()

    def _reset(self) -> None:
        self._queue: deque[_Call] = deque()
        self._checked: set[tuple[str, str]] = set()
        self._error: Exception | None = None
        self._writing = threading.RLock()
        self._room = threading.Condition(threading.Lock())
        self._wake = threading.Event()
        self._awake = False
        self._full = threading.Event()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """Drop the copy of the queue: the parent writes it."""
        self._reset()

    @property
    def inner(self) -> Store:  # type: ignore[override]
        """The store behind. Asking for it writes what is queued: every call is a barrier."""
        if self._closed:
            raise Closed("this buffered store is closed")
        self.drain()
        return self._inner

    @property
    def wrapped(self) -> Store:
        return self._inner

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
    ) -> list[Event]:
        if expected is not None:
            return self.inner.append(session_id, events, log=log, expected=expected)
        if self._closed:
            raise Closed("this buffered store is closed")
        what: _What
        place = session_id, log
        named = type(session_id) is str and type(log) is str
        if len(events) == 1 and is_usual(events[0]):
            # What nearly every append is: the steps of the other branch in one piece.
            new = events[0]
            data = new.data
            body = encode_data(data)
            id, ts = mint()
            event = make_event(0, id, ts, new.kind, data, None)
            what, result = (event, body), [event]
        else:
            what = batch = drafts(events)
            result = [make_event(0, d.id, d.ts, d.kind, d.data, d.follows) for d in batch]
        if not named or place not in self._checked:
            self._checked.add((check_session_id(session_id), check_log(log)))
        if self._error is not None:
            self._raise()
        if result:
            if len(self._queue) >= self._most:
                self._make_room()
            self._queue.append((place, what))
            self.counters["queued"] += 1
            if not self._awake:
                self._start()
        return result

    def pages(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Page]:
        return self.inner.pages(session_id, until=until, log=log)

    def _start(self) -> None:
        self._awake = True
        with self._room:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="backtrail-buffer", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def _make_room(self) -> None:
        """Write what is queued here and now; wait only where that fails."""
        try:
            self._write()
        except StoreFailed as error:
            self._failed(error)
        with self._room:
            while len(self._queue) >= self._most and self._error is None and not self._closed:
                self._full.set()
                self._room.wait(timeout=1)
        if self._error is not None:
            self._raise()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._full.wait(self._interval)
            self._full.clear()
            self._wake.clear()
            # After `clear`: who came in between is written now, who comes later wakes us again.
            self._awake = False
            try:
                self._write()
            except BacktrailError as error:
                self._failed(error)

    def drain(self) -> None:
        """Write everything queued, on this thread."""
        if self._error is not None:
            self._raise()
        if self._queue or self._writing_elsewhere():
            self._write()
            self._raise()

    def _writing_elsewhere(self) -> bool:
        if self._writing.acquire(blocking=False):
            self._writing.release()
            return False
        return True

    def _write(self) -> None:
        with self._writing:
            while self._queue:
                calls = self._next_group()
                self._write_group(calls)
                for _ in calls:
                    self._queue.popleft()
                self.counters["written"] += len(calls)
                with self._room:
                    self._room.notify_all()

    def _next_group(self) -> list[_Call]:
        """The first calls that may become one batch: same log, no ids that may be known."""
        group: list[_Call] = []
        for call in list(self._queue):
            if group and (
                call[0] != group[0][0] or not _mergeable(call[1]) or not _mergeable(group[-1][1])
            ):
                break
            group.append(call)
        return group

    def _write_group(self, calls: list[_Call]) -> None:
        session_id, log = calls[0][0]
        events = [Prepared(draft) for _, what in calls for draft in _drafts(what)]
        try:
            self._inner.append(session_id, events, log=log)
        except StoreFailed:
            # May work later. What was made up once keeps its id, so a second try is safe.
            self.counters["failed"] += 1
            for at, (place, what) in enumerate(calls):
                self._queue[at] = place, [draft._replace(given=True) for draft in _drafts(what)]
            raise
        except BacktrailError as error:
            if len(calls) > 1:
                for call in calls:
                    self._write_group([call])
                return
            self.counters["dropped"] += 1
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if callable(self._on_error):
            self._on_error(error)
        elif self._on_error == "raise":
            self._error = error

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        if self._closed:
            return
        try:
            self.drain()
        finally:
            self._closed = True
            self._wake.set()
            self._full.set()
            _live.discard(self)
            if self._owns:
                self._inner.close()


# --- the end of the process --------------------------------------------------------------

_live: WeakSet[Buffered] = WeakSet()
_hooked = False
_terminated = False


def _hook_exit() -> None:
    """Drain at exit, and turn SIGTERM into one, unless somebody handles it already."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _on_term)


def _on_term(number: int, frame: FrameType | None) -> None:
    # Leaving through SystemExit lets a write under way finish; draining from here might
    # wait for a lock that the interrupted code holds.
    global _terminated
    _terminated = True
    raise SystemExit(128 + number)


def _at_exit() -> None:
    for buffer in list(_live):
        try:
            buffer._write()
        except BacktrailError as error:
            buffer._failed(error)
    if _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
