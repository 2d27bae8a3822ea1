"""Best effort is the caller's choice: what a failing store does to a session."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from backtrail import Event, NewEvent, Session, Store, StoreFailed
from backtrail.events import MAIN_LOG
from backtrail.stores import KnownIds, open_store
from backtrail.stores.wrapper import Wrapper

from .talking import assistant, kinds, talk, texts, user


class Flaky(Wrapper):
    """A store of another package that is out of order now and then."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.broken = False

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        if self.broken:
            raise StoreFailed("the service does not answer")
        return super().append(session_id, events, log=log, expected=expected, known=known)


@contextmanager
def full_disk(place: Path, room: int = 200) -> Iterator[None]:
    """No file may grow beyond the largest one of `place` and a little `room`."""
    largest = max(path.stat().st_size for path in place.rglob("*") if path.is_file())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_by_default_a_failure_is_raised() -> None:
    """The caller knows that nothing was stored."""
    with open_store("memory:") as inner:
        store = Flaky(inner)
        s = Session.create(store, "s")
        store.broken = True
        with pytest.raises(StoreFailed):
            s.append(user("one"))
        assert s.messages() == []
        assert s.problems == []
        store.broken = False
        s.append(user("two"))
        assert texts(s) == ["two"]


def test_recorded_failures_lose_nothing() -> None:
    """The conversation goes on; when the store is back, everything is stored in order."""
    with open_store("memory:") as inner:
        store = Flaky(inner)
        s = Session.create(store, "s", on_error="record")
        s.append(user("one"))
        store.broken = True
        failed = s.append(assistant("two"), id="two")
        assert failed.seq == 0
        s.append(assistant("two"), id="two")
        s.extend([user("three"), assistant("four")])
        assert texts(s) == ["one", "two", "three", "four"]
        assert [problem.what for problem in s.problems] == ["not saved"] * 3
        assert "does not answer" in s.problems[0].detail
        assert inner.info("s").head == 2
        store.broken = False
        s.append(user("five"))
        assert texts(s) == ["one", "two", "three", "four", "five"]
        with Session.resume(inner, "s") as other:
            assert texts(other) == texts(s)
            assert kinds(other).count("assistant_message") == 2


def test_a_callable_is_refused() -> None:
    """Each time, with the error; the session behaves as with "record"."""
    reported: list[Exception] = []
    with open_store("memory:") as inner:
        store = Flaky(inner)
        s = Session.create(store, "s", on_error=reported.append)
        store.broken = True
        s.append(user("one"))
        s.append(user("two"))
        assert [type(error) for error in reported] == [StoreFailed] * 2
        assert len(s.problems) == 2
        store.broken = False
        s.close()
        assert [e.kind for e in inner.read("s")] == ["session_start", *["user_message"] * 2]


def test_close_saves_what_was_not_saved_or_says_so() -> None:
    """The last chance is taken, and its failure is visible."""
    with open_store("memory:") as inner:
        store = Flaky(inner)
        s = Session.create(store, "s", on_error="record")
        store.broken = True
        s.append(user("one"))
        s.append(user("two"))
        s.close()
        assert (s.problems[-1].what, s.problems[-1].count) == ("lost", 2)
        assert inner.info("s").head == 1


def test_going_back_is_never_best_effort() -> None:
    """A rewind, a checkpoint or a fork that is not stored has not happened."""
    with open_store("memory:") as inner:
        store = Flaky(inner)
        s = Session.create(store, "s", on_error="record")
        events = talk(s, "one", "two")
        store.broken = True
        s.append(user("three"))
        for verb in (lambda: s.rewind(events[0]), s.undo, lambda: s.checkpoint("x"), s.fork):
            with pytest.raises(StoreFailed):
                verb()
        assert texts(s)[-1] == "three"
        store.broken = False
        assert s.undo().events_dropped == 1
        assert texts(s)[-1] == "re: two"
        s.redo()
        assert texts(s)[-1] == "three"
        assert s.checkpoint("x").seq == s.info().head - 1
        assert texts(s.fork()) == texts(s)


def test_the_first_append_after_reopening_may_fail() -> None:
    """What a resumed session owes is not lost with it."""
    with open_store("memory:") as inner:
        store = Flaky(inner)
        events = talk(Session.create(store, "s", system_prompt="P"), "one", "two")
        s = Session.resume(store, "s", at=events[0], on_error="record")
        store.broken = True
        s.append(assistant("again"))
        assert texts(s) == ["P", "one", "again"]
        store.broken = False
        s.append(user("more"))
        assert texts(s) == ["P", "one", "again", "more"]
        assert kinds(s)[-3:] == ["session_resume", "assistant_message", "user_message"]


def test_a_full_disk_loses_nothing(disk_url: str, tmp_path: Path) -> None:
    """A real one: the system refuses, the session goes on, and catches up."""
    with Session.create(disk_url, "s", on_error="record") as s:
        s.append(user("one"))
        s.store.flush()
        with full_disk(tmp_path):
            for number in range(3):
                s.append(user(f"{number} " + "x" * 300_000))
            assert len(s.messages()) == 4
            assert s.problems
        s.append(user("last"))
        shown = s.messages()
        assert len(shown) == 5
    with Session.open(disk_url, "s") as s:
        assert s.messages() == shown
        assert s.store.verify() == []
