"""Connections that break at any moment of any verb: each is carried out once, or the error says so.

The oracle is the plain store, on which the verb is carried out without a network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests import postgres
from tests.proxy import CUTS, Proxy

from backtrail.events import Event, Json, NewEvent, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.stores.memory import MemoryStore
from backtrail.stores.postgres import appender as appending

TS = "2030-01-01T00:00:00.000Z"
Verb = Callable[[Store, str], Json]


def said(n: int, id: str | None = None, follows: int | None = None) -> NewEvent:
    """An event with a time that both stores note."""
    return NewEvent("user_message", {"n": n}, id=id, follows=follows, ts=TS)


def adopted(store: Store, name: str) -> None:
    """A session from elsewhere."""
    store.adopt(SessionInfo(f"{name}-new", created_at=TS), {"messages": [said(1), said(2)]})


def leased(store: Store, name: str) -> list[Event]:
    """An append of the holder of a lease."""
    with store.lease(name, wait=5):
        return store.append(name, [said(5)])


VERBS: dict[str, Verb] = {
    "append": lambda store, name: store.append(name, [said(5)]),
    "append expected": lambda store, name: store.append(name, [said(5)], expected=4),
    "append given": lambda store, name: store.append(name, [said(5, "mine")]),
    "append known": lambda store, name: store.append(name, [said(5, "e2")]),
    "append batch": lambda store, name: store.append(name, [said(5), said(6), said(7, "g")]),
    "append mixed": lambda store, name: store.append(name, [said(5, "e2"), said(6), said(7)]),
    "append follows": lambda store, name: store.append(name, [said(5, follows=2), said(6)]),
    "append side": lambda store, name: store.append(name, [said(5)], log="side"),
    "append to a fork": lambda store, name: store.append(f"{name}-fork", [said(5), said(6, "e1")]),
    "create": lambda store, name: store.create(SessionInfo(f"{name}-new", created_at=TS)),
    "fork": lambda store, name: store.create(
        SessionInfo(f"{name}-new", created_at=TS), base=(name, 3)
    ),
    "adopt": adopted,
    "update": lambda store, name: store.update(name, title="t", tags=["x"]).title,
    "purge": lambda store, name: store.purge(name, [2]),
    "delete": lambda store, name: store.delete(name),
    "delete log": lambda store, name: store.delete(name, log="old"),
    "note": lambda store, name: store.memory(f"/{name}").write("text"),
    "lease": leased,
}

READS: dict[str, Verb] = {
    "info": lambda store, name: store.info(name).head,
    "read": lambda store, name: list(store.read(name)),
    "find": lambda store, name: store.find(name, "e3"),
    "search": lambda store, name: len(store.search("nothing")),
    "logs": lambda store, name: store.logs(name),
    "sessions": lambda store, name: len(store.sessions(parent=name)),
}


def prepare(store: Store, name: str) -> None:
    """A session with four events, a side log and a fork."""
    store.create(SessionInfo(name, created_at=TS))
    store.append(name, [said(n, f"e{n}") for n in range(1, 5)])
    store.append(name, [said(0)], log="old")
    store.create(SessionInfo(f"{name}-fork", created_at=TS), base=(name, 3))
    # So that the next one is the usual one.
    store.append(f"{name}-fork", [said(4)])


def shown(value: Json) -> Json:
    """A result without ids that were made up."""
    if isinstance(value, Event):
        is_given = value.id in ("mine", "g") or value.id.startswith("e")
        return replace(value, id=value.id if is_given else "made up")
    return [shown(one) for one in value] if isinstance(value, list) else value


def state(store: Store, name: str) -> Json:
    """All that is there of the sessions of one name."""
    infos = sorted(
        (info for info in store.sessions() if info.id.startswith(name)), key=lambda info: info.id
    )
    logs = {
        (info.id, log): shown(list(store.read(info.id, log=log)))
        for info in infos
        for log in store.logs(info.id)
    }
    return infos, logs, store.memory(f"/{name}").read()


def check(cut: str, verb: Verb, place: Path, first: int = 0) -> int:
    """Carry out a verb, cut at its first piece, its second, and so on; how many there were."""
    server = postgres.server()
    with Proxy(server.port) as proxy:
        url = postgres.url_for(place).replace(f":{server.port}", f":{proxy.port}")
        with open_store(postgres.url_for(place)) as direct, open_store(url) as store:
            at = first
            while True:
                name = f"s{at}"
                plain = MemoryStore()
                prepare(plain, name)
                prepare(store, name)
                proxy.arm(cut, at)
                result = shown(verb(store, name))
                proxy.disarm()
                # In any order: what was sent of two threads stands in none.
                assert result == shown(verb(plain, name)), (cut, at)
                assert state(direct, name) == state(plain, name), (cut, at)
                assert direct.verify() == []
                if not proxy.fired:
                    return at
                assert seqs(store.append(f"{name}-fork", [said(9)])) != [0]
                at += 1


def seqs(events: list[Event]) -> list[int]:
    """The numbers of events."""
    return [event.seq for event in events]


# What comes late is waited for.
USUAL = ("append", "append given", "append mixed", "append follows", "fork", "update", "lease")
CASES = [
    pytest.param(
        verb, cut, marks=[pytest.mark.torture] if cut == "late" and verb not in USUAL else []
    )
    for verb in VERBS
    for cut in CUTS
]


@pytest.mark.parametrize(("verb", "cut"), CASES)
def test_a_verb_that_is_cut_is_carried_out_once(verb: str, cut: str, tmp_path: Path) -> None:
    """Whichever piece of it is lost, cut off, or arrives late."""
    assert check(cut, VERBS[verb], tmp_path) > 0


@pytest.mark.parametrize("verb", READS)
def test_a_look_that_is_cut_is_repeated(verb: str, tmp_path: Path) -> None:
    """It shows what is there."""
    for cut in ("before", "reply"):
        assert check(cut, READS[verb], tmp_path / cut) > 0


@pytest.fixture
def without_epoch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A variant that looks without raising the epoch first."""
    monkeypatch.setattr(appending, "RAISE", "SELECT %s::bigint")
    yield


def test_looking_alone_is_not_enough(without_epoch: None, tmp_path: Path) -> None:
    """The broken variant stores an event twice: the check can fail."""
    with pytest.raises(AssertionError):
        # Once what came late is there.
        check_late(tmp_path)


def test_an_append_that_comes_late_is_refused(tmp_path: Path) -> None:
    """A statement that the network held back finds the epoch moved."""
    check_late(tmp_path)


def check_late(place: Path) -> None:
    """Ten appends whose statements arrive after they were tried again."""
    server = postgres.server()
    with Proxy(server.port) as proxy:
        url = postgres.url_for(place).replace(f":{server.port}", f":{proxy.port}")
        with open_store(url) as store:
            store.create(SessionInfo("s"))
            store.append("s", [said(0)])
            for n in range(1, 11):
                proxy.arm("late", 0)
                assert store.append("s", [said(n)])[0].data == {"n": n}
                assert proxy.fired
            time.sleep(3 * proxy.late)
            assert [event.data["n"] for event in store.read("s")] == list(range(11))
            assert store.verify() == []


def test_a_commit_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    """Also if another store raised the epoch before, so that the append took the long way."""
    server = postgres.server()
    with Proxy(server.port) as proxy:
        url = postgres.url_for(tmp_path).replace(f":{server.port}", f":{proxy.port}")
        with open_store(url) as store:
            store.create(SessionInfo("s"))
            store.append("s", [said(0)])
            for n in range(1, 9):
                with psycopg.connect(server.url, autocommit=True) as other:
                    raised = f"UPDATE {postgres.schema_for(tmp_path)}.logs SET epoch = epoch + 1"
                    other.execute(raised.encode())
                # One of the pieces is the commit.
                proxy.arm("late", n)
                assert store.append("s", [said(n)])[0].data == {"n": n}
                proxy.disarm()
                time.sleep(2 * proxy.late)
            assert [event.data["n"] for event in store.read("s")] == list(range(9))
            assert store.verify() == []
