"""Events as targets that had no number yet when they were returned, and odd arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backtrail import Buffered, Event, InvalidData, NotFound, Session, StoreFailed, open_store
from backtrail.events import Json

from .talking import assistant, kinds, talk, texts, user
from .test_failing import Flaky


def test_a_buffered_event_is_a_target(disk_url: str) -> None:
    """Its id says which it is."""
    with Buffered(open_store(disk_url)) as store, Session.create(store, "s") as s:
        first, second, *_ = [s.append(user(f"{n}")) for n in range(4)]
        assert first.seq == second.seq == 0
        assert s.fork(second).info().fork_seq == 3
        assert s.checkpoint("here", at=second).seq == 3
        with Session.resume(store, "s", at=first) as earlier:
            assert texts(earlier) == ["0"]
        s.rewind(second)
        assert texts(s) == ["0", "1"]
        s.rewind(before=second)
        assert texts(s) == ["0"]
        with pytest.raises(NotFound):
            s.rewind(Event(0, "not-there", "", "user_message", {}))


def test_the_event_of_a_turn_is_a_target_on_a_buffered_store(disk_url: str, tmp_path: Path) -> None:
    """`rewind(before=result.event)` takes the turn back, files included."""
    work = tmp_path / "work"
    work.mkdir()

    def agent(turn: Json) -> Json:
        with turn.tool("write"):
            (work / "f").write_text("new")
        yield assistant("done")

    with (
        Buffered(open_store(disk_url)) as store,
        Session.create(store, "s", cwd=work, agent=agent) as s,
    ):
        talk(s, "before")
        result = s.send("go")
        assert (work / "f").exists()
        s.rewind(before=result.event)
        assert not (work / "f").exists()
        assert texts(s) == ["before", "re: before"]


def test_an_event_that_was_saved_later_is_a_target() -> None:
    """One that still waits is stored first."""
    with open_store("memory:") as inner:
        store = Flaky(inner)
        s = Session.create(store, "s", on_error="record")
        store.broken = True
        first, second = s.append(user("one")), s.append(user("two"))
        with pytest.raises(StoreFailed):
            s.rewind(first)
        store.broken = False
        assert s.rewind(first).anchor == 2
        assert texts(s) == ["one"]
        assert s.rewind(second).anchor == 3
        s.close()


def test_odd_arguments_are_reported_before_anything_is_written(url: str) -> None:
    """What a reader of the log could not make sense of is not in it."""
    with Session.create(url, "s") as s:
        odd: list[Callable[[], object]] = [
            lambda: s.append(user("x"), kind="rewound"),
            lambda: s.append(user("x"), kind="checkpoint"),
            lambda: s.append(user("x"), format="zzz"),  # type: ignore[arg-type]
            lambda: s.append(user("x"), cost_usd="a"),  # type: ignore[arg-type]
            lambda: s.append(user("x"), usage=[("a", 1)]),  # type: ignore[arg-type]
            lambda: s.checkpoint(5),  # type: ignore[arg-type]
            lambda: s.checkpoint(metadata=[1]),  # type: ignore[arg-type]
        ]
        for call in odd:
            with pytest.raises(InvalidData):
                call()
        assert kinds(s) == ["session_start"]
        assert s.append(user("x"), kind="tool_result", cost_usd=1).kind == "tool_result"
        assert s.append(user("x"), kind="mine").kind == "mine"
