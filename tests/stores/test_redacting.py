"""Redaction when something is appended."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import InvalidData, NewEvent, Redacting, Session, SessionInfo, open_store
from backtrail.events import Json
from backtrail.stores import Store
from backtrail.stores.buffered import Buffered
from backtrail.stores.memory import MemoryStore
from backtrail.testing import StoreContract

KEY = "sk-ant-api03-" + "a1B2" * 12
MASKED = "[REDACTED:anthropic-key]"


class TestRedactingMemory(StoreContract):
    """Masking changes nothing where there is no secret."""

    persistent = False
    shared = False

    def make(self, place: Path) -> Store:
        return Redacting(MemoryStore())


class TestRedactingSQLite(StoreContract):
    """In front of a database."""

    def make(self, place: Path) -> Store:
        return Redacting(open_store(f"sqlite:///{place}/x.db"))


class TestRedactingJSONL(StoreContract):
    """In front of folders of lines."""

    def make(self, place: Path) -> Store:
        return Redacting(open_store(f"file:{place}/store"))


def test_a_key_is_never_on_the_disk(tmp_path: Path) -> None:
    """Not in a message, a side log, a record or a note; not even for a moment."""
    with Redacting(open_store(f"file:{tmp_path}/store")) as store:
        title, metadata = f"use {KEY}", {"env": [KEY]}
        with Session.create(store, "s", title=title, metadata=metadata) as s:
            s.append({"role": "user", "content": f"my key is {KEY}"})
            s.record("my.kind", {"deep": {"list": [f"export KEY={KEY}"]}})
            s.log("transcript").append({"raw": KEY})
            s.update(title=f"again {KEY}", metadata={"more": KEY})
            assert s.messages()[-1]["content"] == f"my key is {MASKED}"
        store.memory(tmp_path).write(f"# Notes\n{KEY}\n")
        assert store.memory(tmp_path).read() == f"# Notes\n{MASKED}\n"
        assert store.info("s").title == f"again {MASKED}"
        assert store.masked >= 8
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in held
    assert MASKED.encode() in held


def test_append_returns_what_is_stored() -> None:
    """A caller that keeps the event keeps no secret."""
    store = Redacting(MemoryStore())
    store.create(SessionInfo(id="s"))
    given = {"text": KEY}
    (event,) = store.append("s", [NewEvent("note", given, id="e1")])
    assert event.data == {"text": MASKED}
    assert given == {"text": KEY}
    assert store.append("s", [NewEvent("note", given, id="e1")]) == [event]


def test_a_redaction_of_ones_own() -> None:
    """Any function from JSON to JSON will do."""

    def names(value: Json) -> tuple[Json, int]:
        text = str(value.get("text"))
        return {**value, "text": text.replace("Ada", "[name]")}, text.count("Ada")

    store = Redacting(MemoryStore(), redact=lambda v: names(v) if isinstance(v, dict) else (v, 0))
    store.create(SessionInfo(id="s"))
    (event,) = store.append("s", [NewEvent("note", {"text": "Ada and Ada"})])
    assert event.data == {"text": "[name] and [name]"}
    assert store.masked == 2


def test_a_redaction_that_breaks_data_is_refused() -> None:
    """Then nothing is stored, rather than the secret."""
    store = Redacting(MemoryStore(), redact=lambda value: ("gone", 1))
    store.inner.create(SessionInfo(id="s"))
    with pytest.raises(InvalidData, match="redact"):
        store.append("s", [NewEvent("note", {"text": KEY})])
    assert list(store.read("s")) == []


def test_signatures_stay(tmp_path: Path) -> None:
    """A provider refuses what it signed if it was changed."""
    store = Redacting(MemoryStore())
    store.create(SessionInfo(id="s"))
    block = {"type": "thinking", "thinking": f"use {KEY}", "signature": KEY}
    (event,) = store.append("s", [NewEvent("note", {"block": block})])
    assert event.data["block"] == {**block, "thinking": f"use {MASKED}"}


def test_it_may_stand_in_front_of_a_buffer() -> None:
    """What waits in memory is masked already."""
    with Redacting(Buffered(MemoryStore(), interval=60)) as store:
        store.create(SessionInfo(id="s"))
        store.append("s", [NewEvent("note", {"text": KEY})])
        assert [event.data for event in store.read("s")] == [{"text": MASKED}]


def test_an_adopted_session_is_masked_too() -> None:
    """However events come in."""
    store = Redacting(MemoryStore())
    store.adopt(SessionInfo(id="s", title=KEY), {"messages": [NewEvent("note", {"text": KEY})]})
    assert [event.data for event in store.read("s")] == [{"text": MASKED}]
    assert store.info("s").title == MASKED
