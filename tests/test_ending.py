"""How a session ends: closing, noting the end, and leaving nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backtrail import Closed, InvalidData, NotFound, Session
from backtrail.stores import Store, open_store

from .talking import talk, user


def test_closing_writes_nothing(url: str) -> None:
    """`close` lets go; `end` is what notes the end."""
    with Session.create(url, "s") as s:
        head = s.info().head
    with Session.open(url, "s") as s:
        assert s.info().head == head
        assert s.info().exit_reason is None


def test_end_notes_the_reason_until_the_session_goes_on(url: str) -> None:
    """The record shows why it ended; resuming takes that back."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        s.end("max_turns")
        assert s.info().exit_reason == "max_turns"
    with Session.open(url, "s") as s:
        assert s.info().exit_reason == "max_turns"
        s.append(user("two"))
        assert s.info().exit_reason is None
        s.end()
        assert s.info().exit_reason == "end_turn"


def test_a_store_passed_in_stays_open_and_a_url_is_closed(url: str) -> None:
    """The opener of a store closes it."""
    with open_store(url) as store:
        with Session.create(store, "s") as s:
            assert s.store is store
        assert store.info("s").id == "s"
    with Session.open(url, "s") as s:
        mine = s.store
    with pytest.raises(Closed):
        mine.info("s")
    opened: list[Store] = []
    with pytest.raises(NotFound):
        opened.append(Session.resume(url, "ghost").store)
    assert opened == []


def test_every_verb_of_a_closed_session_raises(url: str) -> None:
    """`Closed`, also where the store is still open; closing twice is fine."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        talk(s, "one")
        point = s.checkpoint("here")
        s.close()
        s.close()
        verbs: dict[str, Callable[[], object]] = {
            "append": lambda: s.append(user("x")),
            "extend": lambda: s.extend([user("x")]),
            "record": lambda: s.record("mine"),
            "turn": lambda: talk(s, "x"),
            "log": lambda: s.log("transcript"),
            "update": lambda: s.update(title="x"),
            "end": lambda: s.end(),
            "info": lambda: s.info(),
            "messages": lambda: s.messages(),
            "history": lambda: s.history(),
            "events": lambda: list(s.events()),
            "pending": lambda: s.pending(),
            "state": lambda: s.state(),
            "as_map": lambda: s.as_map(),
            "branches": lambda: s.branches(),
            "checkpoints": lambda: s.checkpoints(),
            "follow": lambda: s.follow(),
            "subscribe": lambda: s.subscribe(),
            "checkpoint": lambda: s.checkpoint("here"),
            "rewind": lambda: s.rewind(point),
            "preview": lambda: s.rewind(point, dry_run=True),
            "undo": lambda: s.undo(),
            "redo": lambda: s.redo(),
            "fork": lambda: s.fork(),
        }
        for verb in verbs.values():
            with pytest.raises(Closed):
                verb()
        assert store.info("s").head == point.seq + 1


def test_persist_false_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It behaves the same for as long as it lives, and nothing is left of it."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    monkeypatch.chdir(home)
    shown = []
    for persist in (True, False):
        place = f"file:{tmp_path}/kept"
        with Session.open(place, f"s{persist}", persist=persist, system_prompt="P") as s:
            talk(s, "one", "two", "three")
            point = s.checkpoint("x")
            talk(s, "four")
            s.rewind(point)
            s.undo()
            s.log("transcript").append({"raw": 1})
            shown.append((s.messages(), s.info().turn_count, len(s.checkpoints())))
    assert shown[0] == shown[1]
    assert list(home.rglob("*")) == []
    with open_store(f"file:{tmp_path}/kept") as store:
        assert [info.id for info in store.sessions()] == ["sTrue"]


def test_an_unknown_lease_is_refused(url: str) -> None:
    """Before anything is made."""
    with pytest.raises(InvalidData, match="lease"):
        Session.create(url, "s", lease="forever")  # type: ignore[arg-type]
    with open_store(url) as store:
        assert store.sessions() == []
