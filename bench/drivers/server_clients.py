"""Conversations in PostgreSQL, by Backtrail and by peers: one job, one client, one process.

The job names the client, the server and how much to append, to load and to copy. Each runs in the
environment of its client, so nothing is imported before it is known which one that is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from protocol import Job, Numbers, check, clock, messages, repeated, repeated_async, serve

Append = Callable[[Any], object]
WARM = 5
"""Appends before the clock starts: statements are prepared, pools filled."""


def each(append: Append, items: list[Any]) -> Numbers:
    """Milliseconds of an append, over all of them."""
    for item in items[:WARM]:
        append(item)
    start = clock()
    for item in items[WARM:]:
        append(item)
    return {"append": (clock() - start) / 1e6 / (len(items) - WARM)}


async def each_async(append: Callable[[Any], Awaitable[object]], items: list[Any]) -> Numbers:
    """The same for a coroutine."""
    for item in items[:WARM]:
        await append(item)
    start = clock()
    for item in items[WARM:]:
        await append(item)
    return {"append": (clock() - start) / 1e6 / (len(items) - WARM)}


def backtrail(job: Job) -> Numbers:
    """`Session`, as people call it."""
    from backtrail import Session
    from backtrail.events import SessionInfo
    from backtrail.stores import open_store

    items = messages(job)
    with open_store(f"postgresql://{job['server']}") as store:
        with Session.create(store, "bench", files=False) as session:
            numbers = each(session.append, items)
        if job["load"]:
            # Words are indexed a second after the last append; here that is over before.
            store.search("nothing")

            def load() -> None:
                with Session.resume(store, "bench", files=False) as again:
                    check(len(again.messages()), job["n"])

            numbers["load"] = repeated(load, 5)["ms"]
        if job["copy"]:
            names = iter(range(100))

            def fork() -> None:
                store.create(SessionInfo(f"fork-{next(names)}"), base=("bench", 900))

            numbers["copy"] = repeated(fork, 21)["ms"]
    return numbers


def openai(job: Job) -> Numbers:
    """openai-agents: SQLAlchemySession. It has no fork: a copy is all items added elsewhere."""
    from agents.extensions.memory import SQLAlchemySession

    url = f"postgresql+asyncpg://{job['server']}"

    async def work() -> Numbers:
        items = messages(job)
        session = SQLAlchemySession.from_url("bench", url=url, create_tables=True)
        numbers = await each_async(lambda item: session.add_items([item]), items)

        async def load() -> None:
            check(len(await session.get_items()), job["n"])

        if job["load"]:
            numbers["load"] = (await repeated_async(load, 5))["ms"]
        if job["copy"]:

            async def copy() -> None:
                found = (await session.get_items())[:900]
                name = f"copy-{time.monotonic_ns()}"
                other = SQLAlchemySession(name, engine=session.engine)
                await other.add_items(found)

            numbers["copy"] = (await repeated_async(copy, 5))["ms"]
        await session.engine.dispose()
        return numbers

    return asyncio.run(work())


def adk(job: Job) -> Numbers:
    """google-adk: DatabaseSessionService."""
    from google.adk.sessions import DatabaseSessionService
    from peer_adk import NAMES, event

    async def work() -> Numbers:
        service = DatabaseSessionService(f"postgresql+asyncpg://{job['server']}")
        session = await service.create_session(**NAMES, session_id="bench")
        events = [event(message, number) for number, message in enumerate(messages(job))]
        numbers = await each_async(lambda one: service.append_event(session, one), events)

        async def load() -> None:
            found = await service.get_session(**NAMES, session_id="bench")
            check(len(found.events), job["n"])

        if job["load"]:
            numbers["load"] = (await repeated_async(load, 5))["ms"]
        return numbers

    return asyncio.run(work())


def langgraph(job: Job) -> Numbers:
    """langgraph: PostgresSaver, driven as a graph does, with the messages so far in a channel."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from peer_langgraph import CONFIG, conversation, put, stored

    with PostgresSaver.from_conn_string(f"postgresql://{job['server']}") as saver:
        saver.setup()
        state: list[Any] = []
        config = CONFIG

        def append(message: Any) -> None:
            nonlocal config
            state.append(message)
            config = put(saver, config, state)
            saver.put_writes(config, [("messages", message)], f"task-{len(state)}")

        # Each append writes the whole list: the time grows with it.
        numbers = each(append, conversation({**job, "n": min(job["n"], 300)}))
        if job["load"]:
            put(saver, CONFIG, conversation(job))
            numbers["load"] = repeated(lambda: check(len(stored(saver)), job["n"]), 5)["ms"]
    return numbers


if __name__ == "__main__":
    serve(backtrail, openai, adk, langgraph)
