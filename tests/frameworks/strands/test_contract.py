"""What Strands expects of a session repository and of a storage, on every store."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from strands.session import FileSessionManager
from strands.storage import InMemoryStorage, Storage
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from backtrail.adapters.strands import BacktrailSessionRepository, BacktrailStorage


@pytest.fixture
def repository(url: str) -> Iterator[BacktrailSessionRepository]:
    """The repository on each store."""
    made = BacktrailSessionRepository(url)
    yield made
    made.close()


def message(n: int, text: str = "hi", **fields: Any) -> SessionMessage:
    """A message under a number."""
    said: Any = {"role": "assistant" if n % 2 else "user", "content": [{"text": f"{text} {n}"}]}
    return SessionMessage(said, n, created_at=f"c{n}", updated_at=f"u{n}", **fields)


def started(repository: Any, *agents: str) -> None:
    """A session with agents."""
    repository.create_session(Session("s", SessionType.AGENT))
    for name in agents:
        repository.create_agent("s", SessionAgent(name, {}, {}))


def outcome(act: Callable[[], Any]) -> Any:
    """What a call gave, or the kind of its error."""
    try:
        return copy.deepcopy(act())
    except SessionException:
        return "SessionException"


def steps(repository: Any) -> list[Any]:
    """The same calls on any repository, and what they gave."""
    agent = SessionAgent("a", {"k": [1]}, {"c": 1}, {"i": 1}, "ca", "ua")
    calls: list[Callable[[], Any]] = [
        lambda: repository.read_session("s"),
        lambda: repository.create_session(Session("s", SessionType.AGENT, "c", "u")).session_id,
        lambda: repository.create_session(Session("s", SessionType.AGENT)),
        lambda: repository.read_session("s").session_id,
        lambda: repository.read_agent("s", "a"),
        lambda: repository.update_agent("s", agent),
        lambda: repository.create_agent("s", agent),
        lambda: repository.read_agent("s", "a").state,
        lambda: repository.update_agent("s", SessionAgent("a", {"k": 2}, {}, {}, "new", "new")),
        lambda: (lambda found: (found.state, found.created_at))(repository.read_agent("s", "a")),
        lambda: repository.list_messages("s", "a"),
        lambda: [repository.create_message("s", "a", message(n)) for n in range(5)],
        lambda: repository.list_messages("s", "a"),
        lambda: repository.list_messages("s", "a", limit=2),
        lambda: repository.list_messages("s", "a", limit=2, offset=3),
        lambda: repository.list_messages("s", "a", offset=4),
        lambda: repository.list_messages("s", "a", limit=9, offset=9),
        lambda: repository.read_message("s", "a", 2),
        lambda: repository.read_message("s", "a", 9),
        lambda: repository.update_message("s", "a", message(9)),
        lambda: repository.create_agent("s", SessionAgent("b", {}, {})),
        lambda: repository.create_message("s", "b", message(0, "of b")),
        lambda: repository.list_messages("s", "b"),
        lambda: repository.update_message("s", "a", message(2, "changed")),
        lambda: repository.read_message("s", "a", 2).message,
        lambda: repository.read_message("s", "a", 2).created_at,
        lambda: [one.message_id for one in repository.list_messages("s", "a")],
        lambda: repository.delete_session("s"),
        lambda: repository.read_session("s"),
        lambda: repository.delete_session("s"),
    ]
    return [outcome(call) for call in calls]


def test_it_answers_as_the_file_manager_does(
    repository: BacktrailSessionRepository, tmp_path: Path
) -> None:
    """Order, limits, missing and double things are those of `FileSessionManager`."""
    theirs = FileSessionManager("other", storage_dir=str(tmp_path / "files"))
    assert steps(repository) == steps(theirs)


def test_any_message_comes_back_equal(repository: BacktrailSessionRepository) -> None:
    """Bytes, NUL, other types; and what is read shares nothing with what was given."""
    said: Any = {
        "role": "user",
        "content": [
            {"image": {"format": "png", "source": {"bytes": b"\x00\xff"}}},
            {
                "toolResult": {
                    "toolUseId": "t",
                    "status": "success",
                    "content": [{"json": {"n": 1}}],
                }
            },
            {"text": "nul \0 ü"},
        ],
    }
    odd: Any = {
        "role": "user",
        "content": [{"text": "x"}],
        "metadata": {"at": datetime(2026, 1, 2)},
    }
    started(repository, "a")
    for n, one in enumerate((said, odd)):
        given = SessionMessage(copy.deepcopy(one), n)
        repository.create_message("s", "a", given)
        given.message["content"].clear()
        found = repository.read_message("s", "a", n)
        assert found is not None and found.message == one
        found.message["content"].clear()
        assert repository.list_messages("s", "a", offset=n)[0].message == one


def test_the_state_of_an_agent_comes_back_equal(repository: BacktrailSessionRepository) -> None:
    """Bytes and what else an agent keeps."""
    state = {"b": b"\x00", "n": None, "deep": [{"k": (1, 2)}], "text": "\0"}
    started(repository)
    agent = SessionAgent("ü/a b", state, {"m": [1]}, {"x": {}}, "c", "u")
    repository.create_agent("s", agent)
    assert repository.read_agent("s", "ü/a b") == agent


def test_a_second_writer_gets_an_error(repository: BacktrailSessionRepository) -> None:
    """Another message under a number that is there: refused, and the first stays."""
    started(repository, "a")
    first = message(0, "first")
    repository.create_message("s", "a", first)
    repository.create_message("s", "a", first)
    with pytest.raises(SessionException, match=r"Message 0 of agent a in session s"):
        repository.create_message("s", "a", message(0, "second"))
    assert repository.list_messages("s", "a") == [first]


def test_threads_at_once_lose_nothing(repository: BacktrailSessionRepository) -> None:
    """For each number one of many writers wins, and only that one is told so."""
    started(repository, "a")
    won: list[tuple[int, str]] = []

    def write(name: str) -> None:
        for n in range(8):
            try:
                repository.create_message("s", "a", message(n, name))
                won.append((n, name))
            except SessionException:
                continue

    threads = [threading.Thread(target=write, args=(f"w{k}",)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = repository.list_messages("s", "a")
    assert [(m.message_id, m.message["content"][0]["text"]) for m in found] == [
        (n, f"{name} {n}") for n, name in sorted(won)
    ]
    assert len(found) == 8


WRITER = """
import sys
from strands.types.exceptions import SessionException
from strands.types.session import SessionMessage
from backtrail.adapters.strands import BacktrailSessionRepository
repository = BacktrailSessionRepository(sys.argv[1])
done = 0
while done < 15:
    n = len(repository.list_messages("s", "a"))
    said = {"role": "user", "content": [{"text": f"{sys.argv[2]}-{done}"}]}
    try:
        repository.create_message("s", "a", SessionMessage(said, n))
        done += 1
    except SessionException:
        pass
"""


def test_processes_at_once_lose_nothing(disk_url: str) -> None:
    """Three writers that try again after an error: each message is there once."""
    repository = BacktrailSessionRepository(disk_url)
    started(repository, "a")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, disk_url, str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0] * 3
    found = [m.message["content"][0]["text"] for m in repository.list_messages("s", "a")]
    assert sorted(found) == sorted(f"{w}-{n}" for w in range(3) for n in range(15))
    repository.close()


def test_what_is_redacted_is_gone(disk_url: str, tmp_path: Path) -> None:
    """The new words are read; of the old ones no file of the store has a byte."""
    repository = BacktrailSessionRepository(disk_url)
    started(repository, "a")
    repository.create_message("s", "a", message(0, "topsecretword"))
    repository.create_message("s", "a", message(1))
    redacted = message(0, "topsecretword")
    redacted.redact_message = {"role": "user", "content": [{"text": "[redacted]"}]}
    repository.update_message("s", "a", redacted)
    found = repository.read_message("s", "a", 0)
    assert found is not None and found.to_message()["content"] == [{"text": "[redacted]"}]
    assert [m.message_id for m in repository.list_messages("s", "a")] == [0, 1]
    repository.close()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"topsecretword" not in path.read_bytes()


def test_numbers_are_used_again_after_a_rewind(repository: BacktrailSessionRepository) -> None:
    """What was taken back is no message; undo brings the old one back."""
    started(repository, "a")
    for n in range(4):
        repository.create_message("s", "a", message(n))
    own = repository.open("s")
    own.undo()
    assert [m.message_id for m in repository.list_messages("s", "a")] == [0, 1]
    repository.create_message("s", "a", message(2, "other"))
    found = repository.read_message("s", "a", 2)
    assert found is not None and found.message["content"] == [{"text": "other 2"}]
    assert [m.message_id for m in repository.list_messages("s", "a")] == [0, 1, 2]


# --- storage -----------------------------------------------------------------------------


@pytest.fixture
def storage(url: str) -> Iterator[BacktrailStorage]:
    """The storage on each store."""
    made = BacktrailStorage(url)
    yield made
    made.close()


def test_it_is_a_storage_of_strands(storage: BacktrailStorage) -> None:
    """The runtime-checkable protocol holds."""
    assert isinstance(storage, Storage)


def test_it_keeps_bytes_as_the_storage_in_memory_does(storage: BacktrailStorage) -> None:
    """Written, overwritten, listed, searched, deleted."""

    async def steps(storage: Any) -> list[Any]:
        seen: list[Any] = [await storage.read("none"), await storage.list("")]
        await storage.delete("none")
        for key in ("b/2", "b/10", "a b/ü.json", "b", "/c//d/"):
            await storage.write(key, key.encode())
        await storage.write("b/2", b"\x00\xff\xfe")
        await storage.write("empty", b"")
        for key in ("b/2", "b/10", "a b/ü.json", "b", "c/d", "empty"):
            seen.append(await storage.read(key))
        for prefix in ("", "b", "b/", "a ", "none"):
            seen.append(await storage.list(prefix))
        await storage.write("doc", b"the quick brown fox")
        seen.append([hit.key for hit in await storage.search("quick fox")])
        await storage.delete("b/2")
        seen += [await storage.read("b/2"), await storage.list("b")]
        await storage.write("b/2", b"again")
        seen.append(await storage.read("b/2"))
        for key in ("", "..", "a\\b", "a/../b"):
            with pytest.raises(StorageError):
                await storage.write(key, b"")
        return seen

    assert asyncio.run(steps(storage)) == asyncio.run(steps(InMemoryStorage()))
