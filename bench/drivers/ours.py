"""Backtrail itself, through its public names."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from typing import Any

from loop import busy_loop
from protocol import (
    Absent,
    Job,
    Numbers,
    check,
    listed,
    messages,
    repeated,
    serve,
    talks,
    timed_appends,
    timed_load,
    timed_threads,
    wanted,
)

from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import Store, open_store

SESSION = "bench"


def facts(job: Job) -> Numbers:
    from importlib.metadata import version

    return {"version": f"backtrail {version('backtrail')}"}


def url(job: Job) -> str:
    if job["store"] == "file":
        return "file:" + os.path.join(job["folder"], "store")
    return "sqlite:///" + os.path.join(job["folder"], "store.db")


def opened(job: Job) -> Store:
    try:
        return open_store(url(job), durability=job.get("durability", "written"))
    except ModuleNotFoundError as error:
        raise Absent(f"{error.name} is not there") from error


KINDS = {"user": "user_message", "assistant": "assistant_message", "tool": "tool_result"}


def new(message: dict[str, Any]) -> NewEvent:
    return NewEvent(KINDS[message["role"]], {"message": message, "format": "openai"})


def counted(job: Job, session: str = SESSION) -> None:
    with opened(job) as store:
        check(sum(1 for _ in store.read(session)), job["n"])


# --- append ------------------------------------------------------------------------------


def append(job: Job) -> Numbers:
    store = opened(job)
    store.create(SessionInfo(SESSION))
    numbers = timed_appends(
        lambda message: store.append(SESSION, [new(message)]), messages(job), store.flush
    )
    store.close()
    counted(job)
    return numbers


def append_buffered(job: Job) -> Numbers:
    try:
        from backtrail.stores.buffered import Buffered
    except ModuleNotFoundError as error:
        raise Absent(f"{error.name} is not there") from error
    store = Buffered(opened(job))
    store.create(SessionInfo(SESSION))
    numbers = timed_appends(
        lambda message: store.append(SESSION, [new(message)]), messages(job), store.flush
    )
    store.close()
    counted(job)
    return numbers


def append_session(job: Job) -> Numbers:
    """What users call: it also finds the kind and the format of a message."""
    session = session_class().open(opened(job), SESSION)
    start = session.info().message_count
    numbers = timed_appends(session.append, messages(job))
    check(session.info().message_count - start, job["n"])
    session.close()
    return numbers


def append_threads(job: Job) -> Numbers:
    """All threads write to one session, as the tools of one agent do, or each to its own."""
    store = opened(job)
    sessions = [f"{SESSION}-{number}" for number in range(job.get("sessions", 1))]
    for session in sessions:
        store.create(SessionInfo(session))
    number = itertools.count()
    mine = threading.local()

    def append(message: dict[str, Any]) -> None:
        try:
            session = mine.session
        except AttributeError:
            session = mine.session = sessions[next(number) % len(sessions)]
        store.append(session, [new(message)])

    numbers = timed_threads(append, messages(job), job["threads"])
    store.close()
    with opened(job) as again:
        check(sum(1 for session in sessions for _ in again.read(session)), job["n"])
    return numbers


def session_class() -> Any:
    try:
        from backtrail.session.session import Session
    except ModuleNotFoundError as error:
        raise Absent(f"{error.name} is not there") from error
    return Session


# --- load and tail -----------------------------------------------------------------------


def prepare_log(job: Job) -> Numbers:
    with opened(job) as store:
        store.create(SessionInfo(SESSION))
        events = [new(message) for message in messages(job)]
        for start in range(0, len(events), 500):
            store.append(SESSION, events[start : start + 500])
        store.flush()
    return {}


def load(job: Job) -> Numbers:
    """What users call, with the import done before the clock starts."""
    try:
        cls = session_class()
    except Absent:
        return load_store(job)

    def everything() -> list[Any]:
        with cls.open(url(job), SESSION) as session:
            return list(session.messages())

    opened(job).close()
    return timed_load(everything, job["n"])


def load_store(job: Job) -> Numbers:
    """The store alone: one message of each event, in order."""

    def everything() -> list[Any]:
        with opened(job) as store:
            return [event.data["message"] for event in store.read(SESSION)]

    opened(job).close()
    return timed_load(everything, job["n"])


def tail(job: Job) -> Numbers:
    def last() -> None:
        with opened(job) as store:
            check(len(store.tail(SESSION, 20)), 20)

    return repeated(last, job["times"])


# --- list and fork -----------------------------------------------------------------------


def prepare_sessions(job: Job) -> Numbers:
    with opened(job) as store:
        for (identity, cwd, title, metadata), talk in zip(listed(job), talks(job), strict=True):
            store.create(SessionInfo(identity, cwd=cwd, title=title, metadata=metadata))
            store.append(identity, [new(message) for message in talk])
        store.flush()
    return {}


def list_sessions(job: Job) -> Numbers:
    def sessions() -> None:
        with opened(job) as store:
            check(len(store.sessions()), job["n"])

    return repeated(sessions, job["times"])


def latest(job: Job) -> Numbers:
    last = [row[0] for row in listed(job) if row[1] == wanted(job)][-1]

    def newest() -> None:
        with opened(job) as store:
            found = store.latest(wanted(job)).id
        if found != last:
            raise ValueError(f"`{found}` is not the latest")

    return repeated(newest, job["times"])


def stats(job: Job) -> Numbers:
    """The least that shows whether any session changed."""
    place = os.path.join(job["folder"], "store", "sessions")

    def look() -> None:
        for name in os.listdir(place):
            os.stat(f"{place}/{name}/messages.jsonl")

    return repeated(look, job["times"])


def fork(job: Job) -> Numbers:
    made = 0
    with opened(job) as store:

        def branch() -> None:
            nonlocal made
            made += 1
            info = SessionInfo(f"fork-{made}", parent_id=SESSION, relation="fork")
            store.create(info, base=(SESSION, job["at"]))

        def forget() -> None:
            check(store.tail(f"fork-{made}", 1)[0].seq, job["at"])
            store.delete(f"fork-{made}")
            # A deletion may leave syncs behind that the next fork would wait for.
            store.flush()

        return repeated(branch, job["times"], forget)


# --- the event loop ----------------------------------------------------------------------


def event_loop(job: Job) -> Numbers:
    try:
        from backtrail.session.aio import AsyncSession
    except ModuleNotFoundError as error:
        raise Absent(f"{error.name} is not there") from error

    async def work() -> Numbers:
        items = messages(job)
        store = opened(job)
        sessions = [
            await AsyncSession.open(store, f"s{number}") for number in range(job["sessions"])
        ]

        async def one(number: int) -> None:
            for item in items:
                await sessions[number].append(item)

        numbers = await busy_loop(one, job)
        for session in sessions:
            check(len(await session.messages()), job["n"])
            await session.close()
        store.close()
        return numbers

    return asyncio.run(work())


if __name__ == "__main__":
    serve(
        facts,
        append,
        append_buffered,
        append_session,
        append_threads,
        prepare_log,
        load,
        load_store,
        tail,
        prepare_sessions,
        list_sessions,
        latest,
        stats,
        fork,
        event_loop,
    )
