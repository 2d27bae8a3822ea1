"""Rules of `append`: order, atomicity, ids, the expected head, what an event follows."""

from __future__ import annotations

import math
import time
from pathlib import Path
from unittest import mock

import pytest

from ... import events as events_module
from ...errors import AlreadyExists, Conflict, InvalidData, InvalidId
from ...events import MAIN_LOG, Json, NewEvent, SessionInfo
from .base import ContractBase, everything, note, notes, seqs


class AppendRules(ContractBase):
    """Order, atomicity, idempotency, `expected`, `follows`."""

    # --- order ---------------------------------------------------------------------------

    def test_append_numbers_events_from_one_without_gaps(self, tmp_path: Path) -> None:
        """`seq` starts at 1 and grows by one, over batches of any size."""
        store = self.started(tmp_path)
        stored = [e for n in (1, 3, 0, 2) for e in self.put(store, "s", [note(n)] * n)]
        assert seqs(stored) == [1, 2, 3, 4, 5, 6]
        assert everything(store, "s") == stored
        assert [event.data["n"] for event in stored] == [1, 3, 3, 3, 2, 2]

    def test_append_returns_events_as_stored(self, tmp_path: Path) -> None:
        """What comes back has the kind, data, id and ts that were given."""
        store = self.started(tmp_path)
        given = NewEvent("my.kind", {"a": [1, None]}, id="mine", ts="2001-02-03T04:05:06.789Z")
        (event,) = self.put(store, "s", [given])
        assert (event.seq, event.id, event.ts) == (1, "mine", "2001-02-03T04:05:06.789Z")
        assert (event.kind, event.data, event.follows) == ("my.kind", {"a": [1, None]}, None)
        assert everything(store, "s") == [event]

    def test_append_of_nothing_changes_nothing(self, tmp_path: Path) -> None:
        """An empty batch is fine."""
        store = self.started(tmp_path, events=1)
        assert self.put(store, "s", []) == []
        assert store.info("s").head == 1

    def test_append_makes_ids_and_times(self, tmp_path: Path) -> None:
        """Events without an id get one of their own, and the time in the one form."""
        store = self.started(tmp_path)
        stored = self.put(store, "s", [note() for _ in range(50)])
        assert len({event.id for event in stored}) == 50
        for event in stored:
            assert events_module.check_ts(event.ts) == event.ts

    def test_append_orders_by_seq_when_the_clock_goes_back(self, tmp_path: Path) -> None:
        """Time is a label: a clock that goes backwards changes no order."""
        store = self.started(tmp_path)
        stored = []
        for second in (2_000_000_000, 1_000_000_000, 1_500_000_000):
            with mock.patch.object(events_module, "time", wraps=time) as clock:
                clock.time_ns.side_effect = lambda second=second: second * 10**9
                stored += self.put(store, "s", [note(second), note(second)])
        assert seqs(stored) == [1, 2, 3, 4, 5, 6]
        assert everything(store, "s") == stored
        assert store.tail("s", 2) == stored[4:]
        assert store.history("s") == stored
        assert store.verify() == []

    def test_append_keeps_times_that_are_out_of_order(self, tmp_path: Path) -> None:
        """Given times are kept, and do not order events."""
        store = self.started(tmp_path)
        times = [f"20{year}-01-01T00:00:00.000Z" for year in (30, 10, 20)]
        self.put(store, "s", [NewEvent("note", {}, ts=ts) for ts in times])
        assert [event.ts for event in store.read("s")] == times

    def test_append_side_logs_number_for_themselves(self, tmp_path: Path) -> None:
        """Each log counts from 1, and holds only its own events."""
        store = self.started(tmp_path)
        for log in (MAIN_LOG, "transcript", "subagents/a1"):
            stored = self.put(store, "s", [note(log, id="x"), note(log)], log=log)
            assert seqs(stored) == [1, 2]
        for log in (MAIN_LOG, "transcript", "subagents/a1"):
            assert [event.data["n"] for event in store.read("s", log=log)] == [log, log]

    # --- atomicity -----------------------------------------------------------------------

    @pytest.mark.parametrize("at", [0, 1, 2])
    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            pytest.param(NewEvent("note", {"x": math.nan}), InvalidData, id="data"),
            pytest.param(NewEvent("", {}), InvalidId, id="kind"),
            pytest.param(NewEvent("note", {}, id="a\nb"), InvalidId, id="id"),
            pytest.param(NewEvent("note", {}, ts="yesterday"), InvalidData, id="ts"),
            pytest.param(NewEvent("note", {}, follows=99), InvalidData, id="follows"),
        ],
    )
    def test_append_is_all_or_nothing(
        self, tmp_path: Path, bad: NewEvent, error: type[Exception], at: int
    ) -> None:
        """A batch with one invalid event writes nothing, wherever it stands."""
        store = self.started(tmp_path, events=2)
        before = everything(store, "s")
        batch = [note(), note()]
        batch.insert(at, bad)
        with pytest.raises(error):
            self.put(store, "s", batch)
        assert everything(store, "s") == before
        assert store.info("s").head == 2
        assert seqs(self.put(store, "s", [note()])) == [3]

    # --- ids that are known --------------------------------------------------------------

    @pytest.mark.parametrize("log", [MAIN_LOG, "side"])
    def test_append_catches_up_without_leaving_anything_out(self, tmp_path: Path, log: str) -> None:
        """With `known="skip"` what is new follows the head, also behind a known event."""
        store = self.started(tmp_path)
        self.put(store, "s", [note(n, id=f"u{n}") for n in (1, 2, 5)], log=log)
        caught = [note(n, id=f"u{n}") for n in (1, 2, 3, 4, 5)]
        stored = self.put(store, "s", caught, log=log, known="skip")
        assert [event.id for event in stored] == ["u1", "u2", "u3", "u4", "u5"]
        assert [e.id for e in store.history("s", log=log)] == ["u1", "u2", "u5", "u3", "u4"]
        again = self.put(store, "s", caught, log=log, expected=1, known="skip")
        assert again == stored and len(store.history("s", log=log)) == 5

    @pytest.mark.parametrize("size", [1, 3])
    def test_append_may_refuse_known_ids(self, tmp_path: Path, size: int) -> None:
        """With `known="error"` a known id is refused and nothing is written."""
        store = self.started(tmp_path)
        self.put(store, "s", [note(1, id="u1")], known="error")
        batch = [*(note(n) for n in range(1, size)), note(1, id="u1")]
        with pytest.raises(AlreadyExists, match="u1"):
            self.put(store, "s", batch, known="error")
        assert [event.id for event in everything(store, "s")] == ["u1"]
        self.put(store, "s", [note(2, id="u2"), note(3)], known="error")
        assert store.info("s").head == 3

    def test_append_knows_no_other_way_with_ids(self, tmp_path: Path) -> None:
        """Anything else is refused, whatever there is to append."""
        store = self.started(tmp_path)
        for events in ([], [note()], [note(id="x")]):
            with pytest.raises(InvalidData, match="known"):
                self.put(store, "s", events, known="overwrite")  # type: ignore[arg-type]
        assert everything(store, "s") == []

    def test_append_does_not_share_the_callers_dictionary(self, tmp_path: Path) -> None:
        """Changing a dictionary after the append does not change the log."""
        store = self.started(tmp_path)
        data: dict[str, Json] = {"list": [1], "inner": {"a": 1}}
        store.append("s", [NewEvent("note", data, id="x")])
        data["list"].append(2)
        data["inner"]["a"] = 2
        data["new"] = 3
        assert everything(store, "s")[0].data == {"list": [1], "inner": {"a": 1}}

    def test_append_does_not_share_what_was_read(self, tmp_path: Path) -> None:
        """Changing an event that was read does not change the log."""
        store = self.started(tmp_path)
        store.append("s", [NewEvent("note", {"list": [1]}, id="x")])
        everything(store, "s")[0].data["list"].append(2)
        store.find("s", "x").data["list"].append(3)
        assert everything(store, "s")[0].data == {"list": [1]}

    # --- ids -----------------------------------------------------------------------------

    def test_append_skips_an_id_within_the_batch(self, tmp_path: Path) -> None:
        """The first of two events with one id is stored, and returned for both."""
        store = self.started(tmp_path)
        stored = self.put(store, "s", [note(1, id="a"), note(2, id="b"), note(3, id="a")])
        assert [(event.seq, event.data["n"]) for event in stored] == [(1, 1), (2, 2), (1, 1)]
        assert seqs(everything(store, "s")) == [1, 2]

    def test_append_skips_an_id_of_an_earlier_batch(self, tmp_path: Path) -> None:
        """A retry returns what is there, in the order of the batch, and stores nothing."""
        store = self.started(tmp_path)
        first = self.put(store, "s", notes(3))
        again = self.put(store, "s", [note("other", id=f"e{n}") for n in (3, 1, 2)])
        assert again == [first[2], first[0], first[1]]
        assert everything(store, "s") == first

    def test_append_skips_an_id_after_reopening(self, tmp_path: Path) -> None:
        """Ids are known for as long as the log is."""
        store = self.started(tmp_path)
        first = self.put(store, "s", notes(3))
        store = self.reopen(store, tmp_path)
        assert self.put(store, "s", [note("other", id="e2")]) == [first[1]]
        assert everything(store, "s") == first

    def test_append_skips_an_id_far_back(self, tmp_path: Path) -> None:
        """An id is known however many events came after it."""
        store = self.started(tmp_path)
        first = self.put(store, "s", [note("first", id="first")])
        for _ in range(3):
            self.put(store, "s", [note() for _ in range(500)])
        assert self.put(store, "s", [note("again", id="first")]) == first
        assert store.info("s").head == 1501

    def test_append_takes_an_id_of_another_session(self, tmp_path: Path) -> None:
        """An id is unique in its log, not in the store."""
        store = self.started(tmp_path, events=1)
        store.create(SessionInfo(id="other"))
        assert self.put(store, "other", [note("own", id="e1")])[0].data == {"n": "own"}

    # --- the expected head ---------------------------------------------------------------

    def test_append_with_the_right_expected_head(self, tmp_path: Path) -> None:
        """`expected` is the head before the batch; 0 for an empty log."""
        store = self.started(tmp_path)
        assert seqs(self.put(store, "s", [note(), note()], expected=0)) == [1, 2]
        assert seqs(self.put(store, "s", [note()], expected=2)) == [3]
        assert seqs(self.put(store, "s", [note()], log="side", expected=0)) == [1]

    @pytest.mark.parametrize("expected", [0, 1, 3, 99])
    def test_append_with_another_expected_head_is_a_conflict(
        self, tmp_path: Path, expected: int
    ) -> None:
        """A head that moved on is `Conflict`, which says where it is; nothing is written."""
        store = self.started(tmp_path, events=2)
        with pytest.raises(Conflict) as caught:
            store.append("s", [note(), note()], expected=expected)
        assert (caught.value.expected, caught.value.head) == (expected, 2)
        assert seqs(everything(store, "s")) == [1, 2]

    def test_append_of_known_ids_ignores_expected(self, tmp_path: Path) -> None:
        """If all ids are present they are returned, whatever `expected` says."""
        store = self.started(tmp_path)
        first = self.put(store, "s", notes(3), expected=0)
        assert self.put(store, "s", notes(3), expected=0) == first
        assert self.put(store, "s", notes(2), expected=99) == first[:2]

    def test_append_of_some_known_ids_needs_the_expected_head(self, tmp_path: Path) -> None:
        """One new event in the batch is enough for a conflict."""
        store = self.started(tmp_path, events=2)
        with pytest.raises(Conflict):
            store.append("s", notes(3), expected=0)
        assert seqs(everything(store, "s")) == [1, 2]
        assert seqs(self.put(store, "s", notes(3), expected=2)) == [1, 2, 3]

    # --- what an event follows -----------------------------------------------------------

    def test_append_behind_a_skipped_event_follows_that_one(self, tmp_path: Path) -> None:
        """A new event behind a known one continues from it, later ones from the new one."""
        store = self.started(tmp_path, events=4)
        stored = self.put(store, "s", [note(id="e2"), note("x"), note("y")])
        assert [(event.seq, event.follows) for event in stored] == [(2, None), (5, 2), (6, None)]
        assert seqs(store.history("s")) == [1, 2, 5, 6]

    def test_append_behind_the_skipped_head_just_continues(self, tmp_path: Path) -> None:
        """Where the known event is the head, there is nothing to note."""
        store = self.started(tmp_path, events=2)
        stored = self.put(store, "s", [note(id="e2"), note("x")])
        assert [(event.seq, event.follows) for event in stored] == [(2, None), (3, None)]

    def test_append_keeps_an_explicit_follows(self, tmp_path: Path) -> None:
        """`follows` names any earlier event, 0 for none; the head itself is left out."""
        store = self.started(tmp_path, events=3)
        batch = [note(follows=1), note(follows=4), note(follows=0), note(follows=5)]
        stored = self.put(store, "s", batch)
        assert [event.follows for event in stored] == [1, None, 0, 5]
        assert everything(store, "s")[3:] == stored

    @pytest.mark.parametrize("follows", [4, 5, -1, 1.0, True, "1"])
    def test_append_refuses_to_follow_what_is_not_there(
        self, tmp_path: Path, follows: Json
    ) -> None:
        """A `follows` beyond the head, or that is no number of an event, is `InvalidData`."""
        store = self.started(tmp_path, events=3)
        with pytest.raises(InvalidData):
            self.put(store, "s", [note(follows=follows)])
        assert seqs(everything(store, "s")) == [1, 2, 3]
