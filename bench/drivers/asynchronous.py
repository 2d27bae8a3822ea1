"""AsyncSession beside Session, in one process and in turn; what the loop feels of it.

The third figure is how late a ticker of 1 ms wakes, also while another process holds the lock
for 5 of every 20 ms.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable

from loop import ticks
from ours import opened
from protocol import Job, Numbers, check, clock, messages, percentile, serve

from backtrail import AsyncSession, Session
from backtrail.stores import Store

BLOCK = 50

HOLDER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
while True:
    fcntl.flock(fd, fcntl.LOCK_EX)
    time.sleep(0.005)
    fcntl.flock(fd, fcntl.LOCK_UN)
    time.sleep(0.015)
"""


def append_async(job: Job) -> Numbers:
    """One append, many sessions in one loop, and how late the loop is."""
    return asyncio.run(_measured(job))


async def _measured(job: Job) -> Numbers:
    items = itertools.cycle(messages(job))
    with opened(job) as store:
        plain = [Session.create(store, f"p{number}") for number in range(job["sessions"])]
        later = [await AsyncSession.create(store, f"a{number}") for number in range(len(plain))]
        counts = dict.fromkeys(("p", "a"), 0)

        def append(session: Session) -> None:
            session.append(next(items))
            counts["p"] += 1

        async def append_later(session: AsyncSession) -> None:
            await session.append(next(items))
            counts["a"] += 1

        for one, other in zip(plain, later, strict=True):
            append(one)
            await append_later(other)
        # What the imports made is not to be collected in the middle of a measurement.
        gc.collect()
        gc.freeze()
        numbers = {
            **await _alone(job, lambda: append(plain[0]), lambda: append_later(later[0])),
            **await _many(job, plain, later, append, append_later),
            "idle": await _lateness(job, [], append_later),
            "late": await _lateness(job, later, append_later),
            "late_locked": await _locked(job, store, later, append_later),
        }
        for name, sessions in (("p", plain), ("a", [one._session for one in later])):
            check(sum(one.info().message_count for one in sessions), counts[name])
        return numbers


async def _alone(
    job: Job, append: Callable[[], object], append_later: Callable[[], Awaitable[object]]
) -> Numbers:
    """Microseconds of one append, in blocks that take turns."""
    plain: list[int] = []
    later: list[int] = []
    for _ in range(job["n"] // BLOCK):
        for _ in range(BLOCK):
            begin = clock()
            append()
            plain.append(clock() - begin)
        for _ in range(BLOCK):
            begin = clock()
            await append_later()
            later.append(clock() - begin)
    one, other = statistics.median(plain), statistics.median(later)
    return {"p50": other / 1e3, "plain_p50": one / 1e3, "times": other / one}


async def _many(
    job: Job,
    plain: list[Session],
    later: list[AsyncSession],
    append: Callable[[Session], object],
    append_later: Callable[[AsyncSession], Awaitable[object]],
) -> Numbers:
    """Appends a second, in rounds that take turns."""

    async def each(session: AsyncSession) -> None:
        for _ in range(job["appends"]):
            await append_later(session)

    rates: list[float] = []
    plain_rates: list[float] = []
    total = len(plain) * job["appends"] * 1e9
    for _ in range(job["rounds"]):
        begin = clock()
        for _ in range(job["appends"]):
            for session in plain:
                append(session)
        plain_rates.append(total / (clock() - begin))
        begin = clock()
        await asyncio.gather(*(each(session) for session in later))
        rates.append(total / (clock() - begin))
    rate, plain_rate = statistics.median(rates), statistics.median(plain_rates)
    return {"rate": rate, "plain_rate": plain_rate, "share": rate / plain_rate}


async def _lateness(
    job: Job, later: list[AsyncSession], append: Callable[[AsyncSession], Awaitable[object]]
) -> float:
    """Milliseconds that one tick in a thousand is late by, while all sessions append."""
    stop = asyncio.Event()
    ticker = asyncio.create_task(ticks(stop))
    end = clock() + job["seconds"] * 1e9

    async def each(session: AsyncSession) -> None:
        while clock() < end:
            await append(session)

    await asyncio.gather(*(each(session) for session in later))
    await asyncio.sleep(max(0.0, (end - clock()) / 1e9))
    stop.set()
    return percentile(await ticker, 0.999)


async def _locked(
    job: Job,
    store: Store,
    later: list[AsyncSession],
    append: Callable[[AsyncSession], Awaitable[object]],
) -> float:
    place = str(store.places[0])
    lock = f"{place}/sessions/{later[0].id}/lock" if os.path.isdir(place) else f"{place}-lock"
    holder = subprocess.Popen([sys.executable, "-S", "-E", "-c", HOLDER, lock])
    try:
        await asyncio.sleep(0.2)
        return await _lateness(job, later, append)
    finally:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    serve(append_async)
