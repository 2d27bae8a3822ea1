"""Rules of `adopt`: a session from elsewhere is taken over whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...errors import AlreadyExists, InvalidData, InvalidId, NotFound
from ...events import Json, NewEvent, SessionInfo
from .base import ContractBase, everything, note, notes, seqs


class AdoptingRules(ContractBase):
    """`adopt`."""

    def test_adopt_keeps_everything(self, tmp_path: Path) -> None:
        """Numbers, ids, times, `follows`, side logs, the record and its counts."""
        store = self.open(tmp_path)
        ts = "2026-01-02T03:04:05.678Z"
        said = {"message": {"role": "user", "content": "hi"}, "format": "openai"}
        main = [
            NewEvent("user_message", said, id="a", ts=ts),
            *notes(700),
            NewEvent("rewound", {}, id="z", follows=1, ts=ts),
        ]
        record = SessionInfo(id="s", title="t", created_at=ts, tags=["x"], metadata={"k": 1})
        store.adopt(record, {"subagents/a1": notes(3), "messages": main})
        events = everything(store, "s")
        assert seqs(events) == list(range(1, 703))
        assert [event.id for event in events] == [event.id for event in main]
        assert (events[0].ts, events[0].data, events[-1].follows) == (ts, said, 1)
        assert [event.id for event in store.history("s")] == ["a", "z"]
        assert store.logs("s") == ["messages", "subagents/a1"]
        assert [event.id for event in everything(store, "s", "subagents/a1")] == ["e1", "e2", "e3"]
        info = store.info("s")
        assert (info.title, info.created_at, info.tags, info.metadata) == ("t", ts, ["x"], {"k": 1})
        assert (info.head, info.message_count, info.turn_count) == (702, 1, 1)
        assert seqs(self.put(store, "s", [note(id="next")])) == [703]
        assert store.verify() == []

    def test_adopt_without_logs_is_an_empty_session(self, tmp_path: Path) -> None:
        """The main log is always there."""
        store = self.open(tmp_path)
        store.adopt(SessionInfo(id="s"), {})
        assert (store.info("s").head, store.logs("s")) == (0, ["messages"])

    @pytest.mark.parametrize("at", [0, 1, 300, 599])
    def test_adopt_that_fails_leaves_nothing(self, tmp_path: Path, at: int) -> None:
        """Wherever the events stop coming; the same id can be adopted afterwards."""
        store = self.open(tmp_path)

        def failing() -> Iterator[NewEvent]:
            yield from notes(at)
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            store.adopt(SessionInfo(id="s"), {"side": notes(2), "messages": failing()})
        assert store.sessions() == []
        with pytest.raises(NotFound):
            store.logs("s")
        store.adopt(SessionInfo(id="s"), {"messages": notes(2)})
        assert store.info("s").head == 2

    def test_adopt_changes_nothing_that_is_there(self, tmp_path: Path) -> None:
        """An id or a key in use is refused."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id="s", key="k"))
        self.put(store, "s", notes(1))
        before = store.info("s")
        for info in (SessionInfo(id="s"), SessionInfo(id="t", key="k")):
            with pytest.raises(AlreadyExists):
                store.adopt(info, {"messages": notes(5)})
        assert [info.id for info in store.sessions()] == ["s"]
        assert store.info("s") == before

    @pytest.mark.parametrize("follows", [2, 3, 1 << 31, 1 << 63, -1, True, "1"])
    def test_adopt_refuses_to_follow_what_is_no_earlier_event(
        self, tmp_path: Path, follows: Json
    ) -> None:
        """An event from elsewhere follows neither itself nor a later one; nothing is adopted."""
        store = self.open(tmp_path)
        for log in ("messages", "side"):
            with pytest.raises(InvalidData):
                forged = [note(id="a"), note(id="b", follows=follows), *notes(2)]
                store.adopt(SessionInfo(id="s"), {log: forged})
            assert store.sessions() == []

    def test_adopt_refuses_bad_events(self, tmp_path: Path) -> None:
        """Ids that come twice, data that is no JSON, names that are none."""
        store = self.open(tmp_path)
        twice = [*notes(300), note(id="e1")]
        with pytest.raises(InvalidData):
            store.adopt(SessionInfo(id="s"), {"messages": twice})
        with pytest.raises(InvalidData):
            store.adopt(SessionInfo(id="s"), {"messages": [note(float("nan"))]})
        with pytest.raises(InvalidId):
            store.adopt(SessionInfo(id="s"), {"../x": notes(1)})
        with pytest.raises(InvalidId):
            store.adopt(SessionInfo(id="../s"), {"messages": notes(1)})
        assert store.sessions() == []
