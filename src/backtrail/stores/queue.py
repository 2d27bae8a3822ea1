"""One way for many writers: what waits is written together, by one thread a store.

A `Queue` hands all that waits to its `write` at once, and each job its own outcome: async
sessions, threads that wait for the disk, and `Buffered` put jobs here. Its thread begins with
the first job and ends when there was none for a while.

Only that thread writes, so Ctrl-C, which comes to the main thread, never meets a writer: it
ends a wait, and no more. Putting a job is one call of C code. There is nothing else to be
left half done, hence no lock that a waiter holds, and nobody who has to wake another.
"""

from __future__ import annotations

import threading
import time
from _queue import Empty, SimpleQueue
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from . import forking

Item = TypeVar("Item")
Result = TypeVar("Result")

Told = Callable[[list[Any]], None]
"""Wakes who waits: called by the writer, with those jobs of a group that have the same one."""

IDLE = 2.0
"""Seconds without a job after which the thread ends."""


class Postponed(Exception):
    """The outcome of a job that all others would have waited for: its caller does it, and waits."""


class Job(Generic[Item, Result]):
    """What one caller wants written, at most once, and what came of it.

    One that nobody is to be `told` of is in no hurry. `waiter` is what `told` wakes.
    """

    __slots__ = ("_claim", "item", "outcome", "told", "waiter")

    def __init__(self, item: Item | None, told: Told | None = None, waiter: Any = None) -> None:
        self.item = item
        self.told = told
        self.waiter = waiter
        self.outcome: Result | BaseException | None = None
        self._claim = allocate_lock()

    def begin(self) -> bool:
        """Whether nobody else has begun it: the writer, or a waiter who takes it back."""
        return self._claim.acquire(False)

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
        forking.register(self)

    def after_fork(self) -> None:
        """Leave what waits to the parent, whose thread writes it."""
        self._jobs: SimpleQueue[Job[Item, Result]] = SimpleQueue()
        self._thread = 0
        self._writer = 0
        self._starting = allocate_lock()
        self._writing = threading.RLock()

    @property
    def is_mine(self) -> bool:
        """Whether this thread writes just now: it would wait for itself."""
        return self._writer == get_ident()

    def put(self, job: Job[Item, Result]) -> None:
        """Have a job done; its `told` is called then, in another thread."""
        self._jobs.put(job)
        if not self._thread:
            self._start()

    def do(self, item: Item | None) -> Result | None:
        """Have something written and wait for it; without an item, for all that is queued."""
        woken = allocate_lock()
        woken.acquire()
        job: Job[Item, Result] = Job(item, _wake, woken)
        if self.is_mine:
            self._carry_out([job])
            return job.result()
        try:
            self.put(job)
            woken.acquire()
        except BaseException:
            # Interrupted: what the writer has not begun is not written.
            job.begin()
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
            while not self._jobs.empty():
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
                # Whoever puts a job from now on sees that there is no thread.
                return

    def _waiting(self, wait: float) -> list[Job[Item, Result]]:
        """The jobs that wait, once there is one; `Empty` after `wait` seconds."""
        job = self._jobs.get(timeout=wait)
        jobs, until = [job], time.monotonic() + self._delay
        hurry = not self._delay
        while True:
            hurry = hurry or job.told is not None
            pause = 0.0 if hurry else until - time.monotonic()
            if self._jobs.empty() and pause <= 0:
                return jobs
            try:
                job = self._jobs.get(timeout=max(0.0, pause))
            except Empty:
                return jobs
            jobs.append(job)

    def _carry_out(self, jobs: list[Job[Item, Result]]) -> None:
        """Write what was not taken back, and wake those who wait for it."""
        jobs = [job for job in jobs if job.begin()]
        with self._writing:
            before, self._writer = self._writer, get_ident()
            try:
                self._write_all(jobs)
            finally:
                self._writer = before
        told: dict[Told, list[Job[Item, Result]]] = {}
        for job in jobs:
            if job.told is not None:
                told.setdefault(job.told, []).append(job)
        for tell, done in told.items():
            tell(done)

    def _write_all(self, jobs: list[Job[Item, Result]]) -> None:
        wanted = [job for job in jobs if job.item is not None]
        try:
            outcomes = self._write([job.item for job in wanted if job.item is not None])
            for job, outcome in zip(wanted, outcomes, strict=True):
                job.outcome = outcome
        except BaseException as error:
            # Nobody else would tell them.
            for job in wanted:
                job.outcome = error if job.outcome is None else job.outcome


def _wake(jobs: list[Any]) -> None:
    """Let threads go on that wait for their jobs."""
    for job in jobs:
        job.waiter.release()
