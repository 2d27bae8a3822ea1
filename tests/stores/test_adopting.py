"""A session from elsewhere appears whole or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backtrail import AlreadyExists, InvalidData, InvalidId, NewEvent, NotFound, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.stores.adopting import adopt
from backtrail.stores.buffered import Buffered
from backtrail.stores.memory import MemoryStore
from backtrail.testing.contract_base import child, joined

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda place: MemoryStore(),
    "buffered": lambda place: Buffered(MemoryStore()),
    "jsonl": lambda place: open_store(f"file:{place}/store"),
    "sqlite": lambda place: open_store(f"sqlite:///{place}/x.db"),
}
ON_DISK = ("jsonl", "sqlite")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with STORES[request.param](tmp_path) as opened:
        yield opened


def notes(count: int) -> list[NewEvent]:
    return [NewEvent("note", {"n": n}, id=f"e{n}") for n in range(1, count + 1)]


def test_all_of_it_is_there(store: Store) -> None:
    """Numbers, ids, times, `follows`, side logs, the record and its counts."""
    ts = "2026-01-02T03:04:05.678Z"
    said = {"message": {"role": "user", "content": "hi"}, "format": "openai"}
    main = [
        NewEvent("user_message", said, id="a", ts=ts),
        *notes(700),
        NewEvent("rewound", {}, id="z", follows=1, ts=ts),
    ]
    store.adopt(
        SessionInfo(id="s", title="t", created_at=ts, tags=["x"], metadata={"k": 1}),
        {"subagents/a1": notes(3), "messages": main},
    )
    events = list(store.read("s"))
    assert [event.seq for event in events] == list(range(1, 703))
    assert [event.id for event in events] == [event.id for event in main]
    assert (events[0].ts, events[0].data, events[-1].follows) == (ts, said, 1)
    assert [event.id for event in store.history("s")] == ["a", "z"]
    assert store.logs("s") == ["messages", "subagents/a1"]
    assert [event.id for event in store.read("s", log="subagents/a1")] == ["e1", "e2", "e3"]
    info = store.info("s")
    assert (info.title, info.created_at, info.tags, info.metadata) == ("t", ts, ["x"], {"k": 1})
    assert (info.head, info.message_count, info.turn_count) == (702, 1, 1)
    assert store.append("s", [NewEvent("note", {}, id="next")])[0].seq in (0, 703)
    assert store.find("s", "next").seq == 703
    assert store.verify() == []


def test_an_empty_session(store: Store) -> None:
    """No log at all is an empty main log."""
    store.adopt(SessionInfo(id="s"), {})
    assert (store.info("s").head, store.logs("s")) == (0, ["messages"])


@pytest.mark.parametrize("at", [0, 1, 300, 599])
def test_a_failure_leaves_nothing(store: Store, at: int) -> None:
    """Wherever the events stop coming; the same id can be adopted afterwards."""

    def failing() -> Iterator[NewEvent]:
        yield from notes(at)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        store.adopt(SessionInfo(id="s"), {"side": notes(2), "messages": failing()})
    assert store.sessions() == []
    with pytest.raises(NotFound):
        store.logs("s")
    store.adopt(SessionInfo(id="s"), {"messages": notes(2)})
    assert store.info("s").head == 2


def test_what_is_there_stays(store: Store) -> None:
    """An id or a key in use is refused, and nothing changes."""
    store.create(SessionInfo(id="s", key="k"))
    store.append("s", notes(1))
    store.flush()
    before = store.info("s")
    for info in (SessionInfo(id="s"), SessionInfo(id="t", key="k")):
        with pytest.raises(AlreadyExists):
            store.adopt(info, {"messages": notes(5)})
    assert [info.id for info in store.sessions()] == ["s"]
    assert store.info("s") == before


def test_bad_events_are_refused(store: Store) -> None:
    """Ids that come twice, data that is no JSON, names that are none."""
    twice = [*notes(300), NewEvent("note", {}, id="e1")]
    with pytest.raises(InvalidData):
        store.adopt(SessionInfo(id="s"), {"messages": twice})
        store.flush()
    with pytest.raises(InvalidData):
        store.adopt(SessionInfo(id="s"), {"messages": [NewEvent("note", {"n": float("nan")})]})
    with pytest.raises(InvalidId):
        store.adopt(SessionInfo(id="s"), {"../x": notes(1)})
    with pytest.raises(InvalidId):
        store.adopt(SessionInfo(id="../s"), {"messages": notes(1)})


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_kill_leaves_nothing_to_be_seen(kind: str, tmp_path: Path) -> None:
    """In the middle of the main log, with a side log written; a second try works."""

    def work() -> None:
        def dying() -> Iterator[NewEvent]:
            yield from notes(2000)
            os.kill(os.getpid(), signal.SIGKILL)

        with STORES[kind](tmp_path) as store:
            store.adopt(SessionInfo(id="s"), {"side": notes(500), "messages": dying()})

    assert joined([child(work)]) == [-signal.SIGKILL]
    with STORES[kind](tmp_path) as store:
        assert store.sessions() == []
        # A folder that is no session may stay; it is told, and used again.
        assert {problem.what for problem in store.verify()} <= {"stray"}
        with pytest.raises(NotFound):
            store.info("s")
        store.adopt(SessionInfo(id="s"), {"messages": notes(3)})
        assert (store.logs("s"), store.info("s").head) == (["messages"], 3)
        assert store.verify() == []


@pytest.mark.parametrize("kind", ON_DISK)
def test_others_see_nothing_before_it_is_whole(kind: str, tmp_path: Path) -> None:
    """Another store on the same place, asked while events still come."""
    seen: list[int] = []
    with STORES[kind](tmp_path) as store, STORES[kind](tmp_path) as other:

        def watched() -> Iterator[NewEvent]:
            for event in notes(600):
                if event.id == "e500":
                    seen.append(len(other.sessions()))
                yield event

        store.adopt(SessionInfo(id="s"), {"messages": watched()})
        assert seen == [0]
        assert [info.head for info in other.sessions()] == [600]


def test_the_plain_way_would_be_seen_half_done(tmp_path: Path) -> None:
    """So the tests above can fail: killed at the same place, the plain verbs leave a part."""

    def work() -> None:
        def dying() -> Iterator[NewEvent]:
            yield from notes(2000)
            os.kill(os.getpid(), signal.SIGKILL)

        with STORES["sqlite"](tmp_path) as store:
            adopt(store, SessionInfo(id="s"), {"messages": dying()})

    assert joined([child(work)]) == [-signal.SIGKILL]
    with STORES["sqlite"](tmp_path) as store:
        assert 0 < store.info("s").head < 2000
