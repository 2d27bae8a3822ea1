"""Check sums of events in SQLite: what changed behind the store's back is damage, and reported."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest

from backtrail import Damaged, Session, StoreFailed
from backtrail.events import Event, NewEvent, Problem, SessionInfo
from backtrail.stores.disk.schema import EVENTS
from backtrail.testing.store.base import child, joined

from .database import opened, raw, said, texts

NOBODY = 65534


def filled(place: Path, count: int = 6) -> list[Event]:
    """A session of so many events, one of them after a jump, as they were written."""
    with opened(place) as store:
        store.create(SessionInfo(id="s"))
        events = [store.append("s", [said(f"word {n}")])[0] for n in range(count - 2)]
        events += store.append("s", [said("back", id="mine", follows=2)])
        events += store.append("s", [NewEvent("checkpoint", {"at": 3}, id="point")])
    return events


def sum_of(row: tuple[Any, ...]) -> int:
    """The check sum of a row, by the words of docs/format.md."""
    key, id, ts, kind, follows, data = row
    head = f"{id}\n{ts}\n{kind}\n{key}\n{'' if follows is None else follows}\n"
    return zlib.crc32(head.encode() + data.encode())


def test_every_event_has_the_sum_that_the_format_says(tmp_path: Path) -> None:
    """Single events, batches, adopted and purged ones alike."""
    filled(tmp_path)
    with opened(tmp_path) as store:
        store.append("s", [said("a"), said("b", follows=1)], log="subagents/x")
        store.create(SessionInfo(id="fork"), base=("s", 3))
        store.append("fork", [said("on")])
        store.adopt(SessionInfo(id="t"), {"messages": [said("x"), said("y", follows=1)]})
        store.purge("s", [2, 5])
    with opened(tmp_path, durability="synced") as store:
        store.append("t", [said("synced")])
    with raw(tmp_path) as connection:
        rows: Any = connection.execute(
            "SELECT key, id, ts, kind, follows, data, crc FROM events"
        ).fetchall()
    assert len(rows) == 12
    assert [row[6] for row in rows] == [sum_of(row[:6]) for row in rows]
    assert sum(json.loads(row[5]) == {"purged": True} for row in rows) == 2


CHANGES = {
    "data": "data = replace(data, 'word 1', 'word 9')",
    "data of another event": "data = (SELECT data FROM events WHERE key & 15 = 1)",
    "id": "id = 'x' || substr(id, 2)",
    "ts": "ts = '2020' || substr(ts, 5)",
    "kind": "kind = 'system_message'",
    "follows": "follows = 0",
    "sum": "crc = crc + 1",
    "no sum": "crc = NULL",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_change_is_never_read_as_if_it_were_the_event(tmp_path: Path, change: str) -> None:
    """It costs that event, in every kind of read, and is reported by each and by `verify`."""
    events = filled(tmp_path)
    with raw(tmp_path) as connection:
        connection.execute(f"UPDATE events SET {change} WHERE key & 15 = 2")
    right = [event for event in events if event.seq != 2]
    reported: list[Problem] = []

    def check(found: object, expected: object) -> None:
        assert found == expected
        assert {seq for problem in reported for seq in problem.seqs} <= {2}
        reported.clear()

    with opened(tmp_path, on_damage=reported.append) as store:
        check(list(store.read("s")), right)
        list(store.read("s"))
        assert [problem.seqs for problem in reported] == [(2,)]
        check(list(store.read("s", reverse=True)), right[::-1])
        check(store.tail("s", 6), right)
        check(store.history("s"), [e for e in right if e.seq not in (3, 4)])
        check([seq for page in store.pages("s") for seq in page.seqs], [1, 5, 6])
        check([hit.event.seq for hit in store.search("word")], [4, 3, 1])
        assert [(p.session_id, p.seqs) for p in store.verify()] == [("s", (2,))]
        with pytest.raises(LookupError) if change.startswith("id") else pytest.raises(Damaged):
            store.find("s", events[1].id)


def test_a_changed_checkpoint_is_damaged(tmp_path: Path) -> None:
    """The look-up by id checks too."""
    filled(tmp_path)
    with raw(tmp_path) as connection:
        connection.execute("""UPDATE events SET data = '{"at":1}' WHERE id = 'point'""")
    with opened(tmp_path) as store, pytest.raises(Damaged):
        store.checkpoint("point")


def test_a_purge_does_not_make_damage_right(tmp_path: Path) -> None:
    """The body goes; that its event was changed is still reported."""
    filled(tmp_path)
    with raw(tmp_path) as connection:
        connection.execute("UPDATE events SET ts = '2020' || substr(ts, 5) WHERE key & 15 = 2")
    with opened(tmp_path) as store:
        store.purge("s", [2, 3])
        assert [event.seq for event in store.read("s")] == [1, 3, 4, 5, 6]
        assert [p.seqs for p in store.verify()] == [(2,)]
    assert b"word 1" not in (tmp_path / "x.db").read_bytes()


# --- the end of a log --------------------------------------------------------------------


@pytest.mark.parametrize("counted_by", ["list", "search"])
def test_a_log_shorter_than_what_was_counted_is_reported(tmp_path: Path, counted_by: str) -> None:
    """The numbers that are gone are named, are not used again, and stay reported."""
    events = filled(tmp_path)
    with opened(tmp_path) as store:
        store.sessions() if counted_by == "list" else store.search("word")
    with raw(tmp_path) as connection:
        connection.execute("DELETE FROM events WHERE key & 15 IN (5, 6)")
    with opened(tmp_path) as store:
        problems = [p for p in store.verify() if p.what != "database"]
        assert [(p.session_id, p.log, p.seqs) for p in problems] == [("s", "messages", (5, 6))]
        assert list(store.read("s")) == events[:4]
        assert store.append("s", [said("later")])[0].seq == 7
        assert [event.seq for event in store.read("s")] == [1, 2, 3, 4, 7]
        assert [p.seqs for p in store.verify() if p.what != "database"] == [(5, 6)]
        assert store.info("s").head == 7


def test_a_fork_whose_parent_lost_its_end_is_reported(tmp_path: Path) -> None:
    """Also where nothing was counted."""
    filled(tmp_path)
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="fork"), base=("s", 4))
        store.delete("s")
    with raw(tmp_path) as connection:
        connection.execute("DELETE FROM events WHERE key & 15 IN (3, 4)")
    with opened(tmp_path) as store:
        assert [(p.session_id, p.seqs) for p in store.verify()] == [("fork", (3, 4))]


def test_rows_that_no_session_reads_are_reported(tmp_path: Path) -> None:
    """Of a log that is none, and with numbers that no event has."""
    filled(tmp_path)
    with raw(tmp_path) as connection:
        insert = "INSERT INTO events VALUES(?1, 'x' || ?1, 'y', 'z', NULL, '{}', 1)"
        for key in (77 << 32 | 1, -5, 1 << 32, 1 << 32 | 1 << 31, 1 << 32 | (1 << 32) - 1):
            connection.execute(insert, (key,))
    with opened(tmp_path) as store:
        assert [p.what for p in store.verify()] == ["stray"] * 3
        assert sum(p.count for p in store.verify()) == 5
        assert store.append("s", [said("on")])[0].seq == 7
        assert [event.seq for event in store.read("s")] == [1, 2, 3, 4, 5, 6, 7]


# --- stores of an earlier version --------------------------------------------------------


def older(place: Path) -> list[tuple[Any, ...]]:
    """A database as version 1 of the schema has it, with a session, a fork and a side log."""
    rows = [
        (1 << 32 | 1, "a", "2026-01-01T00:00:00.001Z", "user_message", None, said("one")),
        (1 << 32 | 2, "b", "2026-01-01T00:00:00.002Z", "user_message", None, said("two")),
        (1 << 32 | 3, "c", "2026-01-01T00:00:00.003Z", "user_message", 1, said("three")),
        (2 << 32 | 1, "d", "2026-01-01T00:00:00.004Z", "note", None, NewEvent("note", {})),
        (3 << 32 | 3, "e", "2026-01-01T00:00:00.005Z", "user_message", None, said("four")),
    ]
    connection = apsw.Connection(str(place / "x.db"))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute(f"{EVENTS.setup}; PRAGMA journal_mode = WAL").fetchall()
    with connection:
        connection.execute(EVENTS.migrations[0]).fetchall()
        connection.execute(f"PRAGMA application_id = {EVENTS.application}")
        connection.execute("PRAGMA user_version = 1")
        for id, parent, seq in (("s", None, None), ("f", "s", 2)):
            connection.execute(
                "INSERT INTO sessions(scope, id, parent_id, relation, fork_seq, created_at, "
                "tags, metadata, updated_at) VALUES('', ?, ?, ?, ?, ?, '[]', '{}', ?)",
                (id, parent, parent and "fork", seq, rows[0][2], rows[0][2]),
            )
        logs = ((1, "messages", 0), (1, "subagents/x", 0), (2, "messages", 2))
        for log in logs:
            connection.execute("INSERT INTO logs(session, name, base) VALUES(?, ?, ?)", log)
        connection.execute("INSERT INTO shares VALUES(3, 0, 1, 2)")
        connection.execute("INSERT INTO dirty VALUES(1), (3)")
        for row in rows:
            body = json.dumps(row[5].data)
            connection.execute("INSERT INTO events VALUES(?, ?, ?, ?, ?, ?)", (*row[:5], body))
    connection.close()
    return rows


def test_a_store_of_an_earlier_version_is_read_and_sealed(tmp_path: Path) -> None:
    """Its events are unchecked until they are sealed; new ones are checked from the start."""
    older(tmp_path)
    with opened(tmp_path) as store:
        assert store.verify() == []
        assert texts(store, "s") == ["one", "two", "three"]
        assert texts(store, "f") == ["one", "two", "four"]
        assert store.tail("s", 1)[0].follows == 1
        assert [hit.event.id for hit in store.search("two")] == ["b"]
        assert store.find("s", "c").seq == 3
        store.append("s", [said("new")])
        assert store.seal(dry_run=True) == 5
        with raw(tmp_path) as connection:
            connection.execute("UPDATE events SET kind = 'other' WHERE id = 'b'")
        assert store.verify() == []
        assert store.seal() == 5
        assert store.seal() == store.seal(dry_run=True) == 0
        assert store.verify() == []
        with raw(tmp_path) as connection:
            connection.execute("UPDATE events SET kind = 'user_message' WHERE id = 'b'")
        assert {(p.session_id, p.seqs) for p in store.verify()} == {("s", (2,)), ("f", (2,))}


def test_a_new_event_without_a_sum_is_damaged_in_an_older_store(tmp_path: Path) -> None:
    """Only what was there before the migration may lack one."""
    older(tmp_path)
    with opened(tmp_path) as store:
        store.append("s", [said("new")])
        with raw(tmp_path) as connection:
            connection.execute("UPDATE events SET crc = NULL")
        assert texts(store, "s") == ["one", "two", "three"]
        assert [p.seqs for p in store.verify()] == [(4,)]


def test_a_damaged_event_is_not_sealed(tmp_path: Path) -> None:
    """What cannot be read gets no sum; the others do."""
    older(tmp_path)
    with raw(tmp_path) as connection:
        connection.execute("UPDATE events SET follows = 9 WHERE id = 'b'")
        connection.execute("UPDATE events SET id = CAST(x'ff' AS TEXT) WHERE id = 'e'")
    with opened(tmp_path) as store:
        assert store.seal() == 3
        assert texts(store, "s") == ["one", "three"]
        assert {(p.session_id, p.seqs) for p in store.verify()} >= {("s", (2,)), ("f", (3,))}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_an_older_store_that_may_only_be_read_is_read() -> None:
    """It cannot be brought up to date, and is looked at as it is."""
    with TemporaryDirectory() as name:
        place = Path(name)
        older(place)
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        assert joined([child(as_nobody(lambda: _look(place)))]) == [0]
        with raw(place) as connection:
            assert connection.execute("PRAGMA user_version").get == 1


def as_nobody(act: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        act()

    return run


def _look(place: Path) -> None:
    with opened(place) as store:
        assert texts(store, "s") == ["one", "two", "three"]
        assert [event.id for event in store.tail("f", 2)] == ["b", "e"]
        assert [info.message_count for info in store.sessions()] == [3, 2]
        assert [hit.event.id for hit in store.search("two")] == ["b"]
        assert list(store.pages("s")) and store.find("s", "c").seq == 3
        assert store.verify() == []
        with pytest.raises(StoreFailed):
            store.append("s", [said("new")])


def test_a_session_goes_on_in_an_older_store(tmp_path: Path) -> None:
    """The verbs of `Session` know nothing of it."""
    older(tmp_path)
    with opened(tmp_path) as store, Session.open(store, "s") as session:
        session.append({"role": "user", "content": "five"})
        assert [m["content"] for m in session.messages()] == ["one", "three", "five"]
        assert store.verify() == []
