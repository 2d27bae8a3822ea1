"""A session from elsewhere appears whole on a disk, or not at all; the rest is in the contract."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backtrail import NewEvent, NotFound, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.stores.adopting import adopt
from backtrail.testing.store.base import child, joined, notes

STORES: dict[str, Callable[[Path], Store]] = {
    "jsonl": lambda place: open_store(f"file:{place}/store"),
    "sqlite": lambda place: open_store(f"sqlite:///{place}/x.db"),
}


@pytest.mark.parametrize("kind", STORES)
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
        # A folder that is no session may stay; it is reported, and used again.
        assert {problem.what for problem in store.verify()} <= {"stray"}
        with pytest.raises(NotFound):
            store.info("s")
        store.adopt(SessionInfo(id="s"), {"messages": notes(3)})
        assert (store.logs("s"), store.info("s").head) == (["messages"], 3)
        assert store.verify() == []


@pytest.mark.parametrize("kind", STORES)
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
