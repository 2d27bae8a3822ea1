"""Rules for callers that share sessions: heads that are believed in, ids, several at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...errors import Conflict, InvalidData, NotFound, Unsupported
from ...events import MAIN_LOG, NewEvent, SessionInfo
from .base import ContractBase, everything, note, notes


class SeveralRules(ContractBase):
    """`expected` of `update` and `delete`, `locate`, `append_many`, `sessions(metadata=)`."""

    @pytest.mark.parametrize("log", [None, "side"])
    def test_delete_expects_a_head(self, tmp_path: Path, log: str | None) -> None:
        """With another head than believed nothing is deleted; with that one it is."""
        store = self.started(tmp_path, events=2)
        self.put(store, "s", notes(2), log="side")
        for wrong in (0, 1, 3):
            with pytest.raises(Conflict) as caught:
                store.delete("s", log=log, expected=wrong)
            assert (caught.value.expected, caught.value.head) == (wrong, 2)
        assert len(everything(store, "s", log=log or MAIN_LOG)) == 2
        store.delete("s", log=log, expected=2)
        if log is None:
            with pytest.raises(NotFound):
                store.info("s")
        else:
            assert store.logs("s") == [MAIN_LOG]

    def test_update_expects_a_head(self, tmp_path: Path) -> None:
        """With another head than believed nothing is changed."""
        store = self.started(tmp_path)
        store.update("s", expected=0, title="empty")
        self.put(store, "s", notes(2))
        with pytest.raises(Conflict):
            store.update("s", expected=0, title="late")
        assert store.info("s").title == "empty"
        assert store.update("s", expected=2, title="now").title == "now"

    def test_sessions_by_metadata(self, tmp_path: Path) -> None:
        """Each key must be there with that value, and other filters count as well."""
        store = self.open(tmp_path)
        for n in range(4):
            metadata = {"n": n, "even": n % 2 == 0, "deep": {"list": [n]}}
            store.create(SessionInfo(id=f"s{n}", metadata=metadata))

        def found(**metadata: object) -> list[str]:
            return sorted(info.id for info in store.sessions(metadata=metadata))

        assert found(even=True) == ["s0", "s2"]
        assert found(even=True, deep={"list": [2]}) == ["s2"]
        assert found(n="1") == found(absent=None) == []
        assert len(store.sessions(metadata={})) == 4
        assert len(store.sessions(metadata={"even": False}, limit=1)) == 1
        with pytest.raises(InvalidData):
            store.sessions(metadata=["n"])  # type: ignore[arg-type]

    def test_locate_finds_ids_of_callers(self, tmp_path: Path) -> None:
        """In whatever session and log; what was never given is `NotFound`."""
        store = self.started(tmp_path, events=1)
        store.create(SessionInfo(id="other"))
        self.put(store, "other", [note(1), note(2, id="mine")])
        self.put(store, "s", [note(3, id="beside")], log="side")
        assert store.locate("mine") == ("other", MAIN_LOG, 2)
        assert store.locate("beside") == ("s", "side", 1)
        store.create(SessionInfo(id="fork"), base=("other", 2))
        assert store.locate("mine") == ("other", MAIN_LOG, 2)
        store.delete("other")
        assert store.locate("mine") == ("fork", MAIN_LOG, 2)
        with pytest.raises(NotFound):
            store.locate("nothing")

    def test_append_to_several_sessions_is_all_or_nothing(self, tmp_path: Path) -> None:
        """One that cannot be written keeps the others from being written."""
        store = self.started(tmp_path, events=1)
        store.create(SessionInfo(id="b"))
        try:
            stored = store.append_many({"s": [note(1, id="x")], "b": notes(2)})
        except Unsupported:
            pytest.skip("it appends to one session at a time")
        stored = {id: self.settle(store, id, MAIN_LOG, new) for id, new in stored.items()}
        assert [event.seq for event in stored["s"]] == [2]
        assert [event.seq for event in stored["b"]] == [1, 2]
        before = everything(store, "s"), everything(store, "b")
        for wrong in ({"gone": notes(1)}, {"b": [NewEvent("note", {}, follows=99)]}):
            with pytest.raises((NotFound, InvalidData)):
                store.append_many({"s": notes(1, 9), **wrong})
        assert (everything(store, "s"), everything(store, "b")) == before
        again = store.append_many({"s": [note(1, id="x")], "b": []})
        assert [event.seq for event in again["s"]] == [2] and again["b"] == []
        self.put(store, "s", notes(1, 9))
        assert store.info("s").head == 3 and store.info("b").head == 2
