"""Turns and leases: one driver at a time, in this process and in all others."""

from __future__ import annotations

import os
import threading
import time

import pytest

from backtrail import Session, SessionBusy
from backtrail.stores import open_store

from .talking import Child, assistant, outcome, texts, user

HOLD = """
import sys
from backtrail import Session
url, lease, wait = sys.argv[1], sys.argv[2] if sys.argv[2] != "None" else None, float(sys.argv[3])
with Session.open(url, "s", lease=lease, wait=wait) as s:
    with s.turn("from the child"):
        print("holding")
        sys.stdin.readline()
    print("done")
    sys.stdin.readline()
print("closed")
sys.stdin.readline()
"""


def test_a_turn_is_a_message_and_what_follows(url: str) -> None:
    """The user's words are in the log before the block begins."""
    with Session.create(url) as s:
        with s.turn("one", id="req-1") as turn:
            assert texts(s) == ["one"]
            assert turn.event.id == "req-1"
            turn.append(assistant("a"), cost_usd=0.5)
            turn.extend([*turn.messages(), assistant("b")])
        with s.turn([{"type": "text", "text": "two"}]), s.turn({"role": "user", "content": "3"}):
            pass
        assert texts(s) == ["one", "a", "b", "[{'type': 'text', 'text': 'two'}]", "3"]
        assert s.info().turn_count == 3


def test_what_a_turn_appended_stays_when_it_fails(url: str) -> None:
    """Messages are stored as they happen, and the error goes on up."""
    with Session.create(url) as s:
        with pytest.raises(ZeroDivisionError), s.turn("one") as turn:
            turn.append(assistant("a"))
            raise ZeroDivisionError
        assert texts(s) == ["one", "a"]
        talk(s, "two")


def test_a_second_driver_gets_the_name_of_the_holder(url: str) -> None:
    """Another session object of this process is another driver."""
    with Session.create(url, "s") as s, Session.open(url, "s") as other:
        with s.turn("one"):
            for drive in (lambda: talk(other, "x"), lambda: other.rewind(0), other.undo):
                with pytest.raises(SessionBusy, match="`s`") as caught:
                    drive()
                assert caught.value.owner.pid == os.getpid()
            other.append(assistant("appending needs no lease"))
            other.checkpoint("nor a checkpoint")
            assert other.rewind(0, dry_run=True).events_dropped == 2
        assert texts(s) == ["one", "appending needs no lease"]
        talk(other, "two")


def test_a_rewind_within_a_turn_needs_no_second_lease(url: str) -> None:
    """A driver may go back, and is still driving afterwards."""
    with Session.create(url, "s") as s, Session.open(url, "s") as other:
        with s.turn("one") as turn:
            turn.append(assistant("wrong"))
            s.rewind(turn.event)
            turn.append(assistant("right"))
            with pytest.raises(SessionBusy):
                talk(other, "x")
        talk(other, "two")
        assert texts(s) == ["one", "right", "two", "re: two"]


def test_a_driver_in_another_process_is_named(disk_url: str) -> None:
    """The error has the pid; once that turn is over the lease is free."""
    with Session.create(disk_url, "s") as s, Child(HOLD, disk_url, "turn", "0") as child:
        assert child.line() == "holding"
        with pytest.raises(SessionBusy) as caught:
            talk(s, "x")
        assert caught.value.owner.pid == child.pid
        assert str(child.pid) in str(caught.value)
        child.send()
        assert child.line() == "done"
        talk(s, "two")
        assert texts(s) == ["from the child", "two", "re: two"]


def test_waiting_gets_the_lease_when_it_is_free(disk_url: str) -> None:
    """`wait` is how long."""
    with Session.create(disk_url, "s") as s, Child(HOLD, disk_url, "turn", "0") as child:
        assert child.line() == "holding"
        timer = threading.Timer(0.2, child.send)
        timer.start()
        with Session.open(disk_url, "s", wait=20) as patient:
            talk(patient, "two")
        timer.join()
        assert texts(s) == ["from the child", "two", "re: two"]
        with s.turn("mine"), Session.open(disk_url, "s", wait=0.1) as hasty:
            began = time.monotonic()
            with pytest.raises(SessionBusy):
                talk(hasty, "x")
            assert 0.1 <= time.monotonic() - began < 5


def test_a_dead_driver_holds_nothing(disk_url: str) -> None:
    """A crash frees the lease at once, and the turn's message is there."""
    with Session.create(disk_url, "s") as s, Child(HOLD, disk_url, "session", "0") as child:
        assert child.line() == "holding"
        with pytest.raises(SessionBusy):
            talk(s, "x")
        child.kill()
        talk(s, "two")
        assert texts(s) == ["from the child", "two", "re: two"]


def test_a_session_lease_lasts_until_close(disk_url: str) -> None:
    """Between turns too."""
    with Session.create(disk_url, "s") as s, Child(HOLD, disk_url, "session", "0") as child:
        assert child.line() == "holding"
        child.send()
        assert child.line() == "done"
        with pytest.raises(SessionBusy):
            talk(s, "x")
        with pytest.raises(SessionBusy):
            Session.open(disk_url, "s", lease="session")
        child.send()
        assert child.line() == "closed"
        talk(s, "two")


def test_a_session_lease_is_given_back_when_opening_fails(url: str) -> None:
    """An error on the way in leaves the session free."""
    with open_store(url) as store:
        Session.create(store, "s", messages=[user("one")]).close()
        error = outcome(lambda: Session.open(store, "s", lease="session", messages=[user("x")]))
        assert isinstance(error, RuntimeError)
        with Session.open(store, "s", lease="session") as s:
            talk(s, "two")
            s.rewind(0)


def test_no_lease_takes_none(disk_url: str) -> None:
    """`lease=None` is for callers that see to it themselves."""
    with Session.create(disk_url, "s") as s, Child(HOLD, disk_url, "None", "0") as child:
        assert child.line() == "holding"
        talk(s, "x")
        assert texts(s) == ["from the child", "x", "re: x"]


def test_turns_in_threads_are_served_one_after_another(url: str) -> None:
    """No turn mixes with another, and none is refused."""
    with Session.create(url) as s:
        failed: list[Exception] = []

        def work(number: int) -> None:
            try:
                for step in range(3):
                    with s.turn(f"{number}.{step}") as turn:
                        time.sleep(0.001)
                        turn.append(assistant(f"re: {number}.{step}"))
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        said = texts(s)
        assert len(said) == 30
        for question, answer in zip(said[::2], said[1::2], strict=True):
            assert answer == f"re: {question}"


def test_appends_in_threads_are_all_there(url: str) -> None:
    """Each once, in the order of its own thread."""
    with Session.create(url) as s:

        def work(number: int) -> None:
            for step in range(20):
                s.append(user(f"{number}.{step}"))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said = texts(s)
        assert len(said) == 80
        for number in range(4):
            mine = [text for text in said if text.startswith(f"{number}.")]
            assert mine == [f"{number}.{step}" for step in range(20)]


def talk(session: Session, text: str) -> None:
    """One turn, with the lease: a question and an answer."""
    with session.turn(text) as turn:
        turn.append(assistant(f"re: {text}"))
