"""Many threads that want the same thing at once: one of them does it for all.

With `synced` durability every append waits for the disk. Threads that come meanwhile queue
up, and the next of them writes and syncs for the whole queue: one lock, one write, one sync.

Those who are served wake each other, one after the other. Woken all at once they would only
queue for the interpreter: that costs two switches more for each, and a third of the rate.
The last of them wakes who leads next. By then the others have made their next jobs, so that
one sync serves nearly all; and whoever leads does not share the interpreter with them.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import StoreFailed
from . import forking

Value = TypeVar("Value")
Result = TypeVar("Result")


class Job(Generic[Value, Result]):
    """What one thread wants done, and what came of it."""

    __slots__ = ("done", "error", "following", "left", "result", "value", "woken")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = False
        self.left = False
        self.following: Job[Value, Result] | None = None
        # Held while the job's thread waits: whoever releases it wakes that thread.
        self.woken: LockType | None = None

    def wake(self) -> None:
        """Let the waiting thread go on."""
        if self.woken is not None:
            self.woken.release()


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

    def begin(self) -> bool:
        """Lead without a job, if nobody leads: who has nobody to share with can do with less."""
        with self._gate:
            if self._leading:
                return False
            self._leading = True
            return True

    def end(self) -> None:
        """What comes after `begin`: let somebody else lead."""
        self._pass_on(None)

    def do(self, value: Value) -> Result | None:
        """Have `value` done, by this thread or another."""
        job: Job[Value, Result] = Job(value)
        woken = None
        with self._gate:
            if self._leading:
                woken = job.woken = allocate_lock()
                woken.acquire()
                self._queue.append(job)
            else:
                self._leading = True
        if woken is None:
            self._lead(job, [job])
        else:
            self._wait(job, woken)
        if job.error is not None:
            raise job.error
        return job.result

    def _wait(self, job: Job[Value, Result], woken: LockType) -> None:
        """Return when the job is done: by another thread, or by this one if it is chosen."""
        try:
            woken.acquire()
        except BaseException:
            # Interrupted. If the job was not begun it is taken back; if it is to lead, or has
            # somebody to wake, that is not forgotten.
            with self._gate:
                job.left = True
                if job in self._queue:
                    self._queue.remove(job)
                passes = job.done or job is self._chosen
                next = (job.following or self._choose()) if passes else None
            if next is not None:
                next.wake()
            raise
        if job.done:
            self._pass_on(job.following)
            return
        with self._gate:
            jobs, self._queue = self._queue, []
            self._chosen = None
        self._lead(job, jobs)

    def _pass_on(self, next: Job[Value, Result] | None) -> None:
        """Wake the next of those who were served; after the last, who leads next."""
        if next is None:
            with self._gate:
                next = self._choose()
        if next is not None:
            next.wake()

    def _choose(self) -> Job[Value, Result] | None:
        """Who leads next, if anybody waits. Under the gate."""
        self._chosen = self._queue[0] if self._queue else None
        self._leading = self._chosen is not None
        return self._chosen

    def _lead(self, mine: Job[Value, Result], jobs: list[Job[Value, Result]]) -> None:
        """Do these jobs, then hand over."""
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
            self._pass_on(served)
