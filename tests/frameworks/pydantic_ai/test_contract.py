"""What pydantic-ai expects of a conversation store, on every store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage

from backtrail import open_store
from backtrail.adapters.pydantic_ai import BacktrailConversationStore


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    return asyncio.run(work)


@pytest.fixture
def store(url: str) -> Iterator[BacktrailConversationStore]:
    """The store on each of ours."""
    made = BacktrailConversationStore(url)
    yield made
    made.close()


def said(n: int) -> list[ModelMessage]:
    """One turn."""
    return [
        ModelRequest(
            parts=[UserPromptPart(f"ask {n}", timestamp=datetime(2026, 1, 1, tzinfo=UTC))]
        ),
        ModelResponse(parts=[TextPart(f"answer {n}")], timestamp=datetime(2026, 1, 1, tzinfo=UTC)),
    ]


async def steps(store: ConversationStore, seed: int) -> list[Any]:
    """A random history of saves, branches, forks, stale writers and deletes; what it gave."""
    draw = random.Random(seed)
    seen: list[Any] = []
    held: dict[str, Conversation] = {}
    ids = ["c0", "c1", "user:2", "ü/3"]
    entries: list[str] = []

    async def attempt(work: Coroutine[Any, Any, Any]) -> Any:
        try:
            found = await work
        except (UserError, LookupError) as error:
            seen.append(type(error).__name__)
            return None
        seen.append("ok")
        return found

    for n in range(40):
        name = draw.choice(ids)
        act = draw.choice(
            ["load", "new", "save", "save", "save", "rewrite", "branch", "fork", "del"]
        )
        scope = draw.choice([None, None, "s1"])
        if act == "load":
            loaded = await store.load(name, scope=scope, limit=draw.choice([None, None, 0, 1, 3]))
            seen.append(None if loaded is None else loaded.messages)
            if loaded is not None:
                held[name] = loaded
        elif act == "new":
            held[name] = Conversation(conversation_id=name)
        elif act in ("save", "rewrite") and name in held:
            conversation = held[name]
            if act == "rewrite" and conversation.messages:
                cut = draw.randrange(len(conversation.messages))
                conversation.messages[cut:] = said(1000 + n)
                conversation.new_message_index = None
            else:
                conversation.messages.extend(said(n))
            conversation.usage = RunUsage(requests=n)
            saved = await attempt(store.save(conversation, scope=scope))
            entries += [entry.id for entry in saved or ()]
        elif act == "branch" and name in held:
            at = draw.randrange(4)
            revision = held[name].revision or "none"
            found = await attempt(store.branch(name, at=at, expected_revision=revision))
            held[name] = found or held[name]
        elif act == "fork":
            other = draw.choice([*ids, f"f{n}"])
            found = await attempt(
                store.fork(name, at=draw.choice([None, 1, 2]), new_conversation_id=other)
            )
            if found is not None:
                held[other] = found
                ids.append(other)
        elif act == "del" and draw.random() < 0.3:
            await store.delete(name, scope=scope)
        for one in ids:
            history = await store.load_entries(one)
            seen.append(None if history is None else [entry.message for entry in history])
        records = await store.list_conversations(scope=scope)
        seen.append([(r.conversation_id, r.usage, r.scope, len(r.branches)) for r in records])
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_are_as_in_memory(store: BacktrailConversationStore, seed: int) -> None:
    """Whatever is done, in whatever order, the outcomes and what is read are the same."""
    assert run(steps(store, seed)) == run(steps(InMemoryConversationStore(), seed))


ODD: list[ModelMessage] = [
    ModelRequest(parts=[UserPromptPart(["see", BinaryContent(b"\xff", media_type="text/pdf")])]),
    ModelResponse(parts=[ThinkingPart("hm", signature="sig"), ToolCallPart("f", {"a": 1}, "c1")]),
    ModelRequest(parts=[ToolReturnPart("f", {"at": datetime(2026, 1, 2), "set": {1, 2}}, "c1")]),
    ModelRequest(parts=[ToolReturnPart("f", (1, (2, b"\x00")), "c1")]),
    ModelRequest(parts=[ToolReturnPart("f", {1: "a", "b": float("inf")}, "c1")]),
    ModelRequest(parts=[UserPromptPart("nul \0 ü")], metadata={"k": [None, {"n": 1}]}),
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(ODD)))
def test_a_message_comes_back_equal(store: BacktrailConversationStore, n: int) -> None:
    """Bytes, thoughts, dates, sets, tuples and other keys; nothing is shared with the caller."""

    async def work() -> None:
        conversation = Conversation(conversation_id="c", messages=[ODD[n]])
        await store.save(conversation)
        first = await store.load("c")
        assert first is not None and first.messages == [ODD[n]]
        first.messages[0].parts = []
        again = await store.load("c")
        assert again is not None and again.messages == [ODD[n]]

    run(work())


def test_a_stale_save_is_refused(store: BacktrailConversationStore) -> None:
    """The second of two that loaded the same conversation; nothing of it is left behind."""

    async def work() -> None:
        await store.save(Conversation(conversation_id="c", messages=said(1)))
        one, two = await store.load("c"), await store.load("c")
        assert one is not None and two is not None
        one.messages += said(2)
        two.messages += said(3)
        await store.save(one)
        with pytest.raises(ConversationConflict):
            await store.save(two)
        found = await store.load("c")
        assert found is not None and found.messages == said(1) + said(2)

    run(work())


def test_saves_at_once_let_one_win(store: BacktrailConversationStore) -> None:
    """Of many writers exactly one succeeds at a time; retries lose nothing."""

    async def work() -> None:
        await store.save(Conversation(conversation_id="c"))

        async def add(n: int) -> None:
            while True:
                conversation = await store.load("c")
                assert conversation is not None
                conversation.messages += said(n)
                try:
                    await store.save(conversation)
                    return
                except ConversationConflict:
                    await asyncio.sleep(0.001)

        await asyncio.gather(*(add(n) for n in range(6)))
        found = await store.load("c")
        assert found is not None and len(found.messages) == 12
        asks = [str(part.content) for m in found.messages[::2] for part in m.parts]  # type: ignore[union-attr]
        assert sorted(asks) == sorted(f"ask {n}" for n in range(6))

    run(work())


def test_primitives_read_without_having_written(url: str) -> None:
    """Another process finds an entry whose conversation it was not told."""
    with open_store(url) as place:
        first = BacktrailConversationStore(place)
        saved = run(first.save(Conversation(conversation_id="c", messages=said(1))))
        other = BacktrailConversationStore(place)
        assert run(other.read_entry(saved[1].id)).message == said(1)[1]
        assert [e.id for e in run(other.read_history(saved[1].id))] == [e.id for e in saved]
        with pytest.raises(KeyError):
            run(other.read_entry("none"))
        record = ConversationRecord(conversation_id="d", head_id="none")
        with pytest.raises(ConversationConflict):
            run(other.write_record(record, expected_revision=None))
        entry = ConversationEntry(parent_id=None, message=said(2)[0])
        record = ConversationRecord(conversation_id="d", head_id=entry.id)
        run(other.write_record(record, new_entries=[entry], expected_revision=None))
        assert run(other.read_record("d")) == record


def test_a_rewind_makes_a_new_revision(store: BacktrailConversationStore) -> None:
    """What was taken back is gone, a writer that does not know is refused, undo brings it back."""

    async def work() -> None:
        conversation = Conversation(conversation_id="c", messages=said(1))
        await store.save(conversation)
        conversation.messages += said(2)
        await store.save(conversation)
        own = store.open("c")
        own.undo()
        found = await store.load("c")
        assert found is not None and found.messages == said(1)
        conversation.messages += said(3)
        with pytest.raises(ConversationConflict):
            await store.save(conversation)
        own.redo()
        found = await store.load("c")
        assert found is not None and found.messages == said(1) + said(2)
        found.messages += said(4)
        await store.save(found)
        fork = own.fork()
        taken = await store.load(fork.id)
        assert taken is not None and taken.messages == said(1) + said(2) + said(4)
        taken.messages += said(5)
        await store.save(taken)
        again = await store.load(fork.id)
        assert again is not None and again.messages == taken.messages

    run(work())
