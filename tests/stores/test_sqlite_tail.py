"""The end of a log in SQLite: by one statement, and the same as the long way says."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from backtrail.errors import Closed, InvalidData, InvalidId, NotFound
from backtrail.events import MAIN_LOG, NewEvent, Problem, SessionInfo
from backtrail.stores import Store
from backtrail.stores.sqlite import SQLiteStore


def said(number: int) -> NewEvent:
    return NewEvent("user_message", {"message": {"role": "user", "content": f"text {number}"}})


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    """A session of 100 events with a side log, and a fork with few events of its own."""
    made = SQLiteStore(tmp_path / "x.db")
    made.create(SessionInfo("s"))
    made.append("s", [said(number) for number in range(100)])
    made.append("s", [said(1), said(2), said(3)], log="agents/side")
    made.create(SessionInfo("other"))
    made.append("other", [said(number) for number in range(100)])
    made.create(SessionInfo("fork"), base=("s", 50))
    made.append("fork", [said(number) for number in range(5)])
    made.create(SessionInfo("empty"))
    return made


@pytest.mark.parametrize("n", [1, 2, 5, 6, 20, 55, 64, 65, 100, 101, 5000])
@pytest.mark.parametrize(
    ("session_id", "log"),
    [("s", MAIN_LOG), ("s", "agents/side"), ("s", "none"), ("fork", MAIN_LOG), ("empty", MAIN_LOG)],
)
def test_tail_is_the_end_of_what_is_read(
    store: SQLiteStore, session_id: str, log: str, n: int
) -> None:
    """In every log: long, short, shared, never written to."""
    with store:
        assert store.tail(session_id, n, log=log) == list(store.read(session_id, log=log))[-n:]


def test_tail_reports_damage_and_goes_on_behind_it(tmp_path: Path, store: SQLiteStore) -> None:
    """As many as asked for, without the one that cannot be read."""
    store.close()
    connection = apsw.Connection(str(tmp_path / "x.db"))
    last = connection.execute("SELECT max(key) FROM events WHERE key >> 32 = 1").get
    connection.execute("UPDATE events SET data = '{\"cut' WHERE key = ?", (last - 1,))
    connection.close()
    problems: list[Problem] = []
    with SQLiteStore(tmp_path / "x.db", on_damage=problems.append) as again:
        assert [event.seq for event in again.tail("s", 3)] == [97, 98, 100]
        assert [(problem.session_id, problem.seqs) for problem in problems] == [("s", (99,))]


def test_tail_refuses_what_reading_refuses(store: SQLiteStore) -> None:
    """With the same errors."""
    with store:
        for n in (0, -1):
            with pytest.raises(InvalidData):
                store.tail("s", n)
        for bad in ("../x", "", "a/b"):
            with pytest.raises(InvalidId):
                store.tail(bad, 1)
        with pytest.raises(InvalidId):
            store.tail("s", 1, log="../x")
        with pytest.raises(NotFound):
            store.tail("missing", 1)
        store.delete("other")
        with pytest.raises(NotFound):
            store.tail("other", 1)
        assert len(Store.tail(store, "fork", 55)) == 55
    with pytest.raises(Closed):
        store.tail("s", 1)
