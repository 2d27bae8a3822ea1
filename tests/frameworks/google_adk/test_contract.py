"""What ADK expects of a session service, on every store."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from backtrail import open_store
from backtrail.adapters.google_adk import BacktrailSessionService, import_sessions

WHO: Any = {"app_name": "app", "user_id": "u"}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    return asyncio.run(work)


@pytest.fixture
def service(url: str) -> Iterator[BacktrailSessionService]:
    """The service on each store."""
    made = BacktrailSessionService(url)
    yield made
    made.close()


def event(text: str = "hi", *, author: str = "user", **fields: Any) -> Event:
    """An event with words."""
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="i1", content=content, **fields)


def delta(state: dict[str, Any], **fields: Any) -> Event:
    """An event that changes the state."""
    return Event(author="a", invocation_id="i1", actions=EventActions(state_delta=state), **fields)


async def made(service: Any, session_id: str = "s", **options: Any) -> Session:
    """A new session."""
    session: Session = await service.create_session(**WHO, session_id=session_id, **options)
    return session


async def got(service: Any, session_id: str = "s", **options: Any) -> Any:
    """A session as it is stored."""
    return await service.get_session(**WHO, session_id=session_id, **options)


def test_what_is_not_there(service: BacktrailSessionService) -> None:
    """A missing session is None, deleting it is fine, appending to it is an error."""

    async def work() -> None:
        assert await got(service) is None
        await service.delete_session(**WHO, session_id="s")
        with pytest.raises(SessionNotFoundError):
            await service.append_event(Session(id="s", **WHO), event())
        assert (await service.list_sessions(app_name="app")).sessions == []

    run(work())


def test_ids(service: BacktrailSessionService) -> None:
    """One that exists is refused, another user may have it, white space around it is dropped."""

    async def work() -> None:
        await made(service)
        with pytest.raises(AlreadyExistsError):
            await made(service)
        with pytest.raises(AlreadyExistsError):
            await made(service, " s ")
        other = await service.create_session(app_name="app", user_id="v", session_id="s")
        await service.append_event(other, event("v"))
        assert (await got(service)).events == []
        assert (await got(service, " s")).id == "s"
        assert (await made(service, "")).id != ""
        named = await made(service, "a/b: ü")
        await service.append_event(named, event("odd"))
        assert len((await got(service, "a/b: ü")).events) == 1

    run(work())


STEPS: list[dict[str, Any]] = [
    {"a": 1, "app:x": {"deep": [1]}, "user:y": True, "temp:t": 5},
    {"a": {"k": {"v": 1}}, "user:y": None},
    {"a": {"k": 2}, "b": None, "app:x": {"other": 1}},
    {"b": 0.1 + 0.2, "user:big": 2**80},
]


def test_state_is_as_the_service_in_memory_has_it(service: BacktrailSessionService) -> None:
    """Scopes are shared, dictionaries are replaced, None is stored, `temp:` only passes by."""

    async def steps(service: Any) -> list[Any]:
        first = {"s": 1, "app:z": 1, "user:w": [1], "temp:n": 1}
        session = await made(service, state=copy.deepcopy(first))
        seen: list[Any] = [session.state]
        for step in STEPS:
            await service.append_event(session, delta(copy.deepcopy(step)))
            seen.append(copy.deepcopy(session.state))
            seen.append((await got(service)).state)
        await made(service, "s2")
        await service.create_session(app_name="app", user_id="v", session_id="s3")
        await service.create_session(app_name="other", user_id="u", session_id="s4")
        for user in ("u", "v", None):
            listed = await service.list_sessions(app_name="app", user_id=user)
            seen.append({one.id: one.state for one in listed.sessions})
            assert all(one.events == [] for one in listed.sessions)
        for app, user in (("app", "u"), ("app", "v"), ("other", "u"), ("none", "none")):
            seen.append(await service.get_user_state(app_name=app, user_id=user))
        await service.delete_session(**WHO, session_id="s")
        seen.append((await got(service, "s2")).state)
        return seen

    assert run(steps(service)) == run(steps(InMemorySessionService()))  # type: ignore[no-untyped-call]


def test_the_list_is_by_the_time_of_the_last_event(service: BacktrailSessionService) -> None:
    """The oldest first, as the events say, whenever they were appended."""

    async def work() -> None:
        for n, at in enumerate((3e9, 1e9, 2e9)):
            session = await made(service, f"s{n}")
            await service.append_event(session, event(timestamp=at))
            assert session.last_update_time == at
        listed = await service.list_sessions(**WHO)
        assert [one.id for one in listed.sessions] == ["s1", "s2", "s0"]
        assert [one.last_update_time for one in listed.sessions] == [1e9, 2e9, 3e9]

    run(work())


FULL = Event(
    id="e1",
    author="a",
    invocation_id="i",
    branch="a.b",
    turn_complete=True,
    error_code="X",
    long_running_tool_ids={"c1"},
    custom_metadata={"k": {"n": [1, None]}},
    timestamp=1795126115.0080473,
    grounding_metadata=types.GroundingMetadata(web_search_queries=["q"]),
    content=types.Content(
        role="model",
        parts=[
            types.Part(text="nul \0 ü", thought=True, thought_signature=b"\x00\xff"),
            types.Part(inline_data=types.Blob(data=b"\x00\x01\xff", mime_type="image/png")),
            types.Part(function_call=types.FunctionCall(id="c1", name="f", args={"snake_case": 1})),
        ],
    ),
    actions=EventActions(
        state_delta={"a": 1}, artifact_delta={"f.txt": 2}, escalate=True, transfer_to_agent="b"
    ),
)


def test_an_event_comes_back_equal(service: BacktrailSessionService) -> None:
    """Bytes, thoughts, calls, actions and metadata; and what comes back is not what was given."""

    async def work() -> None:
        session = await made(service)
        given = FULL.model_copy(deep=True)
        await service.append_event(session, given)
        given.content.parts[0].text = "changed"  # type: ignore[union-attr, index]
        found = (await got(service)).events
        assert found == [FULL]
        found[0].actions.state_delta["a"] = 2
        assert (await got(service)).events == [FULL]

    run(work())


def test_values_that_json_has_no_word_for(service: BacktrailSessionService) -> None:
    """Dates, sets, tuples, bytes and other keys come back as they were."""
    state = {
        "at": datetime(2026, 1, 2, 3, 4, 5, 6),
        "day": date(2026, 1, 2),
        "for": timedelta(1, 2, 3),
        "set": {1, "a"},
        "pair": (1, (2, b"\x00\xff")),
        "keys": {1: "a", None: "b"},
        "inf": float("inf"),
        "half": "\ud800",
        "dict": {"$backtrail": "mine"},
    }

    async def work() -> None:
        session = await made(service, state={"first": {1, 2}})
        await service.append_event(session, delta(state))
        found = await got(service)
        assert found.state == {"first": {1, 2}, **state}
        assert found.events[0].actions.state_delta == state

    run(work())


def test_which_events_are_asked_for(service: BacktrailSessionService) -> None:
    """The newest, those since a time, or none; the state is that of all."""

    async def work() -> None:
        session = await made(service)
        for n in range(6):
            await service.append_event(session, event(str(n), timestamp=100.0 + n, author="u"))
        await service.append_event(session, delta({"a": 1}, timestamp=106.0))

        async def texts(**config: Any) -> list[str]:
            found = await got(service, config=GetSessionConfig(**config))
            assert found.state == {"a": 1}
            return [e.content.parts[0].text if e.content else "-" for e in found.events]

        assert await texts(num_recent_events=0) == []
        assert await texts(num_recent_events=2) == ["5", "-"]
        assert await texts(num_recent_events=99) == ["0", "1", "2", "3", "4", "5", "-"]
        assert await texts(after_timestamp=104.0) == ["4", "5", "-"]
        assert await texts(after_timestamp=103.0, num_recent_events=2) == ["5", "-"]
        with pytest.raises(ValueError):
            GetSessionConfig(num_recent_events=-1)

    run(work())


def test_partial_events_are_not_stored(service: BacktrailSessionService) -> None:
    """They pass by."""

    async def work() -> None:
        session = await made(service)
        await service.append_event(session, event("par", partial=True))
        assert session.events == []
        assert (await got(service)).events == []

    run(work())


def test_order_is_that_of_the_appends(service: BacktrailSessionService) -> None:
    """Whatever the clock says, with the same time twice or one that goes back."""

    async def work() -> None:
        session = await made(service)
        times = [5.0] * 10 + [9.0, 3.0, 4.0, 1.0]
        for n, at in enumerate(times):
            await service.append_event(session, event(str(n), timestamp=at))
        found = (await got(service)).events
        assert [e.content.parts[0].text for e in found] == [str(n) for n in range(len(times))]

    run(work())


def test_the_same_event_again_changes_nothing(service: BacktrailSessionService) -> None:
    """By the writer that sent it, and by one that loaded the session anew; also its state."""

    async def work() -> None:
        session = await made(service)
        once = delta({"n": 1, "user:n": 1}, id="once")
        await service.append_event(session, once)
        await service.append_event(session, once)
        assert len(session.events) == 1
        again = await got(service)
        await service.append_event(again, delta({"n": 2, "user:n": 2}))
        await service.append_event(session, once)
        await service.append_event(again, once)
        found = await got(service)
        assert found.events[0].id == "once" and len(found.events) == 2
        assert found.state == {"n": 2, "user:n": 2}

    run(work())


def test_a_stale_writer_is_refused_and_loses_nothing(service: BacktrailSessionService) -> None:
    """The second of two that loaded the same session gets an error; loaded again, it goes on."""

    async def work() -> None:
        await made(service)
        one, two = await got(service), await got(service)
        await service.append_event(one, event("one", timestamp=50.0))
        with pytest.raises(StaleSessionError):
            await service.append_event(two, event("two", timestamp=60.0))
        await service.append_event(one, event("three", timestamp=40.0))
        two = await got(service)
        await service.append_event(two, event("two"))
        found = (await got(service)).events
        assert [e.content.parts[0].text for e in found] == ["one", "three", "two"]

    run(work())


def test_a_rewind_makes_writers_stale(service: BacktrailSessionService) -> None:
    """What was taken back is gone for ADK, its state too; undo brings both back."""

    async def work() -> None:
        session = await made(service, state={"n": 0})
        await service.append_event(session, event("one"))
        await service.append_event(
            session, event("two", actions=EventActions(state_delta={"n": 1}))
        )
        own = service.open("app", "u", "s")
        prompts = list(own.events(kinds=["user_message"]))
        own.rewind(before=prompts[1])
        found = await got(service)
        assert len(found.events) == 1 and found.state == {"n": 0}
        with pytest.raises(StaleSessionError):
            await service.append_event(session, event("lost?"))
        own.undo()
        found = await got(service)
        assert len(found.events) == 2 and found.state == {"n": 1}
        await service.append_event(found, event("on"))

    run(work())


def test_long_sessions_keep_their_state(service: BacktrailSessionService) -> None:
    """The whole state is stored now and then, and read from there."""

    async def work() -> None:
        session = await made(service)
        for n in range(150):
            await service.append_event(session, delta({f"k{n % 7}": n, "app:n": n}))
        found = await got(service, config=GetSessionConfig(num_recent_events=1))
        assert found.state == session.state | {"app:n": 149}
        assert len(found.events) == 1

    run(work())


WRITER = """
import asyncio, sys
from google.adk.errors import StaleSessionError
from google.adk.events import Event
from backtrail.adapters.google_adk import BacktrailSessionService
async def main():
    service = BacktrailSessionService(sys.argv[1])
    for n in range(15):
        event = Event(author="a", invocation_id="i", id=f"{sys.argv[2]}-{n}")
        while True:
            session = await service.get_session(app_name="app", user_id="u", session_id="s")
            try:
                await service.append_event(session, event)
                break
            except StaleSessionError:
                await asyncio.sleep(0.001)
asyncio.run(main())
"""


def test_writers_in_processes_lose_nothing(disk_url: str) -> None:
    """Three that load and append: the refused try again, each event is there once."""
    service = BacktrailSessionService(disk_url)
    run(made(service))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, disk_url, str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0] * 3
    ids = [e.id for e in run(got(service)).events]
    assert sorted(ids) == sorted(f"{w}-{n}" for w in range(3) for n in range(15))
    service.close()


def test_the_sessions_of_an_sqlite_file_move_in(tmp_path: Path, url: str) -> None:
    """Events, states and shared states; a second time adds only what is new."""
    path = tmp_path / "adk.db"

    async def fill(service: Any) -> None:
        session = await made(service, state={"first": 1, "app:x": 1})
        await service.append_event(session, FULL.model_copy(deep=True))
        await service.append_event(session, delta({"user:y": 2, "b": 3}, timestamp=1.8e9))

    old = SqliteSessionService(str(path))  # type: ignore[no-untyped-call]
    run(fill(old))
    with open_store(url) as store:
        assert import_sessions(path, store) == ["s"]
        import_sessions(path, store)
        service = BacktrailSessionService(store)
        ours, theirs = run(got(service)), run(got(old))
        assert ours.events == theirs.events
        assert ours.state == theirs.state
        run(service.append_event(ours, event("on")))
