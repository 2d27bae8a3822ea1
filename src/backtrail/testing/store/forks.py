"""Rules of forks: shared beginnings, independent ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...errors import AlreadyExists, NotFound
from ...events import NewEvent, SessionInfo
from ...stores.base import Store
from .base import ContractBase, everything, note, notes, seqs
from .read import check_ranges


def fork(store: Store, parent: str, seq: int, id: str) -> None:
    """Fork a session as `Session.fork` does."""
    info = SessionInfo(id=id, parent_id=parent, relation="fork", fork_seq=seq)
    store.create(info, base=(parent, seq))


class ForkRules(ContractBase):
    """`create` with a base."""

    def test_fork_begins_with_the_parents_events(self, tmp_path: Path) -> None:
        """A fork reads the parent's log up to its base, and numbers on from there."""
        store = self.started(tmp_path, "parent", events=5)
        fork(store, "parent", 3, "child")
        assert everything(store, "child") == everything(store, "parent")[:3]
        stored = self.put(store, "child", [note("own"), note("own")])
        assert seqs(stored) == [4, 5]
        assert everything(store, "child")[3:] == stored
        info = store.info("child")
        assert (info.parent_id, info.relation, info.fork_seq) == ("parent", "fork", 3)
        assert info.head == 5

    def test_fork_and_parent_are_independent(self, tmp_path: Path) -> None:
        """Appending to either leaves the other as it is."""
        store = self.started(tmp_path, "parent", events=3)
        fork(store, "parent", 3, "child")
        self.put(store, "parent", [note("p")])
        assert seqs(everything(store, "child")) == [1, 2, 3]
        self.put(store, "child", [note("c"), note("c")])
        assert [event.data["n"] for event in store.read("parent")] == [1, 2, 3, "p"]
        assert [event.data["n"] for event in store.read("child")] == [1, 2, 3, "c", "c"]
        assert store.verify() == []

    def test_fork_has_no_side_logs(self, tmp_path: Path) -> None:
        """Side logs start empty, and are the fork's own."""
        store = self.started(tmp_path, "parent", events=1)
        self.put(store, "parent", notes(2), log="transcript")
        fork(store, "parent", 1, "child")
        assert store.logs("child") == ["messages"]
        assert everything(store, "child", "transcript") == []
        assert seqs(self.put(store, "child", notes(1), log="transcript")) == [1]
        assert seqs(everything(store, "parent", "transcript")) == [1, 2]

    def test_fork_knows_inherited_ids(self, tmp_path: Path) -> None:
        """An id is skipped if the fork can read it, and new if only the parent can."""
        store = self.started(tmp_path, "parent", events=4)
        fork(store, "parent", 2, "child")
        first = everything(store, "parent")
        assert self.put(store, "child", [note("x", id="e2")], expected=99) == [first[1]]
        stored = self.put(store, "child", [note("own", id="e1"), note("own", id="e3")])
        assert [(event.seq, event.follows) for event in stored] == [(1, None), (3, 1)]
        assert store.find("child", "e1") == first[0]
        assert store.find("child", "e3").data == {"n": "own"}
        assert store.find("parent", "e3").data == {"n": 3}
        with pytest.raises(NotFound):
            store.find("child", "e4")

    def test_fork_survives_the_parents_deletion(self, tmp_path: Path) -> None:
        """A fork keeps what it shares, and goes on."""
        store = self.started(tmp_path, "parent", events=3)
        fork(store, "parent", 2, "child")
        before = everything(store, "child")
        store.delete("parent")
        assert everything(store, "child") == before
        assert seqs(self.put(store, "child", [note(id="e1"), note("own")])) == [1, 3]
        assert store.find("child", "e2") == before[1]
        assert [info.id for info in store.sessions()] == ["child"]
        assert store.verify() == []

    def test_fork_deletion_leaves_the_parent(self, tmp_path: Path) -> None:
        """Deleting a fork takes only what is its own."""
        store = self.started(tmp_path, "parent", events=3)
        before = everything(store, "parent")
        fork(store, "parent", 3, "child")
        self.put(store, "child", [note("own")])
        store.delete("child")
        assert everything(store, "parent") == before
        assert seqs(self.put(store, "parent", [note()])) == [4]
        with pytest.raises(NotFound):
            store.info("child")

    def test_fork_of_a_fork(self, tmp_path: Path) -> None:
        """Forks may be forked, before and after where they parted; any of them may go."""
        store = self.started(tmp_path, "a", events=4)
        fork(store, "a", 3, "b")
        self.put(store, "b", [note("b"), note("b")])
        fork(store, "b", 4, "c")
        fork(store, "b", 2, "d")
        self.put(store, "c", [note("c")])
        self.put(store, "d", [note("d")])
        expected = {"a": [1, 2, 3, 4], "b": [1, 2, 3, "b", "b"], "c": [1, 2, 3, "b", "c"]}
        expected["d"] = [1, 2, "d"]
        for gone in ("b", "a", "d"):
            for id, numbers in expected.items():
                assert [event.data["n"] for event in store.read(id)] == numbers
                assert seqs(everything(store, id)) == list(range(1, len(numbers) + 1))
            store.delete(gone)
            del expected[gone]
        assert seqs(self.put(store, "c", [note(id="e1"), note()])) == [1, 6]
        assert store.verify() == []

    def test_fork_reads_ranges_across_the_joints(self, tmp_path: Path) -> None:
        """Ranges work as in any log, wherever the events come from."""
        store = self.started(tmp_path, "a")
        kinds = ["note", "rare", "other"]
        self.put(store, "a", [NewEvent(kind, {"from": "a"}) for kind in kinds])
        fork(store, "a", 2, "b")
        self.put(store, "b", [NewEvent(kind, {"from": "b"}) for kind in kinds])
        fork(store, "b", 4, "c")
        self.put(store, "c", [NewEvent(kind, {"from": "c"}) for kind in kinds])
        log = everything(store, "c")
        assert [event.data["from"] for event in log] == ["a", "a", "b", "b", "c", "c", "c"]
        check_ranges(store, "c", log, [0, 1, 2, 3, 4, 5, 7, 8])
        assert store.tail("c", 4) == log[3:]

    def test_fork_of_a_long_log(self, tmp_path: Path) -> None:
        """The joint may be anywhere in a page."""
        store = self.started(tmp_path, "a")
        for first in (1, 601):
            self.put(store, "a", notes(600, first))
        fork(store, "a", 1100, "b")
        self.put(store, "b", notes(1000, 2001))
        numbers = [event.data["n"] for event in store.read("b")]
        assert numbers == [*range(1, 1101), *range(2001, 3001)]
        assert [event.data["n"] for event in store.read("b", reverse=True)] == numbers[::-1]

    def test_fork_keeps_the_parents_history(self, tmp_path: Path) -> None:
        """A fork at an event has the history that ended there."""
        store = self.started(tmp_path, "parent", events=4)
        self.put(store, "parent", [note(follows=2), note(), note(follows=1)])
        fork(store, "parent", 6, "child")
        assert seqs(store.history("child")) == [1, 2, 5, 6]
        self.put(store, "child", [note(), note(follows=4)])
        assert seqs(store.history("child")) == [1, 2, 3, 4, 8]
        assert seqs(store.history("parent")) == [1, 7]

    def test_fork_from_nothing(self, tmp_path: Path) -> None:
        """A base of 0 shares nothing, also with an empty parent."""
        store = self.started(tmp_path, "parent")
        fork(store, "parent", 0, "early")
        self.put(store, "parent", notes(2))
        fork(store, "parent", 0, "late")
        for id in ("early", "late"):
            assert everything(store, id) == []
            assert seqs(self.put(store, id, [note("own", id="e1")])) == [1]

    @pytest.mark.parametrize("seq", [3, 99, -1])
    def test_fork_beyond_the_head_is_not_found(self, tmp_path: Path, seq: int) -> None:
        """A base that is no event of the parent is `NotFound`, and makes no session."""
        store = self.started(tmp_path, "parent", events=2)
        with pytest.raises(NotFound):
            fork(store, "parent", seq, "child")
        assert [info.id for info in store.sessions()] == ["parent"]

    def test_fork_of_an_unknown_parent_is_not_found(self, tmp_path: Path) -> None:
        """No parent, no fork."""
        store = self.started(tmp_path, "parent")
        with pytest.raises(NotFound):
            fork(store, "unknown", 0, "child")
        assert [info.id for info in store.sessions()] == ["parent"]

    def test_fork_under_a_taken_id_already_exists(self, tmp_path: Path) -> None:
        """A fork does not replace a session, nor its own parent."""
        store = self.started(tmp_path, "parent", events=2)
        store.create(SessionInfo(id="taken"))
        for id in ("taken", "parent"):
            with pytest.raises(AlreadyExists):
                fork(store, "parent", 1, id)
        assert everything(store, "taken") == []
        assert seqs(everything(store, "parent")) == [1, 2]

    def test_fork_outlives_a_new_session_with_the_parents_id(self, tmp_path: Path) -> None:
        """An id used again is a new session: it has nothing to do with old forks."""
        store = self.started(tmp_path, "parent", events=3)
        fork(store, "parent", 3, "child")
        before = everything(store, "child")
        store.delete("parent")
        store.create(SessionInfo(id="parent"))
        assert everything(store, "parent") == []
        assert seqs(self.put(store, "parent", [note("new", id="e1")])) == [1]
        assert everything(store, "child") == before
        store.delete("child")
        fork(store, "parent", 1, "child")
        assert [event.data["n"] for event in store.read("child")] == ["new"]
        store.delete("parent")
        assert [event.data["n"] for event in store.read("child")] == ["new"]
        assert store.verify() == []

    def test_fork_finds_the_parents_checkpoints(self, tmp_path: Path) -> None:
        """A shared checkpoint is found while one session has it."""
        store = self.started(tmp_path, "parent", events=1)
        self.put(store, "parent", [NewEvent("checkpoint", {"label": "x"}, id="c1")])
        fork(store, "parent", 2, "child")
        assert store.checkpoint("c1").session_id in ("parent", "child")
        store.delete("parent")
        found = store.checkpoint("c1")
        assert (found.session_id, found.seq, found.label) == ("child", 1, "x")
        store.delete("child")
        with pytest.raises(NotFound):
            store.checkpoint("c1")

    def test_fork_reads_the_same_after_reopening(self, tmp_path: Path) -> None:
        """What a fork shares is as durable as what is its own."""
        store = self.started(tmp_path, "a", events=3)
        fork(store, "a", 2, "b")
        self.put(store, "b", [note("b")])
        fork(store, "b", 3, "c")
        before = {id: (everything(store, id), store.info(id)) for id in ("b", "c")}
        store.delete("a")
        store = self.reopen(store, tmp_path)
        assert {id: (everything(store, id), store.info(id)) for id in ("b", "c")} == before
        assert seqs(self.put(store, "c", [note()])) == [4]
