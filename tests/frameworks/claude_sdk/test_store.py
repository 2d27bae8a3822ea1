"""The SDK's tests of session stores, on every store, and what they leave out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_agent_sdk.testing import run_session_store_conformance

from backtrail import Session
from backtrail.adapters.claude_sdk import BacktrailSessionStore

from ...postgres import url_for

KEY: Any = {"project_key": "p", "session_id": "s"}


@pytest.fixture(params=["memory", "file", "sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Fresh places on one kind of store."""

    def fresh() -> Iterator[str]:
        for number in itertools.count():
            folder = tmp_path / str(number)
            folder.mkdir()
            if request.param == "postgres":
                yield url_for(folder)
            else:
                urls = {"memory": "memory:", "file": f"file:{folder}/s"}
                yield urls.get(request.param, f"sqlite:///{folder}/s.db")

    return fresh()


def entry(n: int, **more: Any) -> Any:
    """An entry as the program writes it."""
    message = {"role": "user", "content": f"hello {n}"}
    return {"type": "user", "uuid": f"u{n}", "message": message, "cwd": "/tmp", **more}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_whole_kit_passes(urls: Iterator[str], backend: str) -> None:
    """All 14 contracts; the factory is called for each of them, and once before."""
    made = []
    with ExitStack() as closing:

        def make() -> Any:
            store = BacktrailSessionStore(next(urls))
            closing.callback(store.close)
            made.append(store)
            return store

        anyio.run(run_session_store_conformance, make, backend=backend)
    assert len(made) == 15


def test_catching_up_leaves_nothing_out(urls: Iterator[str]) -> None:
    """What was lost comes in behind, and the history has all; nothing comes twice."""
    store = BacktrailSessionStore(next(urls))

    async def main() -> None:
        mode = {"type": "mode", "mode": "plan"}
        await store.append(KEY, [entry(1), entry(2), mode, entry(5)])
        await store.append(KEY, [entry(1), entry(2), mode, entry(5)])
        await store.append(KEY, [entry(n) for n in range(1, 6)])
        loaded = await store.load(KEY)
        assert loaded is not None
        assert [one.get("uuid") for one in loaded] == ["u1", "u2", None, "u5", "u3", "u4"]
        other: Any = {**KEY, "session_id": "fork"}
        await store.append(other, [entry(1)])
        assert await store.load(other) == [entry(1)]

    anyio.run(main)
    [info] = [info for info in store.store.sessions() if info.key == "claude:p/s"]
    with Session.resume(store.store, info.id) as session:
        texts = [message["content"] for message in session.messages()]
    assert texts == [f"hello {n}" for n in (1, 2, 5, 3, 4)]
    store.close()


def test_nothing_is_shared_with_the_caller(urls: Iterator[str]) -> None:
    """What is changed after it was given or got is as it was."""
    store = BacktrailSessionStore(next(urls))

    async def main() -> None:
        given = entry(1, tags=["a"])
        await store.append(KEY, [given])
        given["message"]["content"] = "changed"
        given["tags"].append("b")
        for _ in range(2):
            loaded: Any = await store.load(KEY)
            assert loaded == [entry(1, tags=["a"])]
            loaded[0]["message"]["content"] = "changed"
            loaded.append(1)

    anyio.run(main)
    store.close()


def test_subpaths_come_back(urls: Iterator[str]) -> None:
    """Whatever a subpath is called."""
    store = BacktrailSessionStore(next(urls))
    paths = ["subagents/agent-1", "subagents/workflows/r1/agent-2", "odd path/é"]

    async def main() -> None:
        for path in paths:
            await store.append({**KEY, "subpath": path}, [entry(1, path=path)])
        assert sorted(await store.list_subkeys(KEY)) == sorted(paths)
        assert await store.load(KEY) is None
        assert await store.list_sessions("p") == []
        for path in paths:
            assert await store.load({**KEY, "subpath": path}) == [entry(1, path=path)]

    anyio.run(main)
    store.close()
