"""Stores compared with the plain one: the same calls, the same results, the same errors."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests import postgres

from backtrail.errors import (
    AlreadyExists,
    BacktrailError,
    InvalidData,
    InvalidId,
    NotFound,
)
from backtrail.events import Event, Json, NewEvent, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.stores.memory import MemoryStore

NEW = st.sampled_from(["a", "b", "c", "d", "e"])
WHO = st.integers(1, 20) | st.integers(0, 20)
LOGS = st.sampled_from(["messages", "messages", "messages", "side", "sub/x"])
IDS = st.none() | st.integers(1, 12).map(lambda n: f"i{n}")
TIMES = st.integers(1, 9).map(lambda day: f"2030-01-0{day}T00:00:00.000Z")
KINDS = st.sampled_from(["user_message", "assistant_message", "note", "session_end", "checkpoint"])
NUMBERS = st.integers(0, 12)
DATA = st.fixed_dictionaries(
    {"n": st.integers(0, 99)},
    optional={
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "x"]), st.integers(0, 9)),
        "cost_usd": st.sampled_from([0, 1, 0.5]),
        "reason": st.sampled_from(["end_turn", None]),
        "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    },
)
STRAIGHT = st.builds(NewEvent, kind=KINDS, data=DATA, id=IDS, ts=TIMES)
JUMPING = st.builds(NewEvent, kind=KINDS, data=DATA, id=IDS, ts=TIMES, follows=NUMBERS)
BATCHES = st.lists(STRAIGHT | STRAIGHT | JUMPING, max_size=5)
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

    @initialize(batch=st.lists(STRAIGHT, min_size=2, max_size=6))
    def begin(self, batch: list[NewEvent]) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="backtrail-model-"))
        self.plain: Store = MemoryStore()
        self.store = self.opened()
        for id in ("a", "b"):
            self.create(id, None, "2030-01-01T00:00:00.000Z")
            self.both(lambda store, name=id: store.append(name, batch))  # type: ignore[misc]
        self.both(lambda store: store.append("a", batch, log="side"))
        self.fork("c", 1, 2, "2030-01-02T00:00:00.000Z")

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

    def one(self, who: int) -> str:
        """A session that is there; now and then one that is not."""
        present = sorted(info.id for info in self.plain.sessions())
        return present[who % len(present)] if who and present else "nobody"

    def head(self, id: str) -> int:
        """The head of a session, 0 where there is none."""
        return sum(info.head for info in self.plain.sessions() if info.id == id)

    # --- writing -------------------------------------------------------------------------

    @rule(id=NEW, key=st.sampled_from([None, None, "k1"]), ts=TIMES)
    def create(self, id: str, key: str | None, ts: str) -> None:
        self.both(lambda store: store.create(SessionInfo(id=id, key=key, created_at=ts)))

    @rule(id=NEW, who=WHO, seq=NUMBERS, ts=TIMES)
    def fork(self, id: str, who: int, seq: int, ts: str) -> None:
        parent = self.one(who)
        if seq:
            seq = min(seq, self.head(parent))
        else:
            seq = self.head(parent) + 1
        info = SessionInfo(id, parent_id=parent, relation="fork", fork_seq=seq, created_at=ts)
        self.both(lambda store: store.create(info, base=(parent, seq)), NotFound, AlreadyExists)

    @rule(who=WHO, log=LOGS, batch=BATCHES, reach=st.sampled_from([0, 0, 0, 1]))
    def append(self, who: int, log: str, batch: list[NewEvent], reach: int) -> None:
        id = self.one(who)
        room = self.head(id) + 1 + reach
        given = [e if e.follows is None else replace(e, follows=e.follows % room) for e in batch]
        self.both(lambda store: store.append(id, given, log=log), NotFound, InvalidData)

    @rule(who=WHO, batch=st.lists(STRAIGHT, max_size=3), off=st.sampled_from([0, 0, -1, 1]))
    def append_expecting(self, who: int, batch: list[NewEvent], off: int) -> None:
        id = self.one(who)
        expected = self.head(id) + off
        self.both(lambda store: store.append(id, batch, expected=expected))

    @rule(who=WHO, batch=st.lists(STRAIGHT, max_size=3), log=LOGS)
    def append_something_bad(self, who: int, batch: list[NewEvent], log: str) -> None:
        id = self.one(who)
        bad = [*batch, NewEvent("note", {"x": b"bytes"}), *batch]
        self.both(lambda store: store.append(id, bad, log=log), NotFound, InvalidData)

    @rule(who=WHO)
    def delete(self, who: int) -> None:
        id = self.one(who)
        self.both(lambda store: store.delete(id))

    @rule(who=WHO, log=LOGS)
    def delete_log(self, who: int, log: str) -> None:
        id = self.one(who)
        self.both(lambda store: store.delete(id, log=log), NotFound, InvalidId)

    @rule(who=WHO, log=LOGS, seqs=st.lists(st.integers(1, 6), min_size=1, max_size=3))
    def purge(self, who: int, log: str, seqs: list[int]) -> None:
        id = self.one(who)
        self.both(lambda store: store.purge(id, seqs, log=log))

    @rule(who=WHO, changes=CHANGES)
    def update(self, who: int, changes: dict[str, Json]) -> None:
        id = self.one(who)
        self.both(lambda store: store.update(id, **changes), NotFound, InvalidData, AlreadyExists)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    # --- reading -------------------------------------------------------------------------

    @rule(
        who=WHO,
        log=LOGS,
        after=NUMBERS,
        until=st.none() | NUMBERS,
        limit=st.none() | NUMBERS,
        reverse=st.booleans(),
        kinds=st.none() | st.lists(KINDS, max_size=2),
    )
    def read(
        self,
        who: int,
        log: str,
        after: int,
        until: int | None,
        limit: int | None,
        reverse: bool,
        kinds: list[str] | None,
    ) -> None:
        id = self.one(who)
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

    @rule(who=WHO, event=st.integers(1, 13).map(lambda n: f"i{n}"), log=LOGS)
    def find(self, who: int, event: str, log: str) -> None:
        id = self.one(who)
        self.both(lambda store: store.find(id, event, log=log))

    @rule(who=WHO, until=st.none() | NUMBERS)
    def history(self, who: int, until: int | None) -> None:
        id = self.one(who)
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


class PostgresMachine(StoreMachine):
    def opened(self) -> Store:
        return open_store(postgres.url_for(self.place))


STEPS = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FEWER = settings(STEPS, max_examples=12, phases=(Phase.explicit, Phase.generate))


# A pass takes seconds; the time is for making a failing case small.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "machine",
    [SQLiteMachine, JSONLMachine, MemoryMachine, PostgresMachine],
    ids=["sqlite", "jsonl", "memory", "postgres"],
)
def test_store_behaves_like_the_plain_one(machine: type[StoreMachine]) -> None:
    """Any sequence of calls gives the same results and errors as on the memory store."""
    case = machine.TestCase
    # Each call is a round trip.
    case.settings = FEWER if machine is PostgresMachine else STEPS
    case("runTest").runTest()
