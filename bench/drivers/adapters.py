"""An adapter and its framework's own store, the same calls on both, in the framework's environment.

    BACKTRAIL_TEST_FRAMEWORK=x .frameworks/x/bin/python -m bench.drivers.adapters x

prints a row for each call: microseconds on our SQLite store, on theirs, and the ratio of both. The
two take turns, and each figure is the best of all turns.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

TEXT = "the quick brown fox jumps over the lazy dog " * 45
"""About 2 KB."""

Act = Callable[[], Awaitable[Any]]
Side = tuple[str, Callable[[Path], Awaitable[list[tuple[str, int, Act]]]]]


async def openai_ours(place: Path) -> list[tuple[str, int, Act]]:
    from backtrail.adapters.openai_agents import BacktrailSession

    return await openai(BacktrailSession("s", f"sqlite:///{place}/b.db"))


async def openai_theirs(place: Path) -> list[tuple[str, int, Act]]:
    from agents import SQLiteSession

    return await openai(SQLiteSession("s", place / "t.db"))


async def openai(session: Any) -> list[tuple[str, int, Act]]:
    turn = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]
    for _ in range(150):
        await session.add_items(turn)
    return [
        ("add_items, two of 2 KB", 100, lambda: session.add_items(turn)),
        ("get_items, 300 and more", 20, session.get_items),
        ("get_items, the last 20", 50, lambda: session.get_items(20)),
        ("pop_item", 50, session.pop_item),
    ]


async def adk_ours(place: Path) -> list[tuple[str, int, Act]]:
    from backtrail.adapters.google_adk import BacktrailSessionService

    return await adk(BacktrailSessionService(f"sqlite:///{place}/b.db"))


async def adk_theirs(place: Path) -> list[tuple[str, int, Act]]:
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    return await adk(SqliteSessionService(str(place / "t.db")))


async def adk(service: Any) -> list[tuple[str, int, Act]]:
    from google.adk.events import Event, EventActions
    from google.genai import types

    who: Any = {"app_name": "app", "user_id": "u"}
    session = await service.create_session(**who, session_id="s")

    async def append() -> None:
        content = types.Content(role="user", parts=[types.Part(text=TEXT)])
        actions = EventActions(state_delta={"n": len(session.events)})
        event = Event(author="user", invocation_id="i", content=content, actions=actions)
        await service.append_event(session, event)

    for _ in range(1000):
        await append()
    return [
        ("append_event, 2 KB", 100, append),
        ("get_session of 1,000", 5, lambda: service.get_session(**who, session_id="s")),
    ]


async def strands_ours(place: Path) -> list[tuple[str, int, Act]]:
    from backtrail.adapters.strands import BacktrailSessionRepository

    return await strands(BacktrailSessionRepository(f"sqlite:///{place}/b.db"))


async def strands_theirs(place: Path) -> list[tuple[str, int, Act]]:
    from strands.session import FileSessionManager

    return await strands(FileSessionManager("other", storage_dir=str(place)))


async def strands(repository: Any) -> list[tuple[str, int, Act]]:
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

    repository.create_session(Session("s", SessionType.AGENT))
    repository.create_agent("s", SessionAgent("a", {}, {}))
    count = 0

    async def append() -> None:
        nonlocal count
        said: Any = {"role": "user", "content": [{"text": TEXT}]}
        repository.create_message("s", "a", SessionMessage(said, count))
        count += 1

    async def read() -> None:
        repository.list_messages("s", "a")

    for _ in range(300):
        await append()
    return [("create_message, 2 KB", 200, append), ("list_messages, 300 and more", 10, read)]


async def af_ours(place: Path) -> list[tuple[str, int, Act]]:
    from backtrail.adapters.agent_framework import BacktrailHistoryProvider

    return await af(BacktrailHistoryProvider(f"sqlite:///{place}/b.db"))


async def af_theirs(place: Path) -> list[tuple[str, int, Act]]:
    from agent_framework import FileHistoryProvider

    return await af(FileHistoryProvider(str(place)))


async def af(provider: Any) -> list[tuple[str, int, Act]]:
    from agent_framework import Message

    count = 0

    async def append() -> None:
        nonlocal count
        count += 1
        turn = [Message("user", [f"{count} {TEXT}"]), Message("assistant", [f"{count} {TEXT}"])]
        await provider.save_messages("s", turn)

    for _ in range(150):
        await append()
    return [
        ("save_messages, two of 2 KB", 50, append),
        ("get_messages, 300 and more", 10, lambda: provider.get_messages("s")),
    ]


async def pyd_ours(place: Path) -> list[tuple[str, int, Act]]:
    from backtrail.adapters.pydantic_ai import BacktrailConversationStore

    return await pyd(BacktrailConversationStore(f"sqlite:///{place}/b.db"))


async def pyd_theirs(place: Path) -> list[tuple[str, int, Act]]:
    from pydantic_ai.conversation_store import InMemoryConversationStore

    return await pyd(InMemoryConversationStore())


async def pyd(store: Any) -> list[tuple[str, int, Act]]:
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    conversation = Conversation(conversation_id="c")

    async def save() -> None:
        conversation.messages += [
            ModelRequest(parts=[UserPromptPart(TEXT)]),
            ModelResponse(parts=[TextPart(TEXT)]),
        ]
        await store.save(conversation)

    for _ in range(150):
        await save()
    return [("save, two of 2 KB", 50, save), ("load, 300 and more", 5, lambda: store.load("c"))]


SIDES: dict[str, tuple[Side, Side]] = {
    "openai_agents": (("Backtrail", openai_ours), ("SQLiteSession", openai_theirs)),
    "google_adk": (("Backtrail", adk_ours), ("SqliteSessionService", adk_theirs)),
    "strands": (("Backtrail", strands_ours), ("FileSessionManager", strands_theirs)),
    "agent_framework": (("Backtrail", af_ours), ("FileHistoryProvider", af_theirs)),
    "pydantic_ai": (("Backtrail", pyd_ours), ("InMemoryConversationStore", pyd_theirs)),
}
TURNS = 5


async def measured(name: str) -> Iterator[dict[str, Any]]:
    """A row for each call."""
    (_, ours), (other, theirs) = SIDES[name]
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, side) for side in ("ours", "theirs")]
        for folder in folders:
            folder.mkdir()
        sides = [await ours(folders[0]), await theirs(folders[1])]
        best: dict[tuple[int, int], float] = {}
        for _ in range(TURNS):
            for n in range(len(sides[0])):
                for side, acts in enumerate(sides):
                    _, times, act = acts[n]
                    start = time.perf_counter()
                    for _ in range(times):
                        await act()
                    took = (time.perf_counter() - start) / times * 1e6
                    best[side, n] = min(best.get((side, n), took), took)
    rows = []
    for n, (what, _, _) in enumerate(sides[0]):
        mine, other_us = best[0, n], best[1, n]
        rows.append(
            {"framework": name, "what": what, "against": other, "ours_us": round(mine),
             "theirs_us": round(other_us), "ratio": round(mine / other_us, 2)}
        )  # fmt: skip
    return iter(rows)


if __name__ == "__main__":
    for row in asyncio.run(measured(sys.argv[1])):
        print(json.dumps(row))
