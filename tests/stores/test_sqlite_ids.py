"""Ids in SQLite: those that end in their own number are found by it, all others by an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from backtrail.errors import NotFound
from backtrail.events import NewEvent, SessionInfo, mint, number_in, numbered
from backtrail.stores import Store, open_store
from backtrail.stores.base import Durability


@pytest.fixture(params=["written", "synced"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    durability: Durability = request.param
    with open_store(f"sqlite:///{tmp_path}/x.db", durability=durability) as store:
        store.create(SessionInfo("s"))
        yield store


def said(n: int, id: str | None = None) -> NewEvent:
    return NewEvent("user_message", {"n": n}, id=id)


def indexed(place: Path) -> set[int]:
    """The numbers of the events in the index, which is all such a query may look at."""
    connection = apsw.Connection(str(place / "x.db"))
    query = (
        "SELECT key & 4294967295 FROM events INDEXED BY events_id "
        "WHERE substr(id, 29) IS NOT format('%08x', key & 4294967295)"
    )
    try:
        return {seq for (seq,) in connection.execute(query)}
    finally:
        connection.close()


def test_made_up_ids_stay_out_of_the_index(store: Store, tmp_path: Path) -> None:
    """One by one they end in their number; they are UUIDs, and found all the same."""
    store.append("s", [said(0, "mine")])
    made = [store.append("s", [said(n)])[0] for n in range(1, 20)]
    assert indexed(tmp_path) == {1}
    assert [number_in(event.id) for event in made] == [event.seq for event in made]
    assert all(event.id[14] == "7" and event.id[19] == "8" for event in made)
    assert len({event.id[:28] for event in made}) == len(made)
    assert [store.find("s", event.id) for event in made] == made
    assert [store.append("s", [said(99, event.id)])[0] for event in made] == made
    assert store.append("s", [said(1, e.id) for e in made], expected=0) == made
    assert store.info("s").head == 20


def test_id_that_ends_in_another_number(store: Store, tmp_path: Path) -> None:
    """It is indexed, found, and stored once, whether or not that number comes to be."""
    first = store.append("s", [said(1)])[0]
    odd = [numbered(mint()[0], n) for n in (1, 2, 3, 900, 0)]
    stored = [store.append("s", [said(n, id)])[0] for n, id in enumerate(odd)]
    assert indexed(tmp_path) >= {2, 3, 4, 5, 6}
    assert [store.append("s", [said(7, id)])[0] for id in odd] == stored
    assert [store.find("s", id) for id in (first.id, *odd)] == [first, *stored]
    with pytest.raises(NotFound):
        store.find("s", numbered(mint()[0], 1))


def test_given_id_that_ends_in_its_own_number(store: Store, tmp_path: Path) -> None:
    """Whatever made it, it needs no index: a copy of a log does not either."""
    ids = [f"{'é' * 28}{n:08x}" for n in (1, 2, 3)]
    stored = store.append("s", [said(n, id) for n, id in enumerate(ids)])
    assert indexed(tmp_path) == set()
    assert store.append("s", [said(9, id) for id in ids]) == stored
    assert store.find("s", ids[1]) == stored[1]


def test_ids_of_a_fork(store: Store) -> None:
    """A fork knows the shared ids up to its base, the parent's later ones are new to it."""
    events = [store.append("s", [said(n)])[0] for n in range(4)]
    store.create(SessionInfo("f", parent_id="s", relation="fork"), base=("s", 2))
    assert store.append("f", [said(9, events[1].id)]) == [events[1]]
    assert store.append("f", [said(9, events[3].id)])[0].seq == 3
    assert store.find("f", events[3].id).data == {"n": 9}
    assert store.find("s", events[3].id) == events[3]
    with pytest.raises(NotFound):
        store.find("f", events[2].id)
