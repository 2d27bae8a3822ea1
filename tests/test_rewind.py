"""Going back and forth: checkpoints, rewind, branches, undo and redo."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from backtrail import (
    Conflict,
    Event,
    InvalidData,
    NewEvent,
    NotFound,
    Session,
    Unsupported,
)
from backtrail.events import MAIN_LOG
from backtrail.stores import KnownIds, Store, open_store
from backtrail.stores.wrapper import Wrapper

from .talking import assistant, child, kinds, talk, texts, user

# --- checkpoints -------------------------------------------------------------------------


def test_a_checkpoint_marks_the_last_event(url: str) -> None:
    """It has an id of its own, and names the event, its label and its metadata."""
    with Session.create(url, "s") as s:
        events = talk(s, "one")
        point = s.checkpoint("here", metadata={"n": 1})
        assert (point.seq, point.label, point.metadata) == (events[-1].seq, "here", {"n": 1})
        assert point.session_id == "s"
        assert point.ts
        assert s.checkpoints() == [point]
        assert s.store.checkpoint(point.id) == point
        assert texts(s) == ["one", "re: one"]


def test_the_same_checkpoint_is_made_once(url: str) -> None:
    """The same point, label and metadata give the same one, also after reopening."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        point = s.checkpoint("a", metadata={"n": 1})
        assert s.checkpoint("a", metadata={"n": 1}) == point
        others = [s.checkpoint("a"), s.checkpoint("b", metadata={"n": 1}), s.checkpoint()]
        assert len({point.id, *(other.id for other in others)}) == 4
        assert {other.seq for other in others} == {point.seq}
        head = s.info().head
    with Session.open(url, "s") as s:
        assert s.checkpoint("a", metadata={"n": 1}) == point
        assert s.info().head == head
        talk(s, "two")
        assert s.checkpoint("a", metadata={"n": 1}) != point


class Slow(Wrapper):
    """A store that takes its time."""

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        time.sleep(0.02)
        return super().append(session_id, events, log=log, expected=expected, known=known)


def test_the_same_checkpoint_from_many_threads_is_made_once(url: str) -> None:
    """Also when they ask at the same moment, and the store is slow."""
    with open_store(url) as store, Session.create(Slow(store)) as s:
        talk(s, "one")
        ready = threading.Barrier(4)
        ids: list[str] = []

        def mark() -> None:
            ready.wait()
            ids.append(s.checkpoint("a").id)

        threads = [threading.Thread(target=mark) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 1
        assert len(s.checkpoints()) == 1


def test_a_checkpoint_can_mark_an_earlier_event(url: str) -> None:
    """`at` is any target; the conversation does not move."""
    with Session.create(url) as s:
        events = talk(s, "one", "two")
        point = s.checkpoint("early", at=events[0])
        assert point.seq == events[0].seq
        assert s.checkpoint("early", at=events[0].id) == point
        assert texts(s)[-1] == "re: two"
        s.rewind("early")
        assert texts(s) == ["one"]
        with pytest.raises(NotFound):
            s.checkpoint("x", at="ghost")
        assert len(s.checkpoints()) == 1


# --- rewind ------------------------------------------------------------------------------


def test_every_kind_of_target_names_the_same_point(url: str) -> None:
    """A checkpoint, an event, a number, an id, a checkpoint's id, a label."""
    with Session.create(url) as s:
        events = talk(s, "one")
        point = s.checkpoint("here")
        for target in (point, events[1], events[1].seq, events[1].id, point.id, "here"):
            talk(s, "two")
            rewind = s.rewind(target)
            assert rewind.applied
            assert rewind.anchor == events[1].seq
            assert rewind.events_dropped == 2
            assert rewind.message_count == 2
            assert texts(s) == ["one", "re: one"]


def test_the_newest_checkpoint_of_a_label_counts(url: str) -> None:
    """And an event's id comes before a label."""
    with Session.create(url) as s:
        talk(s, "one")
        s.checkpoint("a")
        talk(s, "two")
        s.checkpoint("a")
        s.append(user("x"), id="taken")
        talk(s, "three")
        s.checkpoint("taken")
        talk(s, "four")
        s.rewind("taken")
        assert texts(s)[-1] == "x"
        s.rewind("a")
        assert texts(s)[-1] == "re: two"


def test_before_drops_the_event_too(url: str) -> None:
    """Right in front of a question, to ask another."""
    with Session.create(url) as s:
        events = talk(s, "one", "two")
        point = s.checkpoint("here")
        assert s.rewind(before=point).anchor == events[2].seq
        assert s.rewind(before=events[2].id).anchor == events[1].seq
        assert texts(s) == ["one", "re: one"]
        s.rewind(before=1)
        assert texts(s) == []


def test_rewind_takes_one_target(url: str) -> None:
    """Neither none nor two, and no file options in this version."""
    with Session.create(url) as s:
        talk(s, "one")
        head = s.info().head
        with pytest.raises(InvalidData):
            s.rewind()
        with pytest.raises(InvalidData):
            s.rewind(1, before=2)
        with pytest.raises(InvalidData):
            s.rewind(1, scope="everything")  # type: ignore[arg-type]
        with pytest.raises(Unsupported):
            s.rewind(1, scope="files")
        with pytest.raises(Unsupported):
            s.rewind(1, paths=["a"])
        assert s.info().head == head


def test_an_unknown_target_changes_nothing(url: str) -> None:
    """Also a checkpoint or an event of another session."""
    with Session.create(url, "s") as s, Session.create(s.store, "other") as other:
        talk(s, "one", "two")
        foreign = talk(other, "one", "two")
        point = other.checkpoint("theirs")
        head = s.info().head
        for target in (point, point.id, "theirs", foreign[0], foreign[0].id, 99, -1, "", True):
            with pytest.raises(NotFound):
                s.rewind(target)
            with pytest.raises(NotFound):
                s.rewind(before=target)
        with pytest.raises(NotFound):
            s.rewind(before=0)
        assert s.info().head == head
        assert len(texts(s)) == 4


def test_a_dry_run_says_what_the_act_does(url: str) -> None:
    """Preview and result are one plan, and the preview writes nothing."""
    with Session.create(url, system_prompt="P") as s:
        events = talk(s, "one", "two", "three")
        for target in (events[3], events[0], 0):
            head = s.info().head
            preview = s.rewind(target, dry_run=True)
            assert s.info().head == head
            assert not preview.applied
            done = s.rewind(target)
            assert done.applied
            names = ("anchor", "events_dropped", "message_count", "files", "conflicts")
            assert all(getattr(preview, name) == getattr(done, name) for name in names)
            assert done.message_count == s.info().message_count == len(s.messages())
            undo = s.undo(dry_run=True)
            assert undo.anchor == s.undo().anchor == head
            redo = s.redo(dry_run=True)
            assert redo.events_dropped == s.redo().events_dropped


def test_a_second_rewind_drops_nothing(url: str) -> None:
    """And writes nothing."""
    with Session.create(url, system_prompt="P") as s:
        events = talk(s, "one", "two")
        for target in (events[1], 0):
            assert s.rewind(target).events_dropped > 0
            head = s.info().head
            again = s.rewind(target)
            assert again.applied
            assert again.events_dropped == 0
            assert s.info().head == head


def test_a_rewind_is_an_event_and_erases_nothing(url: str) -> None:
    """The log grows; what was left is a branch, and can be gone back to."""
    with Session.create(url) as s:
        events = talk(s, "one", "two")
        s.rewind(events[1])
        talk(s, "other")
        assert texts(s) == ["one", "re: one", "other", "re: other"]
        assert kinds(s).count("user_message") == 3
        branch = s.branches()[0]
        assert (branch.head, branch.left, branch.message_count) == (
            events[-1].seq,
            events[1].seq,
            2,
        )
        s.rewind(branch.head)
        assert texts(s) == ["one", "re: one", "two", "re: two"]


def test_a_live_session_obeys_a_rewind_made_elsewhere(url: str) -> None:
    """By another session object, on the next read and the next append."""
    with Session.create(url, "s") as s:
        events = talk(s, "one", "two")
        with Session.open(url, "s") as other:
            other.rewind(events[1])
        assert texts(s) == ["one", "re: one"]
        talk(s, "three")
        assert texts(s) == ["one", "re: one", "three", "re: three"]


def test_a_live_session_obeys_a_rewind_of_another_process(disk_url: str) -> None:
    """The same across processes."""
    with Session.create(disk_url, "s") as s:
        events = talk(s, "one", "two")
        code = (
            "import sys; from backtrail import Session\n"
            "with Session.open(sys.argv[1], 's') as s: print(s.rewind(sys.argv[2]).events_dropped)"
        )
        assert child(code, disk_url, events[1].id) == "2"
        s.append(user("three"))
        assert texts(s) == ["one", "re: one", "three"]


class Intruder(Wrapper):
    """A store in which another appends just before our own append."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.times = 0

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        if self.times and events[-1].kind in ("rewound", "undone"):
            self.times -= 1
            with Session.open(self.inner, session_id) as other:
                other.append(user("meanwhile"))
        return super().append(session_id, events, log=log, expected=expected, known=known)


def test_a_rewind_is_planned_again_after_an_append_meanwhile() -> None:
    """What it drops is what it says; after many tries it gives up and nothing is moved."""
    with open_store("memory:") as inner:
        store = Intruder(inner)
        s = Session.create(store, "s")
        events = talk(s, "one", "two")
        store.times = 2
        rewind = s.rewind(events[1])
        assert rewind.events_dropped == 4
        assert texts(s) == ["one", "re: one"]
        s.undo()
        assert texts(s)[-2:] == ["meanwhile", "meanwhile"]
        store.times = 99
        with pytest.raises(Conflict):
            s.rewind(events[1])
        assert texts(s)[-1] == "meanwhile"


# --- undo and redo -----------------------------------------------------------------------


def test_undo_and_redo_walk_over_turns_and_rewinds(url: str) -> None:
    """Each undo takes back one more operation; redo goes the same way forth."""
    with Session.create(url) as s:
        seen = [texts(s)]
        events = talk(s, "one")
        seen.append(texts(s))
        talk(s, "two")
        seen.append(texts(s))
        s.rewind(events[0])
        seen.append(texts(s))
        talk(s, "three")
        seen.append(texts(s))
        for shown in seen[-2::-1]:
            s.undo()
            assert texts(s) == shown
        with pytest.raises(NotFound, match="nothing to undo"):
            s.undo()
        for shown in seen[1:]:
            s.redo()
            assert texts(s) == shown
        with pytest.raises(NotFound, match="nothing to redo"):
            s.redo()
        for shown in seen[-2::-1]:
            s.undo()
            assert texts(s) == shown


def test_a_new_operation_ends_redo(url: str) -> None:
    """So does any word said after an undo; a note does not."""
    with Session.create(url) as s:
        talk(s, "one", "two")
        s.undo()
        s.record("my.note")
        s.checkpoint("note")
        s.redo()
        s.undo()
        s.append(assistant("more"))
        with pytest.raises(NotFound):
            s.redo()
        s.undo()
        talk(s, "other")
        with pytest.raises(NotFound):
            s.redo()


def test_undo_survives_reopening(url: str) -> None:
    """There is no state but the log."""
    with Session.create(url, "s") as s:
        talk(s, "one", "two")
        s.undo()
    with Session.open(url, "s") as s:
        s.redo()
        assert texts(s)[-1] == "re: two"
    with Session.open(url, "s") as s:
        s.undo()
        s.undo()
        assert texts(s) == []


def test_undo_of_a_turn_goes_before_the_user_message(url: str) -> None:
    """What was said between turns belongs to the turn before."""
    with Session.create(url) as s:
        talk(s, "one")
        s.append(assistant("more"))
        talk(s, "two")
        s.undo()
        assert texts(s) == ["one", "re: one", "more"]
        s.undo()
        assert texts(s) == []
        s.redo()
        assert texts(s) == ["one", "re: one", "more"]
