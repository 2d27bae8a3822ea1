"""Calls at whose end the files could not be looked at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from backtrail import Session, StoreFailed
from backtrail.files.workspace.snapshot import Looking
from backtrail.files.workspace.workspace import Workspace
from tests.files.test_calls import changed, files, newest
from tests.files.test_underway import brackets_of, resumed
from tests.talking import calling, result, user


def blind(patch: pytest.MonkeyPatch, error: BaseException | None = None) -> None:
    """From now on no scan works, as when no descriptors are left."""
    failure = error or StoreFailed("cannot scan: Too many open files")

    def captured(*_: object, **__: object) -> bytes:
        raise failure

    patch.setattr(Looking, "captured", captured)


def gone_by(session: Session, how: str, project: Path) -> Session:
    """Something that looks at the files."""
    if how == "message":
        session.append(user("next"))
    elif how == "rewind":
        session.rewind(newest(session), scope="conversation")
    elif how == "call":
        with session.tool("edit", paths=["other"]):
            (project / "other").write_text("x\n")
    elif how == "close":
        session.close()
        session = resumed(session)
    return session


@pytest.mark.parametrize("how", ["message", "rewind", "call", "close"])
def test_the_next_look_finds_what_a_call_did(
    how: str, session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is stored, and says why it lacks the change; then the caller gets the error."""
    failure = pytest.raises(StoreFailed, match="open files")
    with monkeypatch.context() as patch, failure, session.tool("bash", id="c1") as call:
        (project / "by-call").write_text("x\n")
        call.result = "done"
        blind(patch)
    event = newest(session)
    assert event.data["message"]["content"] == "done"
    assert files(event) == {"missed": "cannot scan: Too many open files"}
    after = gone_by(session, how, project)
    (project / "by-person").write_text("y\n")
    after.append(user("later"))
    (reported,) = (e for e in after.events(kinds=("action",)) if "interrupted" in e.data)
    assert (reported.data["call"], changed(after, reported)) == ("c1", ["by-call"])
    assert brackets_of(after) == []
    after.rewind(2)
    assert sorted(os.listdir(project)) == ["README", "by-person", "src"]


def test_a_caller_that_goes_on_is_not_stopped(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is a problem of the session."""
    session.close()
    with Session.resume(session.store.url, "s", on_error="record") as after:
        with monkeypatch.context() as patch, after.tool("bash") as call:
            (project / "by-call").write_text("x\n")
            blind(patch)
        assert call.event is not None
        assert "open files" in after.problems[-1].detail
        after.append(user("next"))
        after.rewind(2)
    assert not (project / "by-call").exists()


def test_a_turn_whose_end_is_not_seen(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as with a call."""
    with monkeypatch.context() as patch, pytest.raises(StoreFailed), session.turn("go"):
        (project / "by-turn").write_text("x\n")
        blind(patch)
    assert "missed" in files(newest(session))
    session.undo()
    assert not (project / "by-turn").exists()
    assert brackets_of(session) == []


def test_a_result_by_message_that_is_refused_can_be_appended_again(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is stored before that. What the call did is found with the next look."""
    session.append(calling("c1"))
    (project / "by-call").write_text("x\n")
    head = newest(session)
    with monkeypatch.context() as patch, pytest.raises(StoreFailed):
        blind(patch)
        session.append(result("c1"))
    assert newest(session) == head
    session.append(result("c1"))
    session.append(user("next"))
    assert session.pending() == []
    assert [changed(session, e) for e in session.events(kinds=("action",))] == [["by-call"]]
    assert brackets_of(session) == []


def test_the_program_is_stopped_during_the_look(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the call did is not lost with its result."""
    stopped = pytest.raises(KeyboardInterrupt)
    with monkeypatch.context() as patch, stopped, session.tool("bash"):
        (project / "by-call").write_text("x\n")
        blind(patch, KeyboardInterrupt())
    session.append(user("next"))
    session.rewind(2)
    assert not (project / "by-call").exists()


def test_what_cannot_be_recorded_stops_a_caller_once(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where contents are lost, looking again would fail for ever: the call is forgotten."""

    def lost(*_: object, **__: object) -> None:
        raise StoreFailed("contents are lost")

    with monkeypatch.context() as patch, pytest.raises(StoreFailed), session.tool("bash"):
        (project / "by-call").write_text("x\n")
        patch.setattr(Workspace, "_attributed", lost)
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "_attributed", lost)
        session.append(user("next"))
    assert brackets_of(session) == []


@pytest.mark.parametrize("on_error", ["raise", "record"])
def test_a_message_whose_bracket_cannot_be_opened(
    on_error: Literal["raise", "record"],
    tmp_path: Path,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is stored, so nothing is raised; the result of its call says that it was not captured."""
    url = f"sqlite:///{tmp_path}/other.db"
    with Session.create(url, "s", cwd=project, on_error=on_error) as session:
        session.append(user("begin"))
        with monkeypatch.context() as patch:
            blind(patch)
            event = session.append(calling("c1"), id="m1")
        assert session.append(calling("c1"), id="m1").seq == event.seq
        (project / "new").write_text("x\n")
        reported = session.append(result("c1"))
        assert "missed" in reported.data["files"]
        assert any(problem.what == "not captured" for problem in session.problems)
        session.append(user("next"))
        assert [e.kind for e in session.events()].count("assistant_message") == 1
        assert [e.kind for e in session.events(kinds=("files_changed",))] == ["files_changed"]
        with session.tool("bash") as call:
            (project / "more").write_text("x\n")
        assert call.event is not None
        assert "after" in call.event.data["files"]
