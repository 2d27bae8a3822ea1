"""Retention: what was not touched for long goes, and nothing else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backtrail import NewEvent, Session, SessionInfo, Store, open_store, telemetry
from backtrail.errors import InvalidData
from backtrail.events import timestamp
from backtrail.stores import retention
from backtrail.stores.notes import SessionMemory


def ago(days: float) -> str:
    return timestamp(datetime.now(UTC) - timedelta(days=days))


def add(store: Store, id: str, days: float, *tags: str) -> None:
    """A session that was last updated so many days ago."""
    store.create(SessionInfo(id, created_at=ago(days), tags=list(tags)))
    store.append(id, [NewEvent("note", {"of": id}, ts=ago(days))])


def ids(store: Store) -> set[str]:
    return {info.id for info in store.sessions()}


@pytest.mark.parametrize(
    "text", ["", "30", "d", "0d", "-1d", "1m", "1.5d", "30 days", "9" * 12 + "w"]
)
def test_a_bad_retention_is_refused(text: str, tmp_path: Path) -> None:
    """Before anything is opened or removed."""
    with pytest.raises(InvalidData, match="retention"):
        open_store(f"file:{tmp_path}/store", retention=text)
    assert not (tmp_path / "store").exists()


def test_units() -> None:
    """Hours, days and weeks."""
    assert retention.period("12h") == timedelta(hours=12)
    assert retention.period("30d") == timedelta(days=30)
    assert retention.period("8w") == timedelta(weeks=8)


def test_the_old_go_when_the_store_is_opened(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Told in the log and to listeners; the young, the pinned and the live stay."""
    heard: list[telemetry.Signal] = []
    with open_store(url) as store:
        add(store, "old", 40)
        add(store, "older", 50)
        add(store, "pinned", 40, "pinned")
        add(store, "live", 40)
        add(store, "young", 20)
        add(store, "resumed", 40)
        store.append("resumed", [NewEvent("note", {})])
        note = SessionMemory(store, "/some/where")
        note.write("keep this")
        store.memory("/any/where").write("keep this too")
        caplog.set_level(logging.INFO, "backtrail")
        stop = telemetry.listen(heard.append)
        with store.lease("live"), open_store(url, retention="30d") as again:
            stop()
            assert ids(again) - {note._id} == {"pinned", "live", "young", "resumed"}
            assert again.memory("/any/where").read() == "keep this too"
        assert note.read() == "keep this"
        reported = [signal for signal in heard if signal.name == "store.retention"]
        assert [set(signal.metadata["sessions"]) for signal in reported] == [{"old", "older"}]
        assert reported[0].measurements["count"] == 2
        assert sum("older" in record.getMessage() for record in caplog.records) == 1


def test_what_this_process_has_open_stays(url: str) -> None:
    """Though it has no driver, and nothing was written yet."""
    with open_store(url) as store:
        add(store, "old", 40)
        with Session.resume(store, "old") as session, open_store(url) as again:
            assert retention.sweep(again, "30d") == []
            session.append({"role": "user", "content": "still here"})
        add(store, "older", 40)
        Session.resume(store, "older").close()
        assert [info.id for info in retention.sweep(store, "30d")] == ["older"]


def test_a_store_in_memory_is_swept_daily_too(later: Callable[[float], None]) -> None:
    """Not with every opening of its name."""
    url = "memory:swept-daily"
    open_store(url, retention="30d")
    add(open_store(url), "old", 40)
    for hours, left in ((0, {"old"}), (25, set[str]())):
        later(hours)
        assert ids(open_store(url, retention="30d")) == left


def test_old_notes_stay(url: str) -> None:
    """Also where a store keeps them as sessions."""
    with open_store(url) as store:
        note = SessionMemory(store, "/some/where")
        add(store, note._id, 400)
        assert retention.sweep(store, "1d") == []
        assert note._id in ids(store)


def test_a_dry_run_names_and_removes_nothing(url: str) -> None:
    """The same sessions as go then, newest first."""
    with open_store(url) as store:
        add(store, "a", 40)
        add(store, "b", 50)
        add(store, "live", 40)
        with store.lease("live"):
            reported = retention.sweep(store, "30d", dry_run=True)
            assert [info.id for info in reported] == ["a", "b"]
            assert ids(store) == {"a", "b", "live"}
            assert [info.id for info in retention.sweep(store, "30d")] == ["a", "b"]
        assert ids(store) == {"live"}


def test_forks_of_what_went_stay_whole(url: str) -> None:
    """They read all they read before."""
    with open_store(url) as store:
        add(store, "old", 40)
        store.create(SessionInfo("fork"), base=("old", 1))
        assert [info.id for info in retention.sweep(store, "30d")] == ["old"]
        assert [event.data for event in store.read("fork")] == [{"of": "old"}]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many hours pass, for the stamp."""
    clock, passed = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + passed[0])

    def wait(hours: float) -> None:
        passed[0] += hours * 3600

    return wait


def test_at_most_daily(disk_url: str, later: Callable[[float], None]) -> None:
    """For each scope, unless the retention changes; the stamp lies beside the store."""
    for scope in ("", "team"):
        open_store(disk_url, scope=scope, retention="30d").close()
        with open_store(disk_url, scope=scope) as store:
            add(store, "old", 40)
    for hours, left in ((0, {"old"}), (23, {"old"}), (2, set[str]())):
        later(hours)
        with open_store(disk_url, retention="30d") as store:
            assert ids(store) == left
    with open_store(disk_url, scope="team") as store:
        assert ids(store) == {"old"}
    open_store(disk_url, scope="team", retention="29d").close()
    with open_store(disk_url, scope="team") as store:
        assert ids(store) == set()


def test_a_stamp_that_cannot_be_read_is_none(disk_url: str) -> None:
    """Damaged, or from the future."""
    open_store(disk_url, retention="30d").close()
    with open_store(disk_url) as store:
        path = retention._stamp_path(store)
        assert path is not None and path.exists()
        assert path.stat().st_mode & 0o777 == 0o600
        for text in ("{", '{"": 1}', f'{{"": ["30d", {time.time() + 1e6}]}}'):
            path.write_text(text)
            add(store, "old", 40)
            with open_store(disk_url, retention="30d") as again:
                assert ids(again) == set()


def test_the_stamp_is_not_captured(tmp_path: Path) -> None:
    """A store inside of a workspace stays out of its trees."""
    for url in (f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b"):
        with open_store(url, retention="30d") as store:
            with Session.create(store, "s", cwd=tmp_path) as session:
                session.append({"role": "user", "content": "hi"})
                first = session.checkpoint("x").tree
                path = retention._stamp_path(store)
                assert path is not None
                path.write_text("{}")
                assert session.checkpoint("y").tree == first
            store.delete("s")
