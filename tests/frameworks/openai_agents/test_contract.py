"""What the OpenAI Agents SDK expects of a session, on every store."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from agents.memory import Session, SessionSettings

from backtrail import Closed, NotFound, open_store
from backtrail.adapters.openai_agents import BacktrailSession, import_sessions

from ..people import cli


def item(n: int, role: str = "user") -> Any:
    """A message."""
    return {"role": role, "content": f"item {n}"}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    return asyncio.run(work)


@pytest.fixture
def session(url: str) -> Iterator[BacktrailSession]:
    """A new session on each store."""
    made = BacktrailSession("chat-1", url)
    yield made
    made.close()


def test_it_is_a_session_of_the_sdk(session: BacktrailSession) -> None:
    """The runtime-checkable protocol holds."""
    assert isinstance(session, Session)
    assert session.session_id == "chat-1"


async def steps(session: Any) -> list[Any]:
    """The same calls on any session, and what they gave."""
    seen: list[Any] = [await session.get_items(), await session.pop_item()]
    await session.clear_session()
    await session.add_items([])
    await session.add_items([item(1), item(2, "assistant"), item(3)])
    seen.append(await session.get_items())
    for limit in (0, 1, 2, 3, 10):
        seen.append(await session.get_items(limit))
    seen.append(await session.get_items(-1))
    seen.append(await session.pop_item())
    await session.add_items([item(4)])
    seen += [await session.get_items(), await session.get_items(2)]
    await session.clear_session()
    seen += [await session.get_items(), await session.pop_item()]
    await session.add_items([item(5)])
    seen.append(await session.get_items())
    return seen


def test_it_answers_as_the_sdks_own_session_does(session: BacktrailSession) -> None:
    """Order, limits, pop and clear are those of `SQLiteSession`."""
    assert run(steps(session)) == run(steps(SQLiteSession("chat-1")))


def test_the_limit_of_the_settings_counts_unless_one_is_given(url: str) -> None:
    """An explicit limit beats `session_settings.limit`."""
    session = BacktrailSession("a", url, session_settings=SessionSettings(limit=2))
    run(session.add_items([item(n) for n in range(5)]))
    assert run(session.get_items()) == [item(3), item(4)]
    assert run(session.get_items(3)) == [item(2), item(3), item(4)]
    session.close()


ODD: list[Any] = [
    {"role": "user", "content": "nul \0 and \ud800 half"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1e999}'},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text"}]},
    {"type": "mcp_approval_response", "approve": True, "approval_request_id": "r"},
    {"role": "user", "content": [{"type": "input_text", "text": "big"}], "n": 2**90, "x": 1.5},
    {"type": "compaction", "id": "cmp", "encrypted_content": "zzz"},
    {"role": "assistant", "content": "", "provider_data": {"k": [None, True, {"deep": []}]}},
]  # fmt: skip


@pytest.mark.parametrize("one", ODD, ids=lambda one: str(one.get("type", one.get("role"))))
def test_any_item_comes_back_equal(session: BacktrailSession, one: Any) -> None:
    """Whatever JSON text can say, with NUL, half a surrogate pair and large numbers."""
    run(session.add_items([item(0), copy.deepcopy(one)]))
    assert run(session.get_items()) == [item(0), one]
    assert run(session.get_items(1)) == [one]
    assert run(session.pop_item()) == one


def test_what_comes_back_is_not_what_was_given(session: BacktrailSession) -> None:
    """Neither the caller's objects nor a second reader's are shared."""
    given = {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    run(session.add_items([given]))  # type: ignore[list-item]
    given["content"][0]["text"] = "changed"  # type: ignore[index]
    first: Any = run(session.get_items())
    assert first[0]["content"][0]["text"] == "a"
    first[0]["content"][0]["text"] = "changed"
    assert run(session.get_items())[0]["content"][0]["text"] == "a"


def test_a_batch_is_added_whole_or_not_at_all(session: BacktrailSession) -> None:
    """An item that is none takes the others of its batch along."""
    run(session.add_items([item(1)]))
    with pytest.raises(Exception, match="dictionary"):
        run(session.add_items([item(2), "no item"]))  # type: ignore[list-item]
    assert run(session.get_items()) == [item(1)]


def test_a_closed_session_raises(session: BacktrailSession) -> None:
    """Also for an empty batch."""
    session.close()
    with pytest.raises(Closed):
        run(session.add_items([]))
    with pytest.raises(Closed):
        run(session.get_items())


def test_sessions_are_apart_whatever_their_names(url: str) -> None:
    """Any text names a session, and is the same one later."""
    names = ["a", "A", "user:1", "ü/../x", "-x", "x" * 300, "  "]
    with open_store(url) as store:
        for n, name in enumerate(names):
            run(BacktrailSession(name, store).add_items([item(n)]))
        for n, name in enumerate(names):
            assert run(BacktrailSession(name, store).get_items()) == [item(n)]
        assert len(store.sessions()) == len(names)


def test_pop_and_clear_are_undone(session: BacktrailSession) -> None:
    """Nothing is erased: the events are there, and come back in order."""
    run(session.add_items([item(1), item(2)]))
    run(session.pop_item())
    run(session.clear_session())
    assert run(session.get_items()) == []
    run(session.undo())
    assert run(session.get_items()) == [item(1)]
    run(session.undo())
    assert run(session.get_items()) == [item(1), item(2)]
    run(session.redo())
    assert run(session.get_items()) == [item(1)]


def test_a_fork_goes_its_own_way(session: BacktrailSession) -> None:
    """Both have what was before, neither what the other says later."""
    run(session.add_items([item(1), item(2)]))
    fork = run(session.fork("branch:1"))
    run(fork.add_items([item(3)]))
    run(session.add_items([item(4)]))
    assert run(fork.get_items()) == [item(1), item(2), item(3)]
    assert run(session.get_items()) == [item(1), item(2), item(4)]
    again = BacktrailSession("branch:1", session.open().store)
    assert run(again.get_items()) == [item(1), item(2), item(3)]


def test_a_session_of_another_origin_is_read_in_this_format(url: str) -> None:
    """Chat Completions and Anthropic messages become items; the log keeps them as they were."""
    from backtrail import Session as Own

    with open_store(url) as store:
        with Own.create(store, "mixed") as own:
            own.append({"role": "user", "content": "list"})
            call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
            own.append({"role": "assistant", "content": None, "tool_calls": [call]})
            own.append({"role": "tool", "tool_call_id": "c1", "content": "a.txt"})
        items: Any = run(BacktrailSession("mixed", store).get_items())
    assert [one.get("type", "message") for one in items] == [
        *("message", "function_call", "function_call_output")
    ]
    assert items[2]["call_id"] == items[1]["call_id"]


def test_replacing_all_items_is_one_step(session: BacktrailSession) -> None:
    """What the SDK's compaction asks for; one undo brings the old conversation back."""
    run(session.add_items([item(n) for n in range(4)]))
    assert run(session._atomic_replace_items([item(9)]))
    assert run(session.get_items()) == [item(9)]
    events = list(session.open().events(reverse=True, limit=2))
    assert [event.kind for event in events] == ["user_message", "rewound"]


def test_a_deleted_session_is_an_error_and_then_a_new_one(url: str) -> None:
    """The append that hits it names the session; the next one begins anew."""
    with open_store(url) as store:
        session = BacktrailSession("gone", store)
        run(session.add_items([item(1)]))
        store.delete("gone")
        with pytest.raises(NotFound, match="gone"):
            run(session.add_items([item(2)]))
        run(session.add_items([item(2)]))
        assert run(session.get_items()) == [item(2)]


def test_what_is_begun_is_finished_though_the_task_is_cancelled(session: BacktrailSession) -> None:
    """An append that was begun is in the log, whole, before the cancellation goes on."""

    async def work() -> None:
        for n in range(20):
            task = asyncio.create_task(session.add_items([item(n), item(n, "assistant")]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(work())
    items: Any = run(session.get_items())
    pairs = [(one["content"], one["role"]) for one in items]
    assert pairs[0::2] == [(content, "user") for content, _ in pairs[0::2]]
    assert [c for c, _ in pairs[0::2]] == [c for c, _ in pairs[1::2]]


WRITER = """
import asyncio, sys
from backtrail.adapters.openai_agents import BacktrailSession
async def main():
    session = BacktrailSession("shared", sys.argv[1])
    for n in range(25):
        name = f"{sys.argv[2]}-{n}"
        await session.add_items([{"role": r, "content": name} for r in ("user", "assistant")])
asyncio.run(main())
"""


def test_many_processes_lose_nothing(disk_url: str) -> None:
    """Four writers of one session: every batch is there, and whole."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, disk_url, str(n)]) for n in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    session = BacktrailSession("shared", disk_url)
    items: Any = run(session.get_items())
    assert len(items) == 200
    contents = [one["content"] for one in items]
    assert contents[0::2] == contents[1::2]
    assert len(set(contents)) == 100
    session.close()


def test_two_who_pop_take_different_items(url: str) -> None:
    """Each item is popped once, however many pop at the same time."""
    with open_store(url) as store:
        run(BacktrailSession("p", store).add_items([item(n) for n in range(12)]))

        async def work() -> list[Any]:
            both = [BacktrailSession("p", store) for _ in range(3)]
            return await asyncio.gather(*(one.pop_item() for one in both for _ in range(4)))

        popped = run(work())
        assert sorted(one["content"] for one in popped) == sorted(f"item {n}" for n in range(12))
        assert run(BacktrailSession("p", store).get_items()) == []


def test_sessions_of_an_sqlite_file_move_in(tmp_path: Path, url: str) -> None:
    """With their order and times; a second time adds only what is new, the file stays as it is."""
    path = tmp_path / "old.db"

    async def fill() -> None:
        for name in ("one", "user:2"):
            old = SQLiteSession(name, path)
            await old.add_items([item(1), *copy.deepcopy(ODD[1:3])])
            old.close()

    run(fill())
    before = path.read_bytes()
    with open_store(url) as store:
        assert import_sessions(path, store)[0] == "one"
        assert path.read_bytes() == before

        async def more() -> None:
            old = SQLiteSession("one", path)
            await old.add_items([item(2)])
            old.close()

        run(more())
        import_sessions(path, store)
        assert run(BacktrailSession("one", store).get_items()) == [item(1), *ODD[1:3], item(2)]
        assert run(BacktrailSession("user:2", store).get_items()) == [item(1), *ODD[1:3]]


def test_people_read_it(tmp_path: Path) -> None:
    """`show` and `search` treat it as any other session."""
    url = f"sqlite:///{tmp_path}/store.db"
    session = BacktrailSession("chat-1", url)
    call = {
        "type": "function_call",
        "call_id": "c1",
        "name": "weather",
        "arguments": '{"city":"Oslo"}',
    }
    answer = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
    said: Any = [
        {"role": "user", "content": "how is it in Oslo"},
        call,
        answer,
        item(2, "assistant"),
    ]
    run(session.add_items(said))
    session.close()
    shown = cli(url, "show", "chat-1")
    assert "how is it in Oslo" in shown and "weather" in shown and "rain" in shown
    assert "chat-1" in cli(url, "search", "Oslo", "--all")
    rows = json.loads(cli(url, "ls", "--all", "--json"))
    assert "chat-1" in json.dumps(rows)
