"""A buffer in front of any store: the level `queued`, which dies with the process.

`append` checks, encodes and enqueues, and returns events whose `seq` is 0. The thread of a
`Queue` writes all that waits, together. Every other call is a barrier: it first has what is
queued written, so one reads what one wrote. A full buffer waits. Normal exit, `close` and
SIGTERM drain it.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
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
    make_event,
)
from ..events.messages import Page
from .base import KnownIds, Store
from .batches import Call, Draft, Outcome, drafts
from .disk import forks
from .opening import open_store
from .queue import Job, Queue
from .wrapper import Wrapper

OnError = Literal["raise", "record"] | Callable[[Exception], None]
"""What happens to an error that no caller waits for."""


_Place = tuple[str, str]
_Waiting = tuple[_Place, list[Draft]]
"""One append, waiting to be written: session and log, and what goes there."""

_AGAIN = 0.1
"""Seconds after which a full buffer is tried again whose store fails."""


def _mergeable(batch: list[Draft]) -> bool:
    """Whether a batch holds no ids that may be known."""
    return not any(draft.given for draft in batch)


def _runs(waiting: list[_Waiting]) -> list[list[int]]:
    """Of each log the first calls that may become one batch, as positions."""
    runs: dict[_Place, list[int]] = {}
    ended: set[_Place] = set()
    for at, (place, batch) in enumerate(waiting):
        run = runs.setdefault(place, [])
        if run and not (_mergeable(batch) and _mergeable(waiting[run[-1]][1])):
            ended.add(place)
        if place not in ended:
            run.append(at)
    return list(runs.values())


def _call(waiting: list[_Waiting], run: list[int]) -> Call:
    session_id, log = waiting[run[0]][0]
    batch = [draft for at in run for draft in waiting[at][1]]
    return Call(session_id, batch, log, fixed=True)


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
        sigterm: bool = True,
    ) -> None:
        self._inner = inner = store if isinstance(store, Store) else open_store(store)
        self._describe(inner)
        self._most = pending
        self._on_error = on_error
        self._owns = owns or inner is not store
        self._closed = False
        self.counters = {"queued": 0, "written": 0, "failed": 0, "dropped": 0}
        # Its items say whether a caller waits for the outcome.
        self._writer: Queue[bool, None] = Queue(self._write, "backtrail-buffer", interval)
        self.after_fork()
        forks.register(self)
        _live.add(self)
        _hook_exit(sigterm=sigterm)

    def after_fork(self) -> None:
        """Drop the copy of what waits: the parent writes it."""
        self._waiting: deque[_Waiting] = deque()
        self._checked: set[_Place] = set()
        self._error: Exception | None = None
        self._trouble: BaseException | None = None
        self._awake = False

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
        known: KnownIds = "follow",
    ) -> list[Event]:
        if expected is not None or known != "follow":
            return self.inner.append(session_id, events, log=log, expected=expected, known=known)
        if self._closed:
            raise Closed("this buffered store is closed")
        place = session_id, log
        batch = drafts(events)
        if type(session_id) is not str or type(log) is not str or place not in self._checked:
            self._checked.add((check_session_id(session_id), check_log(log)))
        if self._error is not None:
            self._raise()
        if batch:
            if len(self._waiting) >= self._most:
                self._make_room()
            self._waiting.append((place, batch))
            self.counters["queued"] += 1
            if not self._awake:
                self._rouse()
        return [make_event(0, d.id, d.ts, d.kind, d.data, d.follows) for d in batch]

    def pages(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Page]:
        return self.inner.pages(session_id, until=until, log=log)

    def _rouse(self) -> None:
        self._awake = True
        try:
            self._writer.put(Job(False))
        except BaseException:
            # Interrupted: the next append does it again.
            self._awake = False
            raise

    def _make_room(self) -> None:
        """Have what is queued written; where that fails, wait until it does not."""
        while len(self._waiting) >= self._most and not self._closed:
            try:
                self._drain()
            except StoreFailed as error:
                self._failed(error)
                self._raise()
                time.sleep(_AGAIN)
            if self._writer.is_mine:
                # A listener that hears of an error may append; there is no writer to wait for.
                return

    def drain(self) -> None:
        """Return when everything queued is written; raises what went wrong meanwhile."""
        self._raise()
        self._drain()
        self._raise()

    def _drain(self) -> None:
        if self._waiting and not self._writer.is_mine:
            self._writer.do(True)

    def _write(self, awaited: Sequence[bool]) -> Sequence[BaseException | None]:
        """Write all that waits; only the thread of the queue comes here."""
        # Before the first look: what comes later rouses us again.
        self._awake = False
        trouble = self._trouble = None
        while self._waiting and trouble is None:
            trouble = self._write_some()
        if isinstance(trouble, Exception) and not any(awaited):
            self._failed(trouble)
        return [trouble] * len(awaited)

    def _write_some(self) -> BaseException | None:
        """Write what comes first of each log; what may succeed later stays where it was."""
        waiting = list(self._waiting)
        runs = _runs(waiting)
        outcomes = self._inner.append_each([_call(waiting, run) for run in runs])
        for run, outcome in zip(runs, outcomes, strict=True):
            over = self._over(waiting, run, outcome)
            for at in run[over:]:
                place, batch = waiting[at]
                # What was made up once keeps its id, so a second try is safe.
                waiting[at] = place, [draft._replace(given=True) for draft in batch]
            del run[over:]
        done = {at for run in runs for at in run}
        for _ in waiting:
            self._waiting.popleft()
        self._waiting.extendleft(
            one for at, one in reversed(list(enumerate(waiting))) if at not in done
        )
        return self._trouble

    def _over(self, waiting: list[_Waiting], run: list[int], outcome: Outcome) -> int:
        """How many of a run, from its first on, are written or dropped."""
        if not isinstance(outcome, BaseException):
            self.counters["written"] += len(run)
            return len(run)
        if isinstance(outcome, StoreFailed) or not isinstance(outcome, BacktrailError):
            self.counters["failed"] += 1
            self._trouble = outcome
            return 0
        if len(run) == 1:
            self.counters["dropped"] += 1
            self._failed(outcome)
            return 1
        for number, at in enumerate(run):
            [outcome] = self._inner.append_each([_call(waiting, [at])])
            if not self._over(waiting, [at], outcome):
                return number
        return len(run)

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
            _live.discard(self)
            if self._owns:
                self._inner.close()


# --- the end of the process --------------------------------------------------------------

_live: WeakSet[Buffered] = WeakSet()
_hooked = False
_terminated = False


def _hook_exit(*, sigterm: bool) -> None:
    """Drain at exit, and turn SIGTERM into one, unless the process handles it already."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)
    if (
        sigterm
        and threading.current_thread() is threading.main_thread()
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
            buffer._drain()
        except BacktrailError as error:
            buffer._failed(error)
    if _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
