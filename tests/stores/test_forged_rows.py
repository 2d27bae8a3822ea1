"""Rows of a SQLite store with right check sums that no writer of ours made."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from backtrail import Damaged, Session, copy_sessions, open_store
from backtrail.events import Event, NewEvent, SessionInfo
from backtrail.events.history import branches
from backtrail.exchange.bundle import write_bundle
from backtrail.stores import Store

from .database import raw

TS = "2026-01-01T00:00:00.000Z"


def forged(place: Path, *rows: tuple[int, int | None]) -> Store:
    """A session of five events, and rows behind them: number and `follows` of each."""
    store = open_store(f"sqlite:///{place}/x.db")
    store.create(SessionInfo(id="s"))
    store.append("s", [NewEvent("user_message", {"message": {"role": "user"}})] * 5)
    with raw(place) as connection:
        for seq, follows in rows:
            key = 1 << 32 | seq
            head = f"f{seq}\n{TS}\nnote\n{key}\n{'' if follows is None else follows}\n"
            row = (key, f"f{seq}", TS, "note", follows, "{}", zlib.crc32(head.encode() + b"{}"))
            connection.execute("INSERT INTO events VALUES(?, ?, ?, ?, ?, ?, ?)", row)
    return store


@pytest.mark.parametrize("follows", [6, 7, 2**31, 2**62, -1])
def test_an_event_that_does_not_follow_an_earlier_one(tmp_path: Path, follows: int) -> None:
    """It is damage; the branches of the log can be drawn, and the log goes on."""
    with forged(tmp_path, (6, follows)) as store:
        assert [event.seq for event in store.read("s")] == [1, 2, 3, 4, 5]
        assert [event.seq for event in store.history("s")] == [1, 2, 3, 4, 5]
        assert [problem.seqs for problem in store.verify()] == [(6,)]
        with Session.open(store, "s") as session:
            assert session.branches() == []
        assert store.append("s", [NewEvent("note", {})])[0].seq == 7
        assert store.tail("s", 1)[0].seq == 7


@pytest.mark.parametrize("seq", [2**31, 2**31 + 5, 2**32 - 1])
def test_a_number_beyond_the_bound(tmp_path: Path, seq: int) -> None:
    """It is reported and not read, and the next append is read."""
    with forged(tmp_path, (seq, None)) as store:
        assert [event.seq for event in store.read("s")] == [1, 2, 3, 4, 5]
        assert [event.seq for event in store.read("s", reverse=True)] == [5, 4, 3, 2, 1]
        assert [problem.what for problem in store.verify()] == ["stray"]
        new = store.append("s", [NewEvent("note", {})])
        assert store.tail("s", 1) == new and new[0].seq == 6


def test_the_last_number_there_is(tmp_path: Path) -> None:
    """Nothing can be appended behind it, and that is said."""
    with forged(tmp_path, (2**31 - 1, None)) as store:
        with pytest.raises(ValueError, match="full"):
            store.append("s", [NewEvent("note", {})])
        with pytest.raises(ValueError, match="full"):
            store.append("s", [NewEvent("user_message", {})])
        assert len(list(store.read("s"))) == 6


def test_a_gap_that_no_damage_leaves_is_not_filled(tmp_path: Path) -> None:
    """A copy or an export says so instead of filling millions of numbers."""
    with forged(tmp_path, (2**30, None)) as store, open_store("memory:") as other:
        with pytest.raises(Damaged, match="no events from 6"):
            copy_sessions(store, other)
        with pytest.raises(Damaged, match="no events from 6"):
            write_bundle(store, "s", tmp_path / "x.btb")
        assert [problem.what for problem in store.verify()] == ["gap"]


def test_branches_of_events_that_follow_each_other() -> None:
    """Whatever a store hands out, drawing them ends."""
    events = [
        Event(seq, str(seq), TS, "user_message", {}, follows)
        for seq, follows in ((1, None), (2, 5), (3, 3), (4, 2), (5, 2), (6, 9), (7, 1))
    ]
    assert [branch.head for branch in branches(events)] == [3, 4, 6]
