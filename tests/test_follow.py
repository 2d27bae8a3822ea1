"""Watching a session: following its log, and listening to what happens in it."""

from __future__ import annotations

import threading

import pytest

from backtrail import Buffered, Closed, Delta, Event, NotFound, Session
from backtrail.stores import open_store

from .talking import Child, assistant, talk, user

WRITER = """
import sys
from backtrail import Session
with Session.open(sys.argv[1], "s") as s:
    for line in sys.stdin:
        s.append({"role": "user", "content": line.strip()})
"""


def test_follow_sees_what_other_processes_append(disk_url: str) -> None:
    """In order, from now on."""
    with Session.create(disk_url, "s") as s, Child(WRITER, disk_url) as writer:
        talk(s, "before")
        following = s.follow()
        for text in ("a", "b"):
            writer.send(text)
        said = []
        for event in following:
            if event.kind == "user_message":
                said.append(event.data["message"]["content"])
            if len(said) == 2:
                break
        assert said == ["a", "b"]


def test_follow_begins_at_the_given_point(url: str) -> None:
    """After a number; 0 is from the beginning."""
    with Session.create(url) as s:
        talk(s, "one", "two")
        following = s.follow(after=0)
        assert [next(following).seq for _ in range(5)] == [1, 2, 3, 4, 5]
        assert next(s.follow(after=3)).seq == 4


def test_follow_ends_with_the_session(url: str) -> None:
    """Quietly, whether the store was closed too or not."""
    with open_store(url) as store:
        for place in (store, url):
            s = Session.open(place, "s")
            seen: list[int] = []
            following = s.follow(after=0)
            thread = threading.Thread(target=lambda f=following, n=seen: n.extend(e.seq for e in f))
            thread.start()
            s.append(user("x"))
            s.close()
            thread.join(10)
            assert not thread.is_alive()


def test_follow_ends_when_the_session_is_deleted(url: str) -> None:
    """With an error, since nothing will ever come."""
    with Session.create(url, "s") as s:
        following = s.follow(after=0)
        next(following)
        s.store.delete("s")
        with pytest.raises(NotFound):
            next(following)


def test_subscribers_get_events_and_deltas_in_order(url: str) -> None:
    """Any number of them, from now on; deltas are not stored."""
    with Session.create(url) as s:
        talk(s, "before")
        with s.subscribe() as one, s.subscribe() as two:
            asked = s.append(user("one"))
            s.emit(Delta("text", {"text": "re"}))
            answered = s.append(assistant("re: one"))
            expected = [asked, Delta("text", {"text": "re"}), answered]
            for subscription in (one, two):
                assert [subscription.get(timeout=5) for _ in range(3)] == expected
                assert subscription.get(timeout=0.01) is None
        assert one.get(timeout=5) is None
        assert s.info().message_count == 4


def test_a_slow_subscriber_loses_deltas_and_no_event(url: str) -> None:
    """What did not fit into its queue is read again from the log."""
    with Session.create(url) as s, s.subscribe(size=8) as slow:
        for number in range(100):
            s.append(user(str(number)))
            s.emit(Delta("text", {"n": number}))
        got: list[Event | Delta] = []
        while (item := slow.get(timeout=0)) is not None:
            got.append(item)
        events = [item for item in got if isinstance(item, Event)]
        assert [e.data["message"]["content"] for e in events] == [str(n) for n in range(100)]
        assert [e.seq for e in events] == list(range(2, 102))
        deltas = len(got) - len(events)
        assert deltas < 100
        assert slow.lost_deltas == 100 - deltas
        s.append(user("last"))
        assert isinstance(slow.get(timeout=5), Event)


def test_a_subscriber_in_a_thread_ends_with_the_session(url: str) -> None:
    """What was queued before is still handed over."""
    s = Session.create(url)
    got: list[Event | Delta] = []
    subscription = s.subscribe()
    thread = threading.Thread(target=lambda: got.extend(subscription))
    thread.start()
    events = [s.append(user(str(number))) for number in range(20)]
    s.close()
    thread.join(10)
    assert not thread.is_alive()
    assert got == events


def test_subscribers_of_a_buffered_session_get_numbered_events(url: str) -> None:
    """An event that is not written yet has no number; the subscriber waits for it."""
    with Session.create(Buffered(open_store(url)), "s") as s, s.subscribe() as listener:
        assert s.append(user("one")).seq == 0
        got = listener.get(timeout=5)
        assert isinstance(got, Event)
        assert got.seq == 2
        assert listener.get(timeout=0.01) is None
        s.store.close()


def test_a_slow_subscriber_can_catch_up_after_close() -> None:
    """As long as the store is kept open; else the reader gets an error."""
    with open_store("memory:") as store:
        s = Session.create(store, "s")
        slow = s.subscribe(size=2)
        for number in range(10):
            s.append(user(str(number)))
        s.close()
        assert len(list(slow)) == 10
    s = Session.create("memory:", "s")
    slow = s.subscribe(size=2)
    for number in range(10):
        s.append(user(str(number)))
    s.close()
    assert slow.get() is not None
    assert slow.get() is not None
    with pytest.raises(Closed):
        slow.get()
