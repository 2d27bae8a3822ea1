"""One way for many writers: what waits is written together, by one thread a store.

A `Queue` hands all that waits to its `write` at once, and each job its own outcome: async
sessions, threads that wait for the disk, and `Buffered` put jobs here. Its thread begins with
the first job and ends when there was none for a while.

Only that thread writes, so Ctrl-C, which comes to the main thread, never meets a writer: it
ends a wait, and no more. Putting a job is one call of C code. There is nothing else to be
left half done, hence no lock that a waiter holds, and no caller has to wake another.

A job that the others would have to wait for is `Postponed`: the writer keeps it, in its order,
and tries again. So it costs neither a thread nor its place.
"""

from __future__ import annotations

import threading
import time
from _queue import Empty, SimpleQueue
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from .disk import forks

Item = TypeVar("Item")
Result = TypeVar("Result")

Notify = Callable[[list[Any]], None]
"""Wakes the waiters: called by the writer, with those jobs of a group that have the same one."""

IDLE = 2.0
"""Seconds without a job after which the thread ends."""

PAUSE = 0.005
"""Seconds until a postponed job is tried again."""


class Postponed(Exception):
    """The outcome of an attempt at a job that all others would have waited for: there is another.

    What must come behind such a job `write` has to postpone, too.
    """


_AT_ONCE = (False,)


class Job(Generic[Item, Result]):
    """What one caller wants written, at most once, and what came of it.

    One without `notify` is in no hurry. `waiter` is what `notify` wakes.
    """

    __slots__ = ("_claim", "_given_up", "item", "notify", "outcome", "waiter")

    def __init__(self, item: Item | None, notify: Notify | None = None, waiter: Any = None) -> None:
        self.item = item
        self.notify = notify
        self.waiter = waiter
        self.outcome: Result | BaseException | None = None
        self._claim = allocate_lock()
        self._given_up: list[bool] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may still be written: it has no outcome, and was not taken back."""
        return self.outcome is None and self._given_up != [True]

    def begin(self) -> bool:
        """Whether the writer is to do it: its waiter has not taken it back."""
        return self._claim.acquire(False)

    def take_back(self) -> bool:
        """Have it not written; False if it is begun, then it has an outcome after this attempt."""
        given_up: list[bool] = []
        self._given_up = given_up
        # One call of C code, so an interrupt leaves no job that is taken and not known to be.
        given_up.extend(map(self._claim.acquire, _AT_ONCE))
        return given_up[0]

    def settle(self, outcome: Result | BaseException | None) -> bool:
        """Note what came of an attempt; False if there is to be another."""
        if type(outcome) is Postponed:
            self._claim.release()
            # In this order: a waiter that came too late for the claim is seen here.
            if self._given_up is None or not self._claim.acquire(False):
                return False
        self.outcome = outcome
        return True

    def result(self) -> Result | None:
        """What was written; raises what went wrong."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class Queue(Generic[Item, Result]):
    """Jobs in order. `write` takes all that wait, and gives an outcome for each, in order.

    Jobs that are in no hurry wait `delay` seconds for others.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Sequence[Result | BaseException]],
        name: str = "backtrail-writer",
        delay: float = 0.0,
    ) -> None:
        self._write = write
        self._name = name
        self._delay = delay
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Leave what waits to the parent, whose thread writes it."""
        self._jobs: SimpleQueue[Job[Item, Result]] = SimpleQueue()
        # Replaced as a whole, since others read it.
        self._held: list[Job[Item, Result]] = []
        self._thread = 0
        self._writer = 0
        self._starting = allocate_lock()
        self._writing = threading.RLock()

    @property
    def is_mine(self) -> bool:
        """Whether this thread writes just now: it would wait for itself."""
        return self._writer == get_ident()

    @property
    def held(self) -> Iterator[Item]:
        """What the writer has taken, and not yet written: it works on it, or it is postponed."""
        return (job.item for job in self._held if job.item is not None)

    def put(self, job: Job[Item, Result]) -> None:
        """Have a job done; its `notify` is called then, in another thread."""
        self._jobs.put(job)
        if not self._thread:
            self._start()

    def do(self, item: Item | None) -> Result | None:
        """Have something written and wait for it; without an item, for all that is queued.

        That is, for all but what is postponed.
        """
        woken = allocate_lock()
        woken.acquire()
        job: Job[Item, Result] = Job(item, _wake, woken)
        if self.is_mine:
            while self._attempt([job]):
                time.sleep(PAUSE)
            return job.result()
        try:
            self.put(job)
            woken.acquire()
        except BaseException:
            # Interrupted: what the writer has not begun is not written.
            job.take_back()
            raise
        return job.result()

    # --- the writer ----------------------------------------------------------------------

    def _start(self) -> None:
        try:
            with self._starting:
                if not self._thread:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            # From Python 3.12 on, none starts while the interpreter shuts down.
            while self._held or not self._jobs.empty():
                self._carry_out(self._waiting(0))

    def _run(self) -> None:
        while True:
            # One at a time, also where a start was interrupted and done again.
            with self._starting:
                if self._thread:
                    return
                self._thread = get_ident()
            try:
                while True:
                    self._carry_out(self._waiting(IDLE))
            except Empty:
                self._thread = 0
            if self._jobs.empty():
                # A caller that puts a job from now on sees that there is no thread.
                return

    def _waiting(self, wait: float) -> list[Job[Item, Result]]:
        """The jobs that wait, once there is one; `Empty` after `wait` seconds.

        None, after a while, if there are some to be tried again.
        """
        try:
            job = self._jobs.get(timeout=PAUSE if self._held else wait)
        except Empty:
            if self._held:
                return []
            raise
        jobs, until = [job], time.monotonic() + self._delay
        hurry = not self._delay
        while True:
            hurry = hurry or job.notify is not None
            pause = 0.0 if hurry else until - time.monotonic()
            if self._jobs.empty() and pause <= 0:
                return jobs
            try:
                job = self._jobs.get(timeout=max(0.0, pause))
            except Empty:
                return jobs
            jobs.append(job)

    def _carry_out(self, jobs: list[Job[Item, Result]]) -> None:
        """Write what was not taken back, and wake the callers that wait for it."""
        with self._writing:
            before, self._writer = self._writer, get_ident()
            try:
                # Before any is begun: a caller that cannot take a job back finds it here.
                self._held = [*self._held, *jobs]
                jobs = [job for job in self._held if job.begin()]
                self._held = self._attempt(jobs)
                kept = set(self._held)
            finally:
                self._writer = before
        done: dict[Notify, list[Job[Item, Result]]] = {}
        for job in jobs:
            if job.notify is not None and job not in kept:
                done.setdefault(job.notify, []).append(job)
        for notify, group in done.items():
            notify(group)

    def _attempt(self, jobs: list[Job[Item, Result]]) -> list[Job[Item, Result]]:
        """Write these; those of them that are to be tried again, in order."""
        wanted = [job for job in jobs if job.item is not None]
        try:
            outcomes = self._write([job.item for job in wanted if job.item is not None])
            return [job for job, one in zip(wanted, outcomes, strict=True) if not job.settle(one)]
        except BaseException as error:
            # They would not hear of it otherwise.
            for job in wanted:
                job.outcome = error if job.outcome is None else job.outcome
            return []


def _wake(jobs: list[Any]) -> None:
    """Let threads go on that wait for their jobs."""
    for job in jobs:
        job.waiter.release()
