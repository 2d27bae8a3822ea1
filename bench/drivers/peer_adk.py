"""google-adk: SqliteSessionService."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from contextlib import closing
from importlib.metadata import version
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from protocol import (
    Job,
    Numbers,
    check,
    listed,
    messages,
    repeated_async,
    serve,
    timed_async_appends,
    timed_async_load,
)

NAMES = {"app_name": "bench", "user_id": "user"}


def facts(job: Job) -> Numbers:
    return {"version": f"google-adk {version('google-adk')}"}


def path(job: Job) -> str:
    return os.path.join(job["folder"], "sessions.db")


def event(message: dict[str, Any], number: int) -> Event:
    """The message as ADK spells it, one microsecond after the one before."""
    if message["role"] == "tool":
        part = types.Part.from_function_response(
            name=message["tool_call_id"], response={"result": message["content"]}
        )
        parts, role = [part], "user"
    else:
        parts = [types.Part(text=message["content"])]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            arguments = json.loads(function["arguments"])
            parts.append(types.Part.from_function_call(name=function["name"], args=arguments))
        role = "user" if message["role"] == "user" else "model"
    return Event(
        author=role,
        invocation_id="run",
        id=f"e{number}",
        timestamp=time.time() + number * 1e-6,
        content=types.Content(role=role, parts=parts),
    )


async def stored(job: Job, config: GetSessionConfig | None = None) -> list[Event]:
    service = SqliteSessionService(path(job))
    session = await service.get_session(**NAMES, session_id="bench", config=config)
    return session.events


def append(job: Job) -> Numbers:
    async def work() -> Numbers:
        service = SqliteSessionService(path(job))
        session = await service.create_session(**NAMES, session_id="bench")
        # Made now, because an event older than the session counts as stale.
        events = [event(message, number) for number, message in enumerate(messages(job))]
        numbers = await timed_async_appends(
            lambda event: service.append_event(session, event), events
        )
        check(len(await stored(job)), job["n"])
        return numbers

    return asyncio.run(work())


def prepare_log(job: Job) -> Numbers:
    """Rows as `append_event` writes them, in one transaction: one by one takes minutes."""

    async def create() -> None:
        await SqliteSessionService(path(job)).create_session(**NAMES, session_id="bench")

    asyncio.run(create())
    made = (event(message, number) for number, message in enumerate(messages(job)))
    rows = (
        (e.id, "bench", "user", "bench", "run", e.timestamp, e.model_dump_json(exclude_none=True))
        for e in made
    )
    with closing(sqlite3.connect(path(job))) as connection, connection:
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    return {}


def load(job: Job) -> Numbers:
    return asyncio.run(timed_async_load(lambda: stored(job), job["n"]))


def tail(job: Job) -> Numbers:
    async def last() -> None:
        check(len(await stored(job, GetSessionConfig(num_recent_events=20))), 20)

    return asyncio.run(repeated_async(last, job["times"]))


def prepare_sessions(job: Job) -> Numbers:
    async def create() -> None:
        await SqliteSessionService(path(job)).create_session(**NAMES, session_id="first")

    asyncio.run(create())
    rows = (
        ("bench", "user", identity, json.dumps({"cwd": cwd, "title": title, **metadata}), n, n)
        for n, (identity, cwd, title, metadata) in enumerate(listed(job))
    )
    with closing(sqlite3.connect(path(job))) as connection, connection:
        connection.execute("DELETE FROM sessions")
        connection.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", rows)
    return {}


def list_sessions(job: Job) -> Numbers:
    async def sessions() -> None:
        found = await SqliteSessionService(path(job)).list_sessions(**NAMES)
        check(len(found.sessions), job["n"])

    return asyncio.run(repeated_async(sessions, job["times"]))


if __name__ == "__main__":
    serve(facts, append, prepare_log, load, tail, prepare_sessions, list_sessions)
