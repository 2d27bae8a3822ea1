"""openai-agents: SQLiteSession and AdvancedSQLiteSession."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

from agents.extensions.memory import AdvancedSQLiteSession
from agents.memory import SQLiteSession
from loop import busy_loop
from protocol import (
    Job,
    Numbers,
    append_numbers,
    check,
    clock,
    messages,
    repeated_async,
    serve,
    timed_async_appends,
    timed_async_load,
)


def facts(job: Job) -> Numbers:
    return {"version": f"openai-agents {version('openai-agents')}"}


def opened(job: Job, name: str = "bench") -> SQLiteSession:
    path = os.path.join(job["folder"], "sessions.db")
    if job.get("advanced"):
        return AdvancedSQLiteSession(session_id=name, db_path=path, create_tables=True)
    return SQLiteSession(name, path)


def run(work: Coroutine[Any, Any, Numbers]) -> Numbers:
    return asyncio.run(work)


async def _counted(job: Job) -> None:
    session = opened(job)
    check(len(await session.get_items()), job["n"])
    session.close()


def append(job: Job) -> Numbers:
    async def work() -> Numbers:
        session = opened(job)
        numbers = await timed_async_appends(lambda item: session.add_items([item]), messages(job))
        session.close()
        await _counted(job)
        return numbers

    return run(work())


def append_threads(job: Job) -> Numbers:
    """As many tasks at once as the others have threads; each add runs in a thread."""

    async def work() -> Numbers:
        items = messages(job)
        session = opened(job)
        times: list[int] = []

        async def worker(mine: list[Any]) -> None:
            for item in mine:
                start = clock()
                await session.add_items([item])
                times.append(clock() - start)

        count = job["threads"]
        begin = clock()
        await asyncio.gather(*(worker(items[number::count]) for number in range(count)))
        numbers = append_numbers(times, clock() - begin)
        session.close()
        await _counted(job)
        return numbers

    return run(work())


def prepare_log(job: Job) -> Numbers:
    async def work() -> Numbers:
        session = opened(job)
        items = messages(job)
        for start in range(0, len(items), 1000):
            await session.add_items(items[start : start + 1000])
        session.close()
        return {}

    return run(work())


def load(job: Job) -> Numbers:
    async def everything() -> list[Any]:
        session = opened(job)
        found = await session.get_items()
        session.close()
        return found

    return run(timed_async_load(everything, job["n"]))


def tail(job: Job) -> Numbers:
    async def last() -> None:
        session = opened(job)
        check(len(await session.get_items(limit=20)), 20)
        session.close()

    return run(repeated_async(last, job["times"]))


def fork(job: Job) -> Numbers:
    """A branch that begins with all turns before the one that holds message `at`."""

    async def work() -> Numbers:
        session = opened(job)
        head = (await session.get_items())[: job["at"]]
        turn = sum(item.get("role") == "user" for item in head)
        made: list[str] = []

        async def branch() -> None:
            made.append(await session.create_branch_from_turn(turn))

        async def forget() -> None:
            await session.switch_to_branch("main")
            await session.delete_branch(made.pop())

        await branch()
        # The branch leaves out the turn it begins at, so it is a little shorter than `at`.
        short = job["at"] - len(await session.get_items())
        await forget()
        if not 0 <= short < 20:
            raise ValueError(f"the branch is {short} messages short")
        numbers = await repeated_async(branch, job["times"], forget)
        session.close()
        return numbers

    return run(work())


def event_loop(job: Job) -> Numbers:
    async def work() -> Numbers:
        items = messages(job)
        sessions = [opened(job, f"s{number}") for number in range(job["sessions"])]

        async def one(number: int) -> None:
            for item in items:
                await sessions[number].add_items([item])

        numbers = await busy_loop(one, job)
        for session in sessions:
            check(len(await session.get_items()), job["n"])
            session.close()
        return numbers

    return run(work())


if __name__ == "__main__":
    serve(facts, append, append_threads, prepare_log, load, tail, fork, event_loop)
