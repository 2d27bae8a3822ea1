"""Calls that get no result, and points in the middle of a call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from backtrail import (
    Closed,
    NotFound,
    Session,
    SessionBusy,
    StoreFailed,
    open_store,
)
from backtrail.files.changes.brackets import Bracket
from backtrail.files.workspace.snapshot import Log
from backtrail.files.workspace.workspace import Workspace
from tests.files.test_calls import changed, newest
from tests.talking import calling, result, user


def resumed(session: Session) -> Session:
    """A closed session, opened again."""
    return Session.resume(session.store.url, "s")


def brackets_of(session: Session) -> list[Bracket]:
    """The brackets in the catalogue, recorded or not."""
    workspace = session.parts.capture.watched()
    assert workspace is not None
    return workspace.catalogue.lines.brackets(workspace.place.n)


# --- calls that get no result --------------------------------------------------------------


def passing(session: Session, how: str) -> Session:
    """Something with which a call of a message is over; the session to go on with."""
    if how == "close":
        session.close()
        return resumed(session)
    if how == "message":
        session.append(user("stop"))
    elif how == "end":
        session.end()
    else:
        session.rewind(2, scope="conversation")
    return session


@pytest.mark.parametrize("how", ["message", "end", "rewind", "close"])
def test_a_call_that_gets_no_result_is_over(how: str, session: Session, project: Path) -> None:
    """What it did is the session's, what is done later is another's."""
    session.append(calling("c1"))
    session.append(calling("c2"))
    (project / "by-call").write_text("x\n")
    after = passing(session, how)
    (project / "by-person").write_text("y\n")
    after.append(user("next"))
    reported = list(after.events(kinds=("action",)))
    over = "so_far" if how == "rewind" else "interrupted"
    assert [(e.data["call"], e.data[over]) for e in reported] == [("c1", True)]
    assert changed(after, reported[0]) == ["by-call"]
    assert brackets_of(after) == []
    after.append(result("c1", "late"))
    after.rewind(2)
    assert sorted(os.listdir(project)) == ["README", "by-person", "src"]


@pytest.mark.parametrize("how", ["tool", "message"])
def test_a_session_that_moves_during_a_call(
    how: str, session: Session, project: Path, tmp_path: Path
) -> None:
    """What the call did in the old place is recorded before; then it is over."""
    (tmp_path / "elsewhere").mkdir()
    with under_way(session, how):
        (project / "by-call").write_text("x\n")
        with pytest.raises(NotFound):
            session.relocate(tmp_path / "typo")
        assert brackets_of(session)
        session.relocate(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "by-person").write_text("y\n")
    reported = next(session.events(kinds=("action",)))
    assert (reported.data["interrupted"], changed(session, reported)) == (True, ["by-call"])
    session.relocate(project)
    session.rewind(2, scope="files")
    assert sorted(os.listdir(project)) == ["README", "src"]
    assert brackets_of(session) == []


@pytest.mark.parametrize("how", ["redo", "busy", "no way back", "full"])
def test_a_rewind_that_fails_ends_no_call(
    how: str, session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the call does then is its own, and is taken back with the rest."""
    session.append(calling("c1"))
    (project / "before").write_text("x\n")
    if how == "redo":
        with pytest.raises(NotFound):
            session.redo()
    elif how == "busy":
        with open_store(session.store.url) as store, store.lease("s"), pytest.raises(SessionBusy):
            session.rewind(2)
    elif how == "no way back":
        with monkeypatch.context() as patch, pytest.raises(NotFound, match="never copied"):
            patch.setattr("backtrail.session.fileplans.plan_mine", _fail(NotFound("gone")))
            session.rewind(2)
    else:
        with monkeypatch.context() as patch, pytest.raises(StoreFailed):
            patch.setattr(
                "backtrail.files.restore.restore.Restore.apply", _fail(StoreFailed("full"))
            )
            session.rewind(2)
    (project / "after").write_text("x\n")
    event = session.append(result("c1"))
    assert changed(session, event) == ["after"]
    session.rewind(2)
    assert sorted(os.listdir(project)) == ["README", "src"]
    assert brackets_of(session) == []


def _fail(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_call_that_its_turn_left_open_is_over(
    error: type[BaseException] | None, session: Session, project: Path
) -> None:
    """So `undo` takes back what it did, and not what a person did since."""
    with suppress(KeyboardInterrupt), session.turn("go") as turn:
        turn.append(calling("c1"))
        (project / "by-call").write_text("x\n")
        if error is not None:
            raise error
    (project / "by-person").write_text("y\n")
    session.undo()
    assert sorted(os.listdir(project)) == ["README", "by-person", "src"]


def test_a_call_that_did_nothing_leaves_no_event(session: Session) -> None:
    """However it is over, and whatever point is set meanwhile."""
    session.append(calling("c1"))
    session.checkpoint("mid")
    session.rewind(2, dry_run=True)
    session.append(user("stop"))
    with session.tool("bash"):
        session.append(user("by the way"))
        session.checkpoint("mid")
    session.append(calling("c2"))
    session.close()
    after = resumed(session)
    assert brackets_of(after) == []
    assert [e.data.get("files") for e in after.events(kinds=("action",))] == [None]


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_a_session_closed_during_a_call(
    error: type[Exception] | None, session: Session, project: Path
) -> None:
    """The call cannot be recorded now; the next process does it. Its own error goes up."""
    start = newest(session)
    with pytest.raises(error or Closed), session.tool("bash", id="c1"):
        (project / "by-call").write_text("x\n")
        session.close()
        if error is not None:
            raise error
    (project / "by-person").write_text("y\n")
    with resumed(session) as after:
        after.append(user("next"))
        assert changed(after, next(after.events(kinds=("action",)))) == ["by-call"]
        after.rewind(start)
    assert sorted(os.listdir(project)) == ["README", "by-person", "src"]


def test_a_turn_in_which_the_session_is_closed(session: Session, project: Path) -> None:
    """It ends without a word, and what it did is recorded later."""
    with session.turn("go"):
        (project / "by-turn").write_text("x\n")
        session.close()
    with resumed(session) as after:
        after.undo()
    assert not (project / "by-turn").exists()


def test_a_call_left_by_a_close_is_recorded_once(session: Session, project: Path) -> None:
    """Also where an equal call was recorded and undone before, and a crash comes in between."""
    for _ in range(2):
        with suppress(Closed), session.turn("go"), session.tool("bash"):
            (project / "by-call").write_text("x\n")
            session.close()
        session = resumed(session)
        session.undo()
        assert not (project / "by-call").exists()
    reported = session.events(kinds=("action",))
    assert [e.data["name"] for e in reported] == ["bash", "bash"]
    with suppress(Closed), session.tool("bash"):
        (project / "by-call").write_text("x\n")
        session.close()
    pid = os.fork()
    if pid == 0:
        Workspace.recorded = lambda *_: os._exit(9)  # type: ignore[method-assign]
        resumed(session).append(user("next"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    with resumed(session) as after:
        after.append(user("again"))
        assert len(list(after.events(kinds=("action",)))) == 3
        assert brackets_of(after) == []


# --- points in the middle of a call --------------------------------------------------------


@contextmanager
def under_way(session: Session, how: str) -> Iterator[None]:
    """A call, or a turn as a whole."""
    if how == "message":
        session.append(calling("c1"))
        yield
        session.append(result("c1"))
        return
    with session.turn("go") if how == "turn" else session.tool("bash"):
        yield


@pytest.mark.parametrize("how", ["tool", "turn", "message"])
def test_a_checkpoint_in_the_middle_of_a_call(how: str, session: Session, project: Path) -> None:
    """Going there gives the files of that moment, and before the call those before it."""
    with under_way(session, how):
        (project / "README").write_text("1\n")
        (project / "first").write_text("1\n")
        point = session.checkpoint("mid")
        (project / "README").write_text("2\n")
        (project / "second").write_text("2\n")
    session.rewind(point)
    assert (project / "README").read_text() == "1\n"
    assert sorted(os.listdir(project)) == ["README", "first", "src"]
    session.rewind(2)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert sorted(os.listdir(project)) == ["README", "src"]


@pytest.mark.parametrize("how", ["tool", "turn"])
def test_a_message_in_the_middle_of_a_call(how: str, session: Session, project: Path) -> None:
    """A word to an agent at work is a point too, and the work goes on."""
    with under_way(session, how):
        (project / "README").write_text("1\n")
        said = session.append(user("by the way"))
        (project / "README").write_text("2\n")
    session.rewind(said)
    assert (project / "README").read_text() == "1\n"
    session.rewind(2)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("how", ["tool", "turn", "message"])
def test_going_back_in_the_middle_of_a_call(how: str, session: Session, project: Path) -> None:
    """Takes back what it did so far; a preview says so; what it does then is its own."""
    with under_way(session, how):
        (project / "README").write_text("1\n")
        plan = session.rewind(2, scope="files", dry_run=True)
        assert [file.path for file in plan.files] == ["README"]
        session.rewind(2, scope="files")
        assert (project / "README").read_text() == "one\ntwo\nthree\n"
        (project / "README").write_text("2\n")
    assert not list(session.events(kinds=("files_changed",)))
    assert session.rewind(2, scope="files").conflicts == []
    assert (project / "README").read_text() == "one\ntwo\nthree\n"


def test_undoing_a_turn_from_within(session: Session, project: Path) -> None:
    """It takes back what the turn did so far."""
    with session.turn("go"):
        (project / "by-turn").write_text("x\n")
        session.undo()
        assert not (project / "by-turn").exists()
    assert not list(session.events(kinds=("files_changed",)))


def test_a_fork_in_the_middle_of_a_call(session: Session, project: Path, tmp_path: Path) -> None:
    """It can take back what the call had done by then."""
    with session.tool("bash"):
        (project / "README").write_text("1\n")
        fork = session.fork(into=tmp_path / "fork")
    with fork:
        fork.rewind(2)
    assert (tmp_path / "fork" / "README").read_text() == "one\ntwo\nthree\n"


def test_what_is_owed_waits_for_an_append_that_works(session: Session, project: Path) -> None:
    """One that is refused takes nothing away."""
    session.append(calling("c1"))
    (project / "by-call").write_text("x\n")
    with pytest.raises(ValueError, match="nan"):
        session.append({"role": "user", "content": "hello", "odd": float("nan")})
    session.append(user("hello"))
    reported = next(session.events(kinds=("action",)))
    assert changed(session, reported) == ["by-call"]


def test_a_person_in_the_middle_of_a_call_that_declares_its_paths(
    session: Session, project: Path
) -> None:
    """It is another's doing, at the next point already."""
    with session.tool("edit", paths=["README"]):
        (project / "by-person").write_text("x\n")
        session.checkpoint()
    others = list(session.events(kinds=("files_changed",)))
    assert [changed(session, e) for e in others] == [["by-person"]]


def test_a_rewind_and_a_call_of_another_thread_do_not_wait_for_each_other(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One holds the workspace, the other the session: it begins when the rewind is done."""
    (project / "README").write_text("a person's\n")
    began: list[bool] = []

    def work() -> None:
        with session.tool("edit", paths=["README"]):
            began.append(True)

    thread = threading.Thread(target=work)
    scan = Workspace.scanned

    def scan_while_it_begins(self: Workspace, root: int, log: Log, **_: object) -> bytes:
        thread.start()
        while session.parts.capture.recorder.lock.acquire(blocking=False):
            session.parts.capture.recorder.lock.release()
        return scan(self, root, log)

    monkeypatch.setattr(Workspace, "scanned", scan_while_it_begins)
    session.rewind(2, scope="files")
    thread.join()
    assert began == [True]
