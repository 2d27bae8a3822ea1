"""The parts of a session, each built and used without a `Session` around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Event, Session, SessionBusy, SessionInfo, StoreFailed
from backtrail.events import NewEvent
from backtrail.events.messages import message_event
from backtrail.session.capture import Capture
from backtrail.session.drive import Driver, DrivingLease
from backtrail.session.fileplans import Wish
from backtrail.session.liveturn import LiveTurn
from backtrail.session.log import SessionLog
from backtrail.session.parts import Parts
from backtrail.session.rewind import Rewinder
from backtrail.session.turnlog import TurnLog
from backtrail.stores import MemoryStore, Store, open_store
from tests.talking import assistant, user


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as place:
        place.create(SessionInfo(id="s"))
        yield place


class Failing(MemoryStore):
    """A store whose disk is full for a while."""

    is_full = False

    def append(self, *args: object, **how: object) -> list[Event]:
        if self.is_full:
            raise StoreFailed("the disk is full")
        return super().append(*args, **how)  # type: ignore[arg-type]


def test_a_log_alone(store: Store) -> None:
    """It appends, reads and notifies; nothing of files or turns is there."""
    log = SessionLog(store, "s")
    listener = log.subscribe()
    (first,) = log.append([message_event(user("hello"))])
    log.append([message_event(assistant("yes"))])
    assert [m["content"] for m in log.messages()] == ["hello", "yes"]
    assert log.head() == log.view() == first.seq + 1
    assert listener.get(1) == first
    assert [event.seq for event in log.walk()] == [first.seq + 1, first.seq]
    log.close()
    assert listener.closed


def test_a_log_keeps_what_a_failing_store_does_not_take() -> None:
    """It shows it, and stores it before the next event."""
    store = Failing()
    store.create(SessionInfo(id="s"))
    log = SessionLog(store, "s", on_error="record")
    store.is_full = True
    log.append([message_event(user("hello"))])
    assert (len(log.unsaved), len(log.problems)) == (1, 1)
    assert [m["content"] for m in log.messages()] == ["hello"]
    store.is_full = False
    log.append([message_event(assistant("yes"))])
    assert log.unsaved == []
    assert [e.data["message"]["content"] for e in store.read("s")] == ["hello", "yes"]


def test_a_capture_records_what_a_call_did(tmp_path: Path) -> None:
    """On a log and a folder, without a turn."""
    work = tmp_path / "work"
    work.mkdir()
    with open_store(f"file:{tmp_path}/store") as store:
        store.create(SessionInfo(id="s", cwd=str(work)))
        log = SessionLog(store, "s")
        capture = Capture(log)
        with capture.tool("write") as call:
            (work / "a").write_text("a\n")
            call.result = "done"
        assert call.event is not None
        files = call.event.data["files"]
        assert files["before"] != files["after"]
        log.close()
        capture.close()


def test_a_rewinder_takes_files_and_conversation_back(tmp_path: Path) -> None:
    """Its plan and its act need a log, a capture and a lease."""
    work = tmp_path / "work"
    work.mkdir()
    with open_store(f"file:{tmp_path}/store") as store:
        store.create(SessionInfo(id="s", cwd=str(work)))
        log = SessionLog(store, "s")
        capture = Capture(log)
        rewinder = Rewinder(log, capture, DrivingLease(log))
        (said,) = capture.append([message_event(user("write"))])
        with capture.tool("write"):
            (work / "a").write_text("a\n")
        plan = rewinder.rewind(None, said, Wish(), dry_run=True)
        assert (plan.applied, [file.path for file in plan.files]) == (False, ["a"])
        assert (work / "a").exists()
        assert rewinder.rewind(None, said, Wish()).applied
        assert (list(work.iterdir()), log.messages()) == ([], [])
        rewinder.undo()
        assert (work / "a").read_text() == "a\n"
        log.close()
        capture.close()


def test_a_driver_runs_a_turn(store: Store) -> None:
    """Of any callable; the log has the turn from its prompt to its end."""

    def agent(turn: LiveTurn) -> Iterator[dict[str, str]]:
        yield assistant(f"re: {turn.prompt}")

    log = SessionLog(store, "s")
    capture, lease = Capture(log), DrivingLease(log)
    driver = Driver(log, capture, lease, TurnLog(log, capture, agent))
    assert driver.finished(driver.saying("hello", None, "errors")).text == "re: hello"
    kinds = [event.kind for event in log.history()]
    assert kinds == ["user_message", "assistant_message", "turn_end"]
    shown = list(driver.streamed(driver.saying("again", None, "errors")))
    assert [item.kind for item in shown if isinstance(item, Event)] == kinds[:2]


def test_a_lease_lets_one_drive(store: Store) -> None:
    """Another log of the same session waits its turn; a block within a block does not."""
    one, other = (DrivingLease(SessionLog(store, "s")) for _ in range(2))
    with one.driving():
        with one.driving():
            assert one.depth == 2
        with pytest.raises(SessionBusy), other.driving():
            pass
    with other.driving():
        pass


def test_faces_of_the_same_parts(store: Store) -> None:
    """A session adds nothing of its own to them."""
    parts = Parts(store, "s", {})
    one, other = Session(parts), Session(parts)
    parts.capture.append([NewEvent("note", {"n": 1})])
    one.append(user("hello"))
    assert other.messages() == parts.log.messages() == one.messages()
    assert [event.kind for event in other.events()] == ["note", "user_message"]
    one.close()
    assert parts.log.closed
