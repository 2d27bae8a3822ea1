"""Many threads that want the same thing at once: one of them does it for all.

With `synced` durability every append waits for the disk. Threads that come meanwhile queue
up, and the next of them writes and syncs for the whole queue: one lock, one write, one sync.

Those who are served wake each other, one after the other. Woken all at once they would only
queue for the interpreter: that costs two switches more for each, and a third of the rate.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ..errors import StoreFailed
from . import forking

Value = TypeVar("Value")
Result = TypeVar("Result")


class Job(Generic[Value, Result]):
    """What one thread wants done, and what came of it."""

    __slots__ = ("_woken", "done", "error", "following", "left", "result", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = False
        self.left = False
        self.following: Job[Value, Result] | None = None
        self._woken: LockType | None = None

    def will_wait(self) -> None:
        """Prepare to wait; before others can see the job."""
        self._woken = allocate_lock()
        self._woken.acquire()

    def wait(self) -> None:
        """Return when somebody calls `wake`."""
        if self._woken is not None:
            self._woken.acquire()

    def wake(self) -> None:
        """Let the waiting thread go on."""
        if self._woken is not None:
            self._woken.release()


def fail(jobs: Iterable[Job[Value, Result]], error: BaseException) -> None:
    """None of these jobs was done."""
    for job in jobs:
        job.error = error


class Combiner(Generic[Value, Result]):
    """Runs jobs of many threads in groups. `run` sets each job's result or error."""

    def __init__(self, run: Callable[[list[Job[Value, Result]]], None]) -> None:
        self._run = run
        self.after_fork()
        forking.register(self)

    def after_fork(self) -> None:
        """Forget the parent's threads."""
        self._gate = allocate_lock()
        self._queue: list[Job[Value, Result]] = []
        self._leading = False
        self._chosen: Job[Value, Result] | None = None

    def do(self, value: Value) -> Result | None:
        """Have `value` done, by this thread or another."""
        job: Job[Value, Result] = Job(value)
        with self._gate:
            leads = not self._leading
            self._leading = True
            if not leads:
                job.will_wait()
            self._queue.append(job)
        if not leads:
            self._wait(job)
        if not job.done:
            self._lead(job)
        if job.error is not None:
            raise job.error
        return job.result

    def _wait(self, job: Job[Value, Result]) -> None:
        try:
            job.wait()
        except BaseException:
            # Interrupted. If the job was not begun it is taken back; if it was just chosen
            # to lead, or has somebody to wake, that is not forgotten.
            with self._gate:
                job.left = True
                if job in self._queue:
                    self._queue.remove(job)
                woken = self._choose() if job is self._chosen else job.following
            if woken is not None:
                woken.wake()
            raise
        if job.following is not None:
            job.following.wake()

    def _choose(self) -> Job[Value, Result] | None:
        """Who leads next, if anybody waits. Under the gate."""
        self._chosen = self._queue[0] if self._queue else None
        self._leading = self._chosen is not None
        return self._chosen

    def _lead(self, mine: Job[Value, Result]) -> None:
        """Do everything that is queued, then hand over."""
        with self._gate:
            jobs, self._queue = self._queue, []
            self._chosen = None
        try:
            self._run(jobs)
        except Exception as error:
            for job in jobs:
                job.error = job.error or error
        except BaseException:
            for job in jobs:
                job.error = job.error or StoreFailed("interrupted before it was acknowledged")
            raise
        finally:
            with self._gate:
                served = None
                for job in reversed(jobs):
                    job.done = True
                    if job is not mine and not job.left:
                        job.following, served = served, job
                first = self._choose()
            # The next one first: it waits for the disk while the others make new jobs.
            if first is not None:
                first.wake()
            if served is not None:
                served.wake()
