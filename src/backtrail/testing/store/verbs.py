"""Rules of the other verbs: logs, purge, notes, follow, verify, unknown sessions."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ...errors import InvalidData, NotFound
from ...events import MAX_DATA, NewEvent, SessionInfo
from ...stores.notes import SessionMemory
from .base import ContractBase, assert_all_raise, everything, note, notes, said, seqs
from .forks import fork

PURGED = {"purged": True}


class VerbRules(ContractBase):
    """`logs`, `purge`, `memory`, `follow`, `verify`, `flush`."""

    def test_unknown_session_is_not_found_by_any_method(self, tmp_path: Path) -> None:
        """`NotFound` comes from the call itself, not from the first event."""
        store = self.started(tmp_path)
        calls = self.session_calls(store, "unknown")
        assert_all_raise(calls, NotFound)
        assert [info.id for info in store.sessions()] == ["s"]

    def test_deleted_session_is_not_found_by_any_method(self, tmp_path: Path) -> None:
        """A session that was there is treated like one that never was."""
        store = self.started(tmp_path, "gone", events=2)
        store.info("gone")
        store.delete("gone")
        calls = self.session_calls(store, "gone")
        assert_all_raise(calls, NotFound)
        assert store.sessions() == []

    # --- logs ----------------------------------------------------------------------------

    def test_logs_are_those_written_to(self, tmp_path: Path) -> None:
        """Names are sorted; the main log is always there, others once they have an event."""
        store = self.started(tmp_path)
        assert store.logs("s") == ["messages"]
        self.put(store, "s", [], log="empty")
        for log in ("transcript", "subagents/b", "subagents/a"):
            self.put(store, "s", [note()], log=log)
        everything(store, "s", "only-read")
        assert store.logs("s") == ["messages", "subagents/a", "subagents/b", "transcript"]

    # --- purge ---------------------------------------------------------------------------

    def test_purge_erases_bodies_and_keeps_the_rest(self, tmp_path: Path) -> None:
        """`seq`, `id`, `ts`, `kind` and `follows` stay; unknown numbers are ignored."""
        store = self.started(tmp_path)
        self.put(store, "s", [*notes(3), NewEvent("note", {"n": 4}, id="e4", follows=1)])
        before = everything(store, "s")
        store.purge("s", [2, 4, 99, -1])
        after = everything(store, "s")
        assert [event.data for event in after] == [{"n": 1}, PURGED, {"n": 3}, PURGED]
        for old, new in zip(before, after, strict=True):
            assert (old.seq, old.id, old.ts, old.kind) == (new.seq, new.id, new.ts, new.kind)
            assert old.follows == new.follows
        assert store.find("s", "e2").data == PURGED
        assert seqs(store.history("s")) == [1, 4]
        store.purge("s", [2, 4])
        assert everything(store, "s") == after
        assert self.put(store, "s", [note("again", id="e2")]) == after[1:2]
        assert seqs(self.put(store, "s", [note("on")])) == [5]
        assert store.verify() == []
        if self.persistent:
            store = self.reopen(store, tmp_path)
            assert everything(store, "s")[:4] == after

    def test_purge_is_about_one_log(self, tmp_path: Path) -> None:
        """The same number in another log, or the same id elsewhere, stays."""
        store = self.started(tmp_path, events=2)
        self.put(store, "s", notes(2), log="side")
        store.create(SessionInfo(id="other"))
        self.put(store, "other", notes(2))
        store.purge("s", [1], log="side")
        store.purge("s", [1], log="nothing")
        store.purge("s", [])
        assert [event.data for event in store.read("s", log="side")] == [PURGED, {"n": 2}]
        for id in ("s", "other"):
            assert [event.data["n"] for event in store.read(id)] == [1, 2]

    @pytest.mark.parametrize("where", ["a", "b", "c"])
    def test_purge_reaches_every_session_that_shares_the_event(
        self, tmp_path: Path, where: str
    ) -> None:
        """Forks and parents lose what is purged in one of them, but keep their own."""
        store = self.started(tmp_path, "a", events=3)
        fork(store, "a", 2, "b")
        self.put(store, "b", [note("b", id="e3")])
        fork(store, "b", 3, "c")
        self.put(store, "c", [note("c", id="e4")])
        store.purge(where, [1])
        for id, last in (("a", {"n": 3}), ("b", {"n": "b"}), ("c", {"n": "c"})):
            data = [event.data for event in store.read(id)]
            assert data[:2] == [PURGED, {"n": 2}]
            assert data[-1] == last
        assert store.verify() == []

    def test_purge_reaches_sisters_of_a_deleted_parent(self, tmp_path: Path) -> None:
        """Two forks share their beginning also when the parent is gone."""
        store = self.started(tmp_path, "a", events=3)
        fork(store, "a", 3, "b")
        fork(store, "a", 2, "c")
        store.delete("a")
        store.purge("b", [2, 3])
        assert [event.data for event in store.read("b")] == [{"n": 1}, PURGED, PURGED]
        assert [event.data for event in store.read("c")] == [{"n": 1}, PURGED]

    def test_purge_leaves_a_new_session_with_the_parents_id(self, tmp_path: Path) -> None:
        """A session that took over a deleted parent's id shares nothing with its forks."""
        store = self.started(tmp_path, "a", events=2)
        fork(store, "a", 2, "b")
        store.delete("a")
        store.create(SessionInfo(id="a"))
        self.put(store, "a", [note("new", id="x1"), note("new", id="x2")])
        store.purge("b", [1])
        assert [event.data for event in store.read("a")] == [{"n": "new"}, {"n": "new"}]
        store.purge("a", [2])
        assert [event.data for event in store.read("b")] == [PURGED, {"n": 2}]

    # --- project notes -------------------------------------------------------------------

    def test_memory_is_one_text_for_each_directory(self, tmp_path: Path) -> None:
        """A note is empty at first, replaced as a whole, and found by any spelling."""
        store = self.open(tmp_path)
        one, two, link = tmp_path / "one", tmp_path / "two", tmp_path / "link"
        one.mkdir()
        link.symlink_to(one)
        assert store.memory(one).read() == ""
        store.memory(one).write("# First\n\u2028 🦜\0")
        store.memory(str(two)).write("other")
        assert store.memory(one).read() == "# First\n\u2028 🦜\0"
        store.memory(one).write("second")
        assert store.memory(link).read() == store.memory(f"{one}/.").read() == "second"
        assert store.memory(two).read() == "other"
        store.memory(one).write("")
        assert store.memory(one).read() == ""
        if self.persistent:
            store = self.reopen(store, tmp_path)
            assert store.memory(two).read() == "other"

    @pytest.mark.parametrize(
        "text",
        [None, 5, b"x", "\ud800", "x" * MAX_DATA],
        ids=["none", "int", "bytes", "surrogate", "huge"],
    )
    def test_memory_is_text(self, tmp_path: Path, text: str) -> None:
        """What could not be read back is `InvalidData`; the note stays as it was."""
        store = self.started(tmp_path)
        for kept in (store.memory(tmp_path), SessionMemory(store, str(tmp_path))):
            kept.write("before")
            with pytest.raises(InvalidData):
                kept.write(text)
            assert kept.read() == "before"

    def test_memory_does_not_show_in_the_directorys_sessions(self, tmp_path: Path) -> None:
        """A note is no conversation."""
        store = self.open(tmp_path)
        store.memory(tmp_path).write("text")
        assert store.sessions(cwd=tmp_path) == []
        with pytest.raises(NotFound):
            store.latest(tmp_path)

    # --- follow --------------------------------------------------------------------------

    def test_follow_sees_events_as_they_come(self, tmp_path: Path) -> None:
        """Events of this and other writers arrive in order, each once."""
        store = self.started(tmp_path, events=2)
        other = self.second(store, tmp_path)
        seen: list[int] = []
        done = threading.Event()

        def watch() -> None:
            for event in store.follow("s", after=1, poll=0.005, stop=done.is_set):
                seen.append(event.seq)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            for n in range(10):
                self.put(other if n % 2 else store, "s", [note(n)])
            deadline = time.monotonic() + 20
            while len(seen) < 11 and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            done.set()
            thread.join(20)
        assert seen == list(range(2, 13))

    def test_follow_begins_now_and_ends_with_the_session(self, tmp_path: Path) -> None:
        """Without `after` only new events are given; a deletion is `NotFound`."""
        store = self.started(tmp_path, events=3)
        follower = store.follow("s", poll=0.005)
        self.put(store, "s", [note("new")])
        assert next(follower).data == {"n": "new"}
        store.delete("s")
        with pytest.raises(NotFound):
            next(follower)

    # --- the rest ------------------------------------------------------------------------

    def test_verify_is_empty_when_all_is_well(self, tmp_path: Path) -> None:
        """A healthy store has no problems, whatever was done to it."""
        store = self.open(tmp_path)
        assert store.verify() == []
        store.create(SessionInfo(id="a", key="k", cwd=str(tmp_path)))
        self.put(store, "a", [said("user", "u"), *notes(3), note(follows=1)])
        self.put(store, "a", notes(3), log="subagents/x")
        fork(store, "a", 3, "b")
        self.put(store, "b", [note(), note(follows=0)])
        store.purge("b", [2, 4])
        store.update("a", title="t", key=None)
        store.delete("a", log="subagents/x")
        store.memory(tmp_path).write("note")
        assert store.verify() == []
        store.delete("a")
        assert store.verify() == []
        if self.persistent:
            store = self.reopen(store, tmp_path)
            assert store.verify() == []

    def test_flush_returns_and_may_be_repeated(self, tmp_path: Path) -> None:
        """`flush` makes durable what is there, also when there is nothing."""
        store = self.open(tmp_path)
        store.flush()
        store.create(SessionInfo(id="s"))
        self.put(store, "s", notes(2))
        self.put(store, "s", notes(2), log="side")
        store.flush()
        store.flush()
        store.delete("s")
        store.flush()
