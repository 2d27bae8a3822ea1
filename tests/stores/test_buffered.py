"""What a buffer promises beyond the contract: ids that stay, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from backtrail import NewEvent, NotFound, SessionInfo, StoreFailed, open_store
from backtrail.stores import Buffered
from backtrail.stores.batches import Call, Outcome
from backtrail.stores.buffered import OnError
from backtrail.stores.wrapper import Wrapper


class Full(Wrapper):
    """A store that refuses for a while: before it writes, or as a sync fails, after that."""

    refuses: Literal["", "before", "after"] = ""

    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        outcomes = [] if self.refuses == "before" else self.inner.append_each(calls)
        return [StoreFailed("the disk is full")] * len(calls) if self.refuses else outcomes


def put(store: Buffered, *numbers: int, session_id: str = "s") -> list[str]:
    """Append events one by one; their ids."""
    new = [NewEvent("user_message", {"n": number}) for number in numbers]
    return [store.append(session_id, [event])[0].id for event in new]


def stored(store: Buffered, session_id: str = "s") -> list[int]:
    return [event.data["n"] for event in store.read(session_id)]


def test_the_id_that_append_returns_is_the_one_that_is_stored(url: str) -> None:
    """Whether one event is written by itself, or several together."""
    with Buffered(open_store(url), interval=60) as store:
        store.create(SessionInfo("s"))
        ids = []
        for numbers in ((1,), (2,), (3, 4), (5,)):
            ids += put(store, *numbers)
            store.flush()
        assert [event.id for event in store.read("s")] == ids


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_full_disk_refuses_is_tried_again_and_stored_once(
    url: str, when: Literal["before", "after"]
) -> None:
    """In its order, also where it was written and not acknowledged."""
    inner = Full(open_store(url))
    with Buffered(inner, interval=60) as store:
        store.create(SessionInfo("s"))
        put(store, 1)
        store.flush()
        for numbers in ((2,), (3, 4)):
            inner.refuses = when
            put(store, *numbers)
            with pytest.raises(StoreFailed, match="full"):
                store.flush()
            inner.refuses = ""
        put(store, 5)
        assert stored(store) == [1, 2, 3, 4, 5]
        assert (store.counters["failed"], store.counters["dropped"]) == (2, 0)


def test_a_session_that_is_gone_loses_its_appends_and_no_other_does(url: str) -> None:
    """The error comes with the next call, once."""
    inner = open_store(url)
    with Buffered(inner, interval=60) as store:
        for id in "st":
            store.create(SessionInfo(id))
        inner.delete("t")
        put(store, 1)
        put(store, 2, 3, session_id="t")
        put(store, 4)
        with pytest.raises(NotFound):
            store.flush()
        assert stored(store) == [1, 4]
        assert store.counters["dropped"] == 2


@pytest.mark.parametrize("kind", ["record", "called"])
def test_errors_are_only_counted_or_given_to_a_function(url: str, kind: str) -> None:
    """No call raises them then."""
    told: list[Exception] = []
    on_error: OnError = "record" if kind == "record" else told.append
    inner = open_store(url)
    with Buffered(inner, interval=60, on_error=on_error) as store:
        for id in "st":
            store.create(SessionInfo(id))
        inner.delete("t")
        put(store, 1, session_id="t")
        put(store, 2)
        assert stored(store) == [2]
        assert store.counters["dropped"] == 1
    assert [type(error) for error in told] == ([] if kind == "record" else [NotFound])


def test_one_event_that_is_refused_takes_no_neighbour_with_it(url: str) -> None:
    """Where a batch cannot be stored as a whole, each of its appends is tried by itself."""

    class Picky(Wrapper):
        def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
            bad = [any(draft.data["n"] == 3 for draft in call.batch) for call in calls]
            done = iter(
                self.inner.append_each([c for c, b in zip(calls, bad, strict=True) if not b])
            )
            return [NotFound("no") if one else next(done) for one in bad]

    with Buffered(Picky(open_store(url)), interval=60, on_error="record") as store:
        store.create(SessionInfo("s"))
        put(store, 1, 2, 3, 4)
        assert stored(store) == [1, 2, 4]
        assert store.counters["dropped"] == 1
