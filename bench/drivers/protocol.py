"""What every driver shares: a job comes in on stdin, numbers go out on stdout.

A driver runs in its contender's environment, so this module needs nothing but Python.
A job is a JSON object with `task`, `folder`, often `n` and `messages` (a file). The answer
is one JSON object on the last line: numbers, or `absent` with the reason.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

Job = dict[str, Any]
Numbers = dict[str, Any]
Task = Callable[[Job], Numbers]

clock = time.perf_counter_ns


class Absent(Exception):
    """What the job asks for does not exist in this environment."""


class Lost(Exception):
    """What was appended is not what is there after reopening."""


def serve(*tasks: Task) -> None:
    """Do the one job on stdin with the function of its name, print the numbers."""
    job = json.load(sys.stdin)
    try:
        numbers = {task.__name__: task for task in tasks}[job["task"]](job)
    except Absent as absent:
        numbers = {"absent": str(absent)}
    sys.stdout.write("\n" + json.dumps(numbers) + "\n")


def messages(job: Job) -> list[dict[str, Any]]:
    """The first `n` of the messages that all contenders get."""
    with open(job["messages"], encoding="utf-8") as file:
        found = [json.loads(line) for line in islice(file, job["n"])]
    if len(found) != job["n"]:
        raise ValueError(f"the file holds {len(found)} messages, not {job['n']}")
    # The conversation ends with an answer: a call left open would be repaired when read.
    found[-1].pop("tool_calls", None)
    return found


def check(found: int, expected: int) -> None:
    """Refuse figures of a store that lost or doubled something."""
    if found != expected:
        raise Lost(f"{found} messages after reopening, {expected} were appended")


# --- appending ---------------------------------------------------------------------------


def timed_appends(
    append: Callable[[Any], object], items: Sequence[Any], finish: Callable[[], object] = int
) -> Numbers:
    """Call `append` for each item in a closed loop; `finish` counts in the rate only."""
    times = array("q", bytes(8 * len(items)))
    gc.collect()
    begin = clock()
    for index, item in enumerate(items):
        start = clock()
        append(item)
        times[index] = clock() - start
    finish()
    return append_numbers(times, clock() - begin)


async def timed_async_appends(
    append: Callable[[Any], Awaitable[object]], items: Sequence[Any]
) -> Numbers:
    """The same for a coroutine, awaited one by one inside a running loop."""
    times = array("q", bytes(8 * len(items)))
    gc.collect()
    begin = clock()
    for index, item in enumerate(items):
        start = clock()
        await append(item)
        times[index] = clock() - start
    return append_numbers(times, clock() - begin)


def append_numbers(times: Sequence[int], total: int) -> Numbers:
    """Latencies in microseconds, the rate, and how the last tenth compares with the first."""
    tenth = max(1, len(times) // 10)
    first, last = statistics.median(times[:tenth]), statistics.median(times[-tenth:])
    return {
        "n": len(times),
        "p50": statistics.median(times) / 1e3,
        "p99": percentile(times, 0.99) / 1e3,
        "rate": len(times) / total * 1e9,
        "growth": last / first,
    }


def timed_threads(append: Callable[[Any], object], items: list[Any], threads: int) -> Numbers:
    """Deal the items out to threads that all begin together."""
    times: list[int] = []
    ready = threading.Barrier(threads + 1)

    def work(mine: list[Any]) -> None:
        spent = []
        ready.wait()
        for item in mine:
            start = clock()
            append(item)
            spent.append(clock() - start)
        times.extend(spent)

    workers = [
        threading.Thread(target=work, args=(items[number::threads],)) for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = clock()
    for worker in workers:
        worker.join()
    return append_numbers(times, clock() - begin)


def percentile(values: Iterable[float], part: float) -> float:
    """The value that `part` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


# --- reading -----------------------------------------------------------------------------


def repeated(call: Callable[[], object], times: int, after: Callable[[], object] = int) -> Numbers:
    """Milliseconds of a call made several times; the first one counts apart."""
    spent = []
    for _ in range(times + 1):
        start = clock()
        call()
        spent.append((clock() - start) / 1e6)
        after()
    return {"first": spent[0], "ms": statistics.median(spent[1:])}


async def repeated_async(
    call: Callable[[], Awaitable[object]],
    times: int,
    after: Callable[[], Awaitable[object]] | None = None,
) -> Numbers:
    """The same for a coroutine, inside a running loop."""
    spent = []
    for _ in range(times + 1):
        start = clock()
        await call()
        spent.append((clock() - start) / 1e6)
        if after is not None:
            await after()
    return {"first": spent[0], "ms": statistics.median(spent[1:])}


class Memory:
    """How far the resident memory rises above where it was, in MB."""

    def __init__(self) -> None:
        gc.collect()
        # Imports leave a peak behind that would hide a small rise; Linux can forget it.
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self._before = self._status("VmRSS") or self._peak()

    def added(self) -> float:
        return (self._peak() - self._before) / 1e6

    def _peak(self) -> int:
        unit = 1 if sys.platform == "darwin" else 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return self._status("VmHWM") or most

    @staticmethod
    def _status(name: str) -> int | None:
        try:
            with open("/proc/self/status") as file:
                for line in file:
                    if line.startswith(name + ":"):
                        return int(line.split()[1]) * 1024
        except OSError:
            pass
        return None


def timed_load(load: Callable[[], Sequence[object]], expected: int) -> Numbers:
    """Milliseconds and memory of loading everything, once: the process is fresh."""
    memory = Memory()
    start = clock()
    loaded = load()
    spent = clock() - start
    added = memory.added()
    check(len(loaded), expected)
    return {"ms": spent / 1e6, "mb": added, "n": expected}


async def timed_async_load(load: Callable[[], Awaitable[Sequence[object]]], n: int) -> Numbers:
    """The same for a coroutine, inside a running loop."""
    memory = Memory()
    start = clock()
    loaded = await load()
    spent = clock() - start
    added = memory.added()
    check(len(loaded), n)
    return {"ms": spent / 1e6, "mb": added, "n": n}


# --- sessions to list --------------------------------------------------------------------

PROJECTS = 50
TALK = 10
"""Messages of each session."""


def listed(job: Job) -> Iterable[tuple[str, str, str, dict[str, Any]]]:
    """Id, directory, title and metadata of each session of the listing part."""
    for number in range(job["n"]):
        cwd = os.path.join(job["projects"], f"project-{number % PROJECTS:02d}")
        metadata = {"branch": f"feature/{number % 17}", "tokens": number * 37, "ok": True}
        identity = f"00000000-0000-4000-8000-{number:012x}"
        yield identity, cwd, f"Fix the failing test number {number}", metadata


def talks(job: Job) -> Iterator[list[dict[str, Any]]]:
    """The messages of each of these sessions: its title, and what came of it."""
    pool = messages(job)
    for number, (_, _, title, _) in enumerate(listed(job)):
        first = number * (TALK - 1)
        said = [pool[at % len(pool)] for at in range(first, first + TALK - 1)]
        yield [{"role": "user", "content": title}, *said]


def wanted(job: Job) -> str:
    """The directory whose newest session is asked for."""
    return os.path.join(job["projects"], "project-07")
