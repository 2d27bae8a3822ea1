"""What Agent Framework expects of a history provider and of a checkpoint storage."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    Content,
    FileHistoryProvider,
    InMemoryCheckpointStorage,
    Message,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
)
from agent_framework._workflows._runner_context import WorkflowMessage

from backtrail import NotFound, Session, open_store
from backtrail.adapters.agent_framework import (
    BacktrailCheckpointStorage,
    BacktrailHistoryProvider,
)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    return asyncio.run(work)


def rows(messages: list[Message]) -> list[Any]:
    """Messages as they can be compared."""
    return [message.to_dict() for message in messages]


@pytest.fixture
def history(url: str) -> Iterator[BacktrailHistoryProvider]:
    """The provider on each store."""
    made = BacktrailHistoryProvider(url)
    yield made
    made.close()


def said(role: str, text: str, **fields: Any) -> Message:
    """A message."""
    return Message(role, [text], **fields)


def test_it_keeps_messages_as_the_file_provider_does(
    history: BacktrailHistoryProvider, tmp_path: Path
) -> None:
    """Order, batches, repeated turns, a whole conversation given again, sessions apart."""

    async def steps(provider: Any) -> list[Any]:
        seen: list[Any] = [rows(await provider.get_messages("a"))]
        await provider.save_messages("a", [])
        one = [said("user", "1"), said("assistant", "2")]
        await provider.save_messages("a", one)
        seen.append(rows(await provider.get_messages("a")))
        await provider.save_messages("a", [*one, said("user", "3")])
        seen.append(rows(await provider.get_messages("a")))
        await provider.save_messages("a", [said("user", "3")])
        await provider.save_messages("a", [said("assistant", "4", message_id="m4")])
        await provider.save_messages("a", [said("assistant", "4", message_id="m4")])
        seen.append(rows(await provider.get_messages("a")))
        await provider.save_messages("b", [said("user", "of b")])
        await provider.save_messages(None, [said("user", "of none")])
        for name in ("a", "b", None):
            seen.append(rows(await provider.get_messages(name)))
        return seen

    theirs = FileHistoryProvider(str(tmp_path / "files"))
    assert run(steps(history)) == run(steps(theirs))


ODD = [
    said("user", "nul \0 ü"),
    said("user", "with more", author_name="me", additional_properties={"k": [None, {"n": 1}]}),
    Message(
        "assistant",
        [
            Content.from_text_reasoning(text="hm"),
            Content.from_text("a"),
            Content.from_text("b"),
            Content.from_function_call(call_id="c", name="f", arguments={"a": [1]}),
        ],
    ),
    Message("tool", [Content.from_function_result(call_id="c", result="x")]),
    Message("user", [Content.from_data(b"\x00\xff", "image/png")]),
    Message("assistant", []),
]


@pytest.mark.parametrize("n", range(len(ODD)))
def test_a_message_comes_back_equal(history: BacktrailHistoryProvider, n: int) -> None:
    """Whatever its contents are; and shares nothing with what was given."""
    before = ODD[n].to_dict()
    run(history.save_messages("a", [ODD[n]]))
    found = run(history.get_messages("a"))
    assert rows(found) == [before]
    found[0].additional_properties["mine"] = 1
    assert rows(run(history.get_messages("a"))) == [before]


def test_undo_and_fork(history: BacktrailHistoryProvider) -> None:
    """What was taken back is no message; a fork goes on by the id of its session."""
    run(history.save_messages("a", [said("user", "1"), said("assistant", "2")]))
    run(history.save_messages("a", [said("user", "3"), said("assistant", "4")]))
    own = history.open("a")
    fork = own.fork()
    own.undo()
    assert [m.text for m in run(history.get_messages("a"))] == ["1", "2"]
    run(history.save_messages(fork.id, [said("user", "5")]))
    assert [m.text for m in run(history.get_messages(fork.id))] == ["1", "2", "3", "4", "5"]
    assert [m.text for m in run(history.get_messages("a"))] == ["1", "2"]


def test_a_session_of_another_origin_is_read(url: str) -> None:
    """Messages of other formats are messages here."""
    with open_store(url) as store:
        with Session.create(store, "mixed") as own:
            own.append({"role": "user", "content": "list"})
            call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
            own.append({"role": "assistant", "content": "well", "tool_calls": [call]})
            own.append({"role": "tool", "tool_call_id": "c1", "content": "a.txt"})
        found = run(BacktrailHistoryProvider(store).get_messages("mixed"))
    assert [m.role for m in found] == ["user", "assistant", "tool"]
    assert [c.type for c in found[1].contents] == ["text", "function_call"]


def test_a_deleted_session_is_an_error_and_then_a_new_one(url: str) -> None:
    """The save that hits it names the session; the next one begins anew."""
    with open_store(url) as store:
        history = BacktrailHistoryProvider(store)
        run(history.save_messages("gone", [said("user", "1")]))
        store.delete("gone")
        with pytest.raises(NotFound, match="gone"):
            run(history.save_messages("gone", [said("user", "2")]))
        run(history.save_messages("gone", [said("user", "2")]))
        assert [m.text for m in run(history.get_messages("gone"))] == ["2"]


WRITER = """
import asyncio, sys
from agent_framework import Message
from backtrail.adapters.agent_framework import BacktrailHistoryProvider
async def main():
    history = BacktrailHistoryProvider(sys.argv[1])
    for n in range(20):
        text = f"{sys.argv[2]}-{n}"
        await history.save_messages("s", [Message("user", [text]), Message("assistant", [text])])
asyncio.run(main())
"""


def test_processes_at_once_lose_nothing(disk_url: str) -> None:
    """Three writers of one session: every batch is there, and whole."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, disk_url, str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0] * 3
    history = BacktrailHistoryProvider(disk_url)
    texts = [m.text for m in run(history.get_messages("s"))]
    assert texts[0::2] == texts[1::2] and len(set(texts)) == 60
    history.close()


# --- checkpoints -------------------------------------------------------------------------


@dataclass
class Mine:
    """A class of the user's."""

    n: int
    deep: tuple[int, ...]


@pytest.fixture
def storage(url: str) -> Iterator[BacktrailCheckpointStorage]:
    """The storage on each store."""
    made = BacktrailCheckpointStorage(url, types=[Mine])
    yield made
    made.close()


def checkpoint(n: int, workflow: str = "w", **fields: Any) -> WorkflowCheckpoint:
    """A checkpoint."""
    at = datetime(2026, 1, 1, 0, 0, n, tzinfo=UTC).isoformat()
    return WorkflowCheckpoint(workflow, "hash", checkpoint_id=f"c{n}", timestamp=at, **fields)


def test_it_keeps_checkpoints_as_the_storage_in_memory_does(
    storage: BacktrailCheckpointStorage,
) -> None:
    """Saved, saved again, listed, latest by time, deleted."""

    async def steps(storage: Any) -> list[Any]:
        seen: list[Any] = []
        for n in (3, 1, 2):
            seen.append(await storage.save(checkpoint(n, state={"n": n})))
        await storage.save(checkpoint(9, "other"))
        await storage.save(checkpoint(1, state={"n": "again"}))
        seen.append(await storage.load("c1"))
        for name in ("w", "other", "none"):
            seen.append(await storage.list_checkpoints(workflow_name=name))
            seen.append(await storage.list_checkpoint_ids(workflow_name=name))
            seen.append(await storage.get_latest(workflow_name=name))
        seen.append(await storage.delete("c3"))
        seen.append(await storage.delete("c3"))
        seen.append(await storage.get_latest(workflow_name="w"))
        with pytest.raises(WorkflowCheckpointException):
            await storage.load("c3")
        return seen

    assert run(steps(storage)) == run(steps(InMemoryCheckpointStorage()))


def test_values_of_a_checkpoint_come_back_equal(storage: BacktrailCheckpointStorage) -> None:
    """Messages, named classes, dates, sets, bytes, other keys; nothing is shared."""
    state = {
        "mine": Mine(1, (2, 3)),
        "at": datetime(2026, 1, 2),
        "set": {1, 2},
        "bytes": b"\x00",
        "keys": {1: "a"},
        "nul": "\0",
    }
    message = WorkflowMessage(data=Mine(4, ()), source_id="a", target_id="b")
    given = checkpoint(1, state=state, messages={"a": [message]})
    run(storage.save(given))
    found = run(storage.load("c1"))
    assert found == given
    found.state["mine"].n = 9
    assert run(storage.load("c1")) == given


def test_what_cannot_be_stored_exactly_is_refused(url: str) -> None:
    """A class that was not named, when it is saved; the error names workflow and checkpoint."""
    storage = BacktrailCheckpointStorage(url)
    with pytest.raises(WorkflowCheckpointException, match=r"c1 of workflow w.*types=\[Mine\]"):
        run(storage.save(checkpoint(1, state={"mine": Mine(1, ())})))
    storage.close()


def test_another_process_finds_a_checkpoint_by_its_id_alone(url: str) -> None:
    """Whatever workflow it is of."""
    with open_store(url) as store:
        run(BacktrailCheckpointStorage(store).save(checkpoint(1)))
        run(BacktrailCheckpointStorage(store).save(checkpoint(2, "other")))
        assert run(BacktrailCheckpointStorage(store).load("c2")).workflow_name == "other"
