"""Copying sessions between stores, with their forks, side logs and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import (
    AlreadyExists,
    Conflict,
    Event,
    NotFound,
    Problem,
    Session,
    SessionInfo,
    Store,
    copy_sessions,
    open_store,
)
from backtrail.stores.jsonl.lines import encode_line

from .talking import assistant, kinds, talk, texts, user


def whole(store: Store) -> dict[str, object]:
    """Everything in a store, but the notes, which some stores keep as sessions."""
    return {
        info.id: (
            info,
            {log: list(store.read(info.id, log=log)) for log in store.logs(info.id)},
        )
        for info in store.sessions()
        if not info.id.startswith("memory-")
    }


def fill(store: Store, cwd: Path) -> None:
    """A session with a rewind, a checkpoint, side logs, a fork of a fork, and a note."""
    with Session.create(
        store, "s", cwd=cwd, title="T", key="k", tags=["t"], metadata={"a": 1}, system_prompt="P"
    ) as s:
        events = talk(s, "one", "two")
        s.checkpoint("here")
        s.rewind(events[1])
        s.append(assistant("a"), usage={"input_tokens": 3}, cost_usd=0.5)
        s.log("transcript").append({"raw": "ü"})
        s.subagent("a1").append({"text": "hi"})
        with s.fork(session_id="f", at=events[2]) as fork:
            talk(fork, "three")
            with fork.fork(session_id="g") as again:
                again.append(user("four"))
    store.memory(cwd).write("# Notes")


def test_copies_are_equal_and_come_back_equal(tmp_path: Path) -> None:
    """JSONL to SQLite to JSONL: numbers, ids, times and records stay."""
    with (
        open_store(f"file:{tmp_path}/a") as first,
        open_store(f"sqlite:///{tmp_path}/b.db") as second,
        open_store(f"file:{tmp_path}/c") as third,
    ):
        fill(first, tmp_path)
        done = copy_sessions(first, second)
        assert (done.sessions, done.lost) == (3, 0)
        copy_sessions(second, third)
        assert whole(first) == whole(second) == whole(third)
        assert third.memory(tmp_path).read() == "# Notes"
        with Session.open(third, "g") as g:
            g.undo()
            assert texts(g)[-1] == "re: three"


def test_copying_again_adds_only_what_is_new(url: str, tmp_path: Path) -> None:
    """A copy that was cut short is simply repeated."""
    with open_store(url) as src, open_store("memory:") as dst:
        fill(src, tmp_path)
        first = copy_sessions(src, dst)
        assert first.events > 0
        assert copy_sessions(src, dst).events == 0
        with Session.open(src, "s") as s:
            talk(s, "more")
        assert copy_sessions(src, dst).events == 3
        assert whole(src) == whole(dst)


def test_copying_again_keeps_what_the_target_says(url: str, tmp_path: Path) -> None:
    """Records and notes get what they lack; nothing that was changed in the copy is lost."""
    with open_store(url) as src, open_store("memory:") as dst:
        src.create(SessionInfo("s", cwd=str(tmp_path), title="old", tags=["a"]))
        src.memory(tmp_path).write("first")
        copy_sessions(src, dst)
        dst.update("s", title="mine", metadata={"both": 1})
        dst.memory(tmp_path).write("mine")
        src.update("s", title="new", key="k", tags=["b"], metadata={"both": 2, "only": 3})
        src.memory(tmp_path).write("second")
        copy_sessions(src, dst)
        info = dst.info("s")
        assert (info.title, info.key, info.tags) == ("mine", "k", ["a", "b"])
        assert info.metadata == {"both": 1, "only": 3}
        assert dst.memory(tmp_path).read() == "mine"


def test_a_key_that_is_taken_is_reported(url: str) -> None:
    """As the clash it is; the other session stays."""
    with open_store(url) as src, open_store("memory:") as dst:
        src.create(SessionInfo("x", key="k"))
        dst.create(SessionInfo("y", key="k"))
        with pytest.raises(AlreadyExists, match="key `k`"):
            copy_sessions(src, dst)
        assert [info.id for info in dst.sessions()] == ["y"]


def test_an_impossible_time_can_still_be_copied(tmp_path: Path) -> None:
    """Such as was stored before they were refused."""
    with open_store(f"file:{tmp_path}") as src, open_store("memory:") as dst:
        src.create(SessionInfo("s"))
        event = Event(1, "e1", "2026-13-45T99:00:00.000Z", "note", {})
        path = src.log_file("s")
        assert path is not None
        path.write_bytes(encode_line(event, b"{}"))
        assert [event.ts for event in src.read("s")] == [event.ts]
        assert copy_sessions(src, dst).events == 1
        assert [event.id for event in dst.read("s")] == ["e1"]


def test_copying_into_another_history_is_a_conflict(url: str) -> None:
    """It is left alone."""
    with open_store(url) as src, open_store("memory:") as dst:
        with Session.create(src, "s") as s:
            talk(s, "one")
        copy_sessions(src, dst)
        with Session.open(src, "s") as s:
            s.append(user("here"))
        with Session.open(dst, "s") as s:
            s.append(user("there"))
        with pytest.raises(Conflict):
            copy_sessions(src, dst)
        with Session.open(dst, "s") as s:
            assert texts(s)[-1] == "there"


def test_only_what_is_asked_for_is_copied(url: str) -> None:
    """An unknown id is an error before anything is copied."""
    with open_store(url) as src, open_store("memory:") as dst:
        for id in ("a", "b"):
            Session.create(src, id)
        with pytest.raises(NotFound):
            copy_sessions(src, dst, ids=["a", "ghost"])
        assert dst.sessions() == []
        copy_sessions(src, dst, ids=["a"])
        assert [info.id for info in dst.sessions()] == ["a"]


def test_what_damage_took_is_said_to_be_lost(tmp_path: Path) -> None:
    """The numbers stay; a session that was copied so can be used."""
    found: list[Problem] = []
    with open_store(f"file:{tmp_path}/a") as src, Session.create(src, "s") as s:
        talk(s, "one", "two")
    log = tmp_path / "a" / "sessions" / "s" / "messages.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[2] = b"#" * (len(lines[2]) - 1) + b"\n"
    log.write_bytes(b"".join(lines))
    with (
        open_store(f"file:{tmp_path}/a", on_damage=found.append) as src,
        open_store(f"sqlite:///{tmp_path}/b.db") as dst,
    ):
        done = copy_sessions(src, dst)
        assert (done.events, done.lost) == (4, 1)
        assert found
        with Session.open(dst, "s") as s:
            assert kinds(s)[2] == "lost"
            assert texts(s) == ["one", "two", "re: two"]
            assert [e.seq for e in s.events()] == [1, 2, 3, 4, 5]
            s.undo()
            s.redo()
            talk(s, "three")
        assert dst.verify() == []
        assert src.verify() != []


def test_forks_still_share_what_they_shared(tmp_path: Path) -> None:
    """A purge in the parent's copy reaches the copy of the fork."""
    with (
        open_store(f"sqlite:///{tmp_path}/a.db") as src,
        open_store(f"sqlite:///{tmp_path}/b.db") as dst,
    ):
        fill(src, tmp_path)
        copy_sessions(src, dst)
        dst.purge("s", [3])
        for id in ("s", "f", "g"):
            assert next(dst.read(id, after=2)).data == {"purged": True}
