"""Stores compared with the plain one: the same calls, the same results, the same errors."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from backtrail.errors import (
    AlreadyExists,
    BacktrailError,
    Conflict,
    InvalidData,
    InvalidId,
    NotFound,
)
from backtrail.events import Event, Json, NewEvent, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.stores.memory import MemoryStore

SESSIONS = st.sampled_from(["a", "b", "c", "d"])
LOGS = st.sampled_from(["messages", "messages", "messages", "side", "sub/x"])
IDS = st.sampled_from([None, None, "i1", "i2", "i3", "i4"])
TIMES = st.integers(1, 9).map(lambda day: f"2030-01-0{day}T00:00:00.000Z")
KINDS = st.sampled_from(["user_message", "assistant_message", "note", "session_end", "checkpoint"])
NUMBERS = st.integers(0, 12)
DATA = st.fixed_dictionaries(
    {},
    optional={
        "message": st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=3)}),
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "x"]), st.integers(0, 9)),
        "cost_usd": st.sampled_from([0, 1, 0.5]),
        "reason": st.sampled_from(["end_turn", None]),
        "bad": st.sampled_from([1, "\u2028", 1, 1, 1, 1, 1, b"bytes"]),
    },
)
EVENTS = st.builds(
    NewEvent,
    kind=KINDS,
    data=DATA,
    id=IDS,
    follows=st.none() | st.none() | st.none() | NUMBERS,
    ts=TIMES,
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "title": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
        "key": st.sampled_from([None, "k1", "k2"]),
        "tags": st.sampled_from([["t"], ["t", "u"], {"t": False}, "bad"]),
        "metadata": st.sampled_from([{"a": 1}, {"a": None}, {"b": {"c": []}}, 5]),
        "nonsense": st.just(1),
    },
)


def shown(value: Json) -> Json:
    """A result with made-up ids left out, and orders that the contract leaves open."""
    if isinstance(value, Event):
        return value if value.id.startswith("i") else replace(value, id="made up")
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value


class StoreMachine(RuleBasedStateMachine):
    """Drives a store and the plain store side by side."""

    scheme: ClassVar[str]

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="backtrail-model-"))
        self.plain: Store = MemoryStore()
        self.store = self.opened()

    def opened(self) -> Store:
        return open_store(self.scheme.format(place=self.place))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.place)

    def both(self, call: Callable[[Store], Json], *either: type[BacktrailError]) -> None:
        """Make a call on both stores; the results or the types of errors are the same.

        A call with two faults may raise for either of them.
        """
        results: list[Json] = []
        for store in (self.plain, self.store):
            try:
                results.append(shown(call(store)))
            except BacktrailError as error:
                results.append(type(error))
        if not all(result in either for result in results if isinstance(result, type)):
            either = ()
        both_refuse = all(isinstance(result, type) for result in results)
        assert results[1] == results[0] or (either and both_refuse)

    # --- writing -------------------------------------------------------------------------

    @rule(id=SESSIONS, key=st.sampled_from([None, None, "k1"]), ts=TIMES)
    def create(self, id: str, key: str | None, ts: str) -> None:
        self.both(lambda store: store.create(SessionInfo(id=id, key=key, created_at=ts)))

    @rule(id=SESSIONS, parent=SESSIONS, seq=NUMBERS, ts=TIMES)
    def fork(self, id: str, parent: str, seq: int, ts: str) -> None:
        info = SessionInfo(id, parent_id=parent, relation="fork", fork_seq=seq, created_at=ts)
        self.both(lambda store: store.create(info, base=(parent, seq)), NotFound, AlreadyExists)

    @rule(id=SESSIONS, parent=SESSIONS, ts=TIMES)
    def fork_at_the_head(self, id: str, parent: str, ts: str) -> None:
        infos = [info.head for info in self.plain.sessions() if info.id == parent]
        self.fork(id, parent, infos[0] if infos else 0, ts)

    @rule(id=SESSIONS, log=LOGS, batch=st.lists(EVENTS, max_size=5))
    def append(self, id: str, log: str, batch: list[NewEvent]) -> None:
        self.both(lambda store: store.append(id, batch, log=log), NotFound, InvalidData)

    @rule(id=SESSIONS, batch=st.lists(EVENTS, max_size=3), expected=NUMBERS)
    def append_expecting(self, id: str, batch: list[NewEvent], expected: int) -> None:
        self.both(
            lambda store: store.append(id, batch, expected=expected),
            NotFound,
            InvalidData,
            Conflict,
        )

    @rule(id=SESSIONS, batch=st.lists(EVENTS.map(lambda e: replace(e, follows=None)), min_size=1))
    def append_straight(self, id: str, batch: list[NewEvent]) -> None:
        self.both(lambda store: store.append(id, batch), NotFound, InvalidData)

    @rule(id=SESSIONS)
    def delete(self, id: str) -> None:
        self.both(lambda store: store.delete(id))

    @rule(id=SESSIONS, log=LOGS)
    def delete_log(self, id: str, log: str) -> None:
        self.both(lambda store: store.delete(id, log=log), NotFound, InvalidId)

    @rule(id=SESSIONS, log=LOGS, seqs=st.lists(NUMBERS, max_size=3))
    def purge(self, id: str, log: str, seqs: list[int]) -> None:
        self.both(lambda store: store.purge(id, seqs, log=log))

    @rule(id=SESSIONS, changes=CHANGES)
    def update(self, id: str, changes: dict[str, Json]) -> None:
        self.both(lambda store: store.update(id, **changes), NotFound, InvalidData, AlreadyExists)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    # --- reading -------------------------------------------------------------------------

    @rule(
        id=SESSIONS,
        log=LOGS,
        after=NUMBERS,
        until=st.none() | NUMBERS,
        limit=st.none() | NUMBERS,
        reverse=st.booleans(),
        kinds=st.none() | st.lists(KINDS, max_size=2),
    )
    def read(
        self,
        id: str,
        log: str,
        after: int,
        until: int | None,
        limit: int | None,
        reverse: bool,
        kinds: list[str] | None,
    ) -> None:
        self.both(
            lambda store: list(
                store.read(
                    id,
                    log=log,
                    after=after,
                    until=until,
                    limit=limit,
                    reverse=reverse,
                    kinds=kinds,
                )
            )
        )

    @rule(id=SESSIONS, event=st.sampled_from(["i1", "i2", "i3", "none"]), log=LOGS)
    def find(self, id: str, event: str, log: str) -> None:
        self.both(lambda store: store.find(id, event, log=log))

    @rule(id=SESSIONS, until=st.none() | NUMBERS)
    def history(self, id: str, until: int | None) -> None:
        self.both(lambda store: store.history(id, until=until))

    @rule(key=st.sampled_from(["k1", "k2"]), tag=st.sampled_from([None, "t"]))
    def select(self, key: str, tag: str | None) -> None:
        self.both(lambda store: store.sessions(key=key, tag=tag))

    @invariant()
    def same_sessions(self) -> None:
        """Every record is the same, and the order is that of the times."""
        if not hasattr(self, "store"):
            return
        mine, plain = self.store.sessions(), self.plain.sessions()
        assert sorted(mine, key=lambda info: info.id) == sorted(plain, key=lambda info: info.id)
        times = [info.updated_at for info in mine]
        assert times == sorted(times, reverse=True)
        for info in plain:
            self.both(lambda store, name=info.id: list(store.read(name)))  # type: ignore[misc]
            self.both(lambda store, name=info.id: store.logs(name))  # type: ignore[misc]

    @rule()
    def verify(self) -> None:
        self.both(lambda store: store.verify())


class SQLiteMachine(StoreMachine):
    scheme = "sqlite:///{place}/x.db"


class JSONLMachine(StoreMachine):
    scheme = "file:{place}/store"


class MemoryMachine(StoreMachine):
    scheme = "memory:{place}"


STEPS = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(
    "machine", [SQLiteMachine, JSONLMachine, MemoryMachine], ids=["sqlite", "jsonl", "memory"]
)
def test_store_behaves_like_the_plain_one(machine: type[StoreMachine]) -> None:
    """Any sequence of calls gives the same results and errors as on the memory store."""
    case = machine.TestCase
    case.settings = STEPS
    case("runTest").runTest()
