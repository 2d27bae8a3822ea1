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
from typing import Literal, NamedTuple
from weakref import WeakSet

from ..errors import BacktrailError, Closed, StoreFailed
from ..events import MAIN_LOG, Event, NewEvent, check_log, check_session_id, make_event
from ..messages import Page
from . import forking
from .base import Store
from .batches import Draft, Prepared, drafts
from .wrapper import Wrapper

OnError = Literal["raise", "record"] | Callable[[Exception], None]
"""What happens to an error that nobody waits for."""


_tuple = tuple.__new__


class _Call(NamedTuple):
    """One append, waiting to be written."""

    session_id: str
    log: str
    batch: list[Draft]


class Buffered(Wrapper):
    """Writes behind the caller's back, in batches, at most `interval` seconds later.

    At most `pending` appends wait. An append that fails for good (the session is gone) is
    dropped, one that may succeed later (the disk is full) stays queued and is tried again.
    Both are counted in `counters` and go to `on_error`: "raise" raises at the next call,
    "record" only counts, a callable is called.
    """

    def __init__(
        self,
        store: Store,
        interval: float = 0.25,
        pending: int = 256,
        *,
        on_error: OnError = "raise",
        owns: bool = True,
    ) -> None:
        self._inner = store
        self.url = store.url
        self.scope = store.scope
        self._interval = interval
        self._most = pending
        self._on_error = on_error
        self._owns = owns
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
        batch = drafts(events)
        named = type(session_id) is str and type(log) is str
        if not named or (session_id, log) not in self._checked:
            self._checked.add((check_session_id(session_id), check_log(log)))
        if self._error is not None:
            self._raise()
        if batch:
            queue = self._queue
            if len(queue) >= self._most:
                self._make_room()
            queue.append(_tuple(_Call, (session_id, log, batch)))
            self.counters["queued"] += 1
            if not self._wake.is_set():
                self._start()
        return [make_event(0, d.id, d.ts, d.kind, d.data, d.follows) for d in batch]

    def pages(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Page]:
        return self.inner.pages(session_id, until=until, log=log)

    def _start(self) -> None:
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
                (call.session_id, call.log) != (group[0].session_id, group[0].log)
                or any(draft.given for draft in call.batch)
                or any(draft.given for draft in group[-1].batch)
            ):
                break
            group.append(call)
        return group

    def _write_group(self, calls: list[_Call]) -> None:
        first = calls[0]
        events = [Prepared(draft) for call in calls for draft in call.batch]
        try:
            self._inner.append(first.session_id, events, log=first.log)
        except StoreFailed:
            # May work later. What was made up once keeps its id, so a second try is safe.
            self.counters["failed"] += 1
            for at, call in enumerate(calls):
                given = [draft._replace(given=True) for draft in call.batch]
                self._queue[at] = call._replace(batch=given)
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
