"""How late an event loop is while sessions append: a ticker that should wake every 1 ms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from protocol import Job, Numbers, clock, percentile

TICK = 0.001


async def ticks(stop: asyncio.Event) -> list[float]:
    """How many milliseconds each tick is late by, until it is stopped."""
    late: list[float] = []
    while not stop.is_set():
        start = clock()
        await asyncio.sleep(TICK)
        late.append((clock() - start) / 1e6 - TICK * 1e3)
    return late


async def busy_loop(work: Callable[[int], Awaitable[object]], job: Job) -> Numbers:
    """Lateness in ms of an idle loop, then of one where all sessions append at once."""
    stop = asyncio.Event()
    ticker = asyncio.create_task(ticks(stop))
    await asyncio.sleep(job["idle"])
    stop.set()
    idle = await ticker

    stop = asyncio.Event()
    ticker = asyncio.create_task(ticks(stop))
    await asyncio.sleep(0)
    begin = clock()
    await asyncio.gather(*(work(number) for number in range(job["sessions"])))
    spent = clock() - begin
    stop.set()
    busy = await ticker
    return {
        "idle_p99": percentile(idle, 0.99),
        "idle_max": max(idle),
        "p99": percentile(busy, 0.99),
        "max": max(busy),
        "added_p99": percentile(busy, 0.99) - percentile(idle, 0.99),
        "rate": job["sessions"] * job["n"] / spent * 1e9,
    }
