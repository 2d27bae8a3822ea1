"""Rules of names: hostile ids are refused everywhere, and odd but allowed ones work."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...errors import InvalidId, NotFound
from ...events import Json, NewEvent, SessionInfo
from .base import ContractBase, assert_all_raise, everything, note, seqs

HOSTILE = ["../x", "/abs", "", "a/b", ".", "..", ".hidden", "a\0", "a\n", "\n", "x" * 300, "-x"]
HOSTILE += ["a b", "a\\b", "é", "a:b", "a*", "\ud800", "x" * 129, "٣"]
NOT_TEXT: list[Json] = [None, 5, b"s", ["s"], Path("s")]
HOSTILE_LOGS = ["../x", "/abs", "", ".", "..", "a/../b", "a//b", "a/", "/", "a/.", "a/-x", "a\0"]
HOSTILE_LOGS += ["messages\n", "x" * 300, "a/" * 300 + "a", "a b", "messages/../x", "a\\b"]


def shown(value: Json) -> str:
    """A short name for a test."""
    return repr(value)[:20].encode("ascii", "backslashreplace").decode()


def tree(tmp_path: Path) -> list[str]:
    """Every path below a directory."""
    return sorted(str(path) for path in tmp_path.rglob("*"))


class IdRules(ContractBase):
    """Session ids, log names, event ids, kinds."""

    @pytest.mark.parametrize("id", [*HOSTILE, *NOT_TEXT], ids=shown)
    def test_id_of_a_session_that_is_hostile_is_refused(self, tmp_path: Path, id: Json) -> None:
        """Every method refuses it with `InvalidId`, and nothing is made on disk."""
        store = self.started(tmp_path, events=1)
        before = tree(tmp_path)
        calls = self.session_calls(store, id)
        calls["create"] = lambda: store.create(SessionInfo(id=id))
        if id is not None:
            calls["parent"] = lambda: store.create(SessionInfo(id="child", parent_id=id))
        assert_all_raise(calls, InvalidId)
        assert tree(tmp_path) == before
        assert [info.id for info in store.sessions()] == ["s"]
        assert store.verify() == []

    @pytest.mark.parametrize("log", [*HOSTILE_LOGS, *NOT_TEXT], ids=shown)
    def test_id_of_a_log_that_is_hostile_is_refused(self, tmp_path: Path, log: Json) -> None:
        """Every method refuses it with `InvalidId`, and nothing is made on disk."""
        store = self.started(tmp_path, events=1)
        before = tree(tmp_path)
        calls = self.log_calls(store, "s", log)
        if log is None:
            del calls["delete log"]
        assert_all_raise(calls, InvalidId)
        assert tree(tmp_path) == before
        assert store.logs("s") == ["messages"]

    @pytest.mark.parametrize(
        "id", ["a", "0", "_", "A.b_c-9", "x" * 128, "a..b", "metadata.json", "CON", "a."]
    )
    def test_id_of_a_session_may_be_odd(self, tmp_path: Path, id: str) -> None:
        """Whatever the alphabet allows works."""
        store = self.started(tmp_path, id, events=2)
        assert seqs(everything(store, id)) == [1, 2]
        assert store.sessions()[0].id == id

    def test_id_of_a_log_may_be_odd(self, tmp_path: Path) -> None:
        """Logs whose names look like files or folders of a store do not disturb each other."""
        store = self.started(tmp_path)
        logs = ["a", "a/b", "a.jsonl", "a.jsonl/b", "lock", "lock/x", "lease", "lease/x"]
        logs += ["metadata.json", "metadata.json/x", "messages/x", "messages.jsonl"]
        logs += ["messages.jsonl/x", "subagents", "subagents/a1", "subagents/a1/b", "x" * 128]
        for log in logs:
            self.put(store, "s", [note(log), note(log)], log=log)
        assert store.logs("s") == sorted([*logs, "messages"])
        for log in logs:
            assert [event.data["n"] for event in store.read("s", log=log)] == [log, log]
        assert everything(store, "s") == []
        enterable = store.lease("s")
        with enterable:
            store.delete("s", log="lease/x")
        store.delete("s")
        assert store.sessions() == []

    # --- events --------------------------------------------------------------------------

    @pytest.mark.parametrize("id", ["x" * 256, "a b", "../x", "'\"`", "ü🦜", "0", "{}"], ids=shown)
    def test_id_of_an_event_is_any_printable_text(self, tmp_path: Path, id: str) -> None:
        """1 to 256 printable characters, kept and compared as they are."""
        store = self.started(tmp_path)
        stored = self.put(store, "s", [NewEvent("note", {}, id=id), note(id="other")])
        assert stored[0].id == id
        assert store.find("s", id) == stored[0]
        assert self.put(store, "s", [NewEvent("note", {}, id=id)]) == stored[:1]

    def test_id_of_an_event_is_compared_exactly(self, tmp_path: Path) -> None:
        """Case, spaces and composition make different ids."""
        store = self.started(tmp_path)
        ids = ["a", "A", " a", "a ", "é", "e\u0301", "1", "01", "1.0"]
        assert seqs(self.put(store, "s", [note(id=id) for id in ids])) == list(range(1, 10))
        with pytest.raises(NotFound):
            store.find("s", "É")

    @pytest.mark.parametrize("id", ["", "x" * 257, "a\nb", "a\0", "\u2028", "\ud800", 5], ids=shown)
    def test_id_of_an_event_that_is_no_such_text_is_refused(self, tmp_path: Path, id: Json) -> None:
        """An id that cannot be shown on one line is `InvalidId`; nothing is written."""
        store = self.started(tmp_path)
        with pytest.raises(InvalidId):
            store.append("s", [note(), NewEvent("note", {}, id=id)])
        with pytest.raises(InvalidId):
            store.append("s", [note(), NewEvent(id, {})])
        assert everything(store, "s") == []

    @pytest.mark.parametrize("kind", ["my.kind", "x" * 256, "ü 🦜", "messages", "null"], ids=shown)
    def test_id_of_a_kind_is_any_printable_text(self, tmp_path: Path, kind: str) -> None:
        """Kinds the library does not know pass through, and can be asked for."""
        store = self.started(tmp_path)
        stored = self.put(store, "s", [note(), NewEvent(kind, {"a": 1}), note()])
        assert list(store.read("s", kinds=(kind,))) == stored[1:2]
        assert stored[1].kind == kind
