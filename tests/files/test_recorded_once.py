"""What a call did is recorded once: by its own event, or by the process that finds it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from backtrail import Closed, Event, NewEvent, Session, StoreFailed
from backtrail.events import Json
from backtrail.files.changes import timeline
from backtrail.files.changes.brackets import Bracket, Ended, Grab, named_in
from backtrail.files.changes.host import Folder, Host
from backtrail.files.changes.recorder import Recorder
from backtrail.files.changes.shared import SharedRecorder
from backtrail.files.workspace.workspace import Workspace
from backtrail.session.capture import Capture
from backtrail.session.log import SessionLog
from tests.files.test_calls import changed
from tests.files.test_underway import brackets_of, resumed
from tests.talking import assistant, calling, result, user


@contextmanager
def killed(session: Session) -> Iterator[None]:
    """What another process of the session does, which dies at the end of it."""
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        raise _Elsewhere
    try:
        yield
        os._exit(9)
    finally:
        os._exit(1)


class _Elsewhere(Exception):
    """The block ran in the other process."""


def actions(session: Session) -> list[Event]:
    return list(session.events(kinds=("action", "tool_result")))


def test_another_call_that_began_with_the_same_files(session: Session, project: Path) -> None:
    """Its event is not taken for that of a call that a close left open."""
    with suppress(Closed), session.tool("bash"):
        with session.tool("bash"):
            (project / "first").write_text("x\n")
        (project / "second").write_text("x\n")
        session.close()
    with resumed(session) as after:
        after.append(user("next"))
        assert [changed(after, e) for e in actions(after)] == [["first"], ["second"]]
        after.rewind(2)
    assert sorted(os.listdir(project)) == ["README", "src"]


def test_calls_that_end_together_before_a_crash(session: Session, project: Path) -> None:
    """Both are recorded, so neither is recorded again behind a point that was set since."""
    together = threading.Barrier(2)
    end = Recorder.end

    def slowly(self: Recorder, begun: Bracket | Grab, ran_from: float | None = None) -> Ended:
        ended = end(self, begun)
        together.wait(10)
        return ended

    def work(name: str) -> None:
        with session.tool(name, paths=[name]):
            together.wait(10)
            (project / name).write_text("x\n")
            together.wait(10)

    session.close()
    with suppress(_Elsewhere), killed(session):
        Recorder.end = slowly  # type: ignore[method-assign]
        session = resumed(session)
        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        session.checkpoint("good")
    with resumed(session) as after:
        after.append(user("next"))
        assert sorted(e.data["name"] for e in actions(after)) == ["a", "b"]
        assert after.rewind("good").files == []
        assert brackets_of(after) == []


@pytest.mark.parametrize("how", ["tool", "turn", "message", "so far", "left"])
def test_an_event_names_its_bracket(how: str, session: Session, project: Path) -> None:
    """So a crash before the bracket goes makes no process record it again."""
    with suppress(_Elsewhere), killed(session):
        Workspace.recorded = Workspace.drop = lambda *_: os._exit(9)  # type: ignore[method-assign]
        with suppress(Closed):
            if how == "message":
                session.append(calling("c1"))
                (project / "new").write_text("x\n")
                session.append(result("c1"))
            else:
                with session.turn("go") if how == "turn" else session.tool("bash"):
                    (project / "new").write_text("x\n")
                    if how == "so far":
                        session.checkpoint()
                    if how == "left":
                        session.close()
        if how == "left":
            resumed(session).append(user("it is recorded"))
    left = [bracket.id for bracket in brackets_of(session)]
    assert left
    session.append(user("next"))
    reported = [event for event in actions(session) if "files" in event.data]
    assert [changed(session, event) for event in reported] == [["new"]]
    assert [id for event in reported for id in named_in(event) if id in left] == left[:1]
    assert brackets_of(session) == []


def test_a_hook_that_finds_what_a_session_recorded(session: Session, project: Path) -> None:
    """It asks the log in the same way."""
    with suppress(_Elsewhere), killed(session):
        Workspace.recorded = lambda *_: os._exit(9)  # type: ignore[method-assign]
        with session.tool("bash"):
            (project / "new").write_text("x\n")
    assert brackets_of(session)
    troubles: list[str] = []
    host = Host(
        lambda: str(project), session.parts.capture.last_tree,
        lambda error: troubles.append(str(error)),
        lambda error: troubles.append(str(error)), lambda what, detail: troubles.append(detail),
    )  # fmt: skip
    hook = SharedRecorder(Folder(session.store, "s", host))
    hook.look()
    assert hook.queue.waiting == []
    hook.folder.close()
    assert [changed(session, event) for event in actions(session)] == [["new"]]
    assert (troubles, brackets_of(session)) == ([], [])


def test_two_processes_that_find_the_same_call(session: Session, project: Path) -> None:
    """One of them records it, and what the other says is not on another branch."""
    with suppress(Closed), session.tool("bash"):
        (project / "new").write_text("x\n")
        session.close()
    one, other = resumed(session), resumed(session)
    with one, other:
        workspace = other.parts.capture.watched()
        assert workspace is not None
        # Both have found it, before either has recorded it.
        other.parts.capture.recorder.end_orphans(workspace)
        (bracket,) = brackets_of(one)
        recorder = one.parts.capture.recorder
        recorder.owe_call(bracket, "interrupted", bracket.files or {}, bracket.id)
        one.append(assistant("one"))
        one.append(assistant("two"))
        other.append(user("three"))
        assert len(actions(other)) == 1
        assert [m["content"] for m in other.messages()] == ["begin", "one", "two", "three"]
        assert brackets_of(other) == []


def test_a_bracket_that_cannot_be_dropped(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is stored, and so `append` does not fail; repeated, it would be there twice."""

    def fail(*_: object) -> None:
        raise StoreFailed("the disk is full")

    session.append(calling("c1"))
    (project / "new").write_text("x\n")
    with monkeypatch.context() as patch:
        patch.setattr(timeline.Lines, "close_bracket", fail)
        session.checkpoint()
        (project / "more").write_text("x\n")
        session.append(result("c1"))
    assert [changed(session, event) for event in actions(session)] == [["new"], ["more"]]
    session.append(user("next"))
    assert brackets_of(session) == []


def test_what_a_call_did_so_far_is_recorded_before_a_point(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another thread appends just then: going there takes nothing away."""
    append = SessionLog.append
    took, marked = threading.Event(), threading.Event()

    def slowly(self: SessionLog, events: list[NewEvent], **how: Json) -> list[Event]:
        if threading.current_thread() is other:
            took.set()
            marked.wait(0.5)
        return append(self, events, **how)

    other = threading.Thread(target=session.append, args=(assistant("hm"),))
    look = Capture.look

    def looked(self: Capture, **how: bool) -> dict[str, Json]:
        details = look(self, **how)
        if not other.ident:
            other.start()
            took.wait(10)
        return details

    monkeypatch.setattr(SessionLog, "append", slowly)
    monkeypatch.setattr(Capture, "look", looked)
    with session.tool("bash"):
        (project / "new").write_text("x\n")
        point = session.checkpoint("mid")
        marked.set()
        other.join()
    assert session.rewind(point).files == []
    assert (project / "new").exists()


def test_a_result_that_is_appended_again_during_another_call(
    session: Session, project: Path
) -> None:
    """With the same id, since the model counts anew: what that call did is not lost."""
    session.append(calling("c1"))
    session.append(result("c1"), id="r1")
    session.append(calling("c1"))
    (project / "new").write_text("x\n")
    session.append(result("c1"), id="r1")
    session.append(user("next"))
    assert [changed(session, e) for e in session.events(kinds=("action",))] == [["new"]]
    session.rewind(2)
    assert not (project / "new").exists()


OLD = {"named": False}
"""What the brackets of an earlier version say."""


@pytest.mark.parametrize("reported", [True, False])
def test_a_call_of_an_earlier_version(
    reported: bool, session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event names no bracket: it is known by its name and the tree it began with."""
    with suppress(_Elsewhere), killed(session):
        monkeypatch.setattr(timeline, "replace", lambda b, **new: replace(b, **new | OLD))
        end = Recorder.end

        def unnamed(self: Recorder, begun: Bracket | Grab, ran_from: float | None = None) -> Ended:
            ended = end(self, begun)
            if not reported:
                os._exit(9)
            files = ended.files
            assert files is not None
            return Ended(
                ended.bracket, {"files": {name: files[name] for name in ("before", "after")}}
            )

        monkeypatch.setattr(Recorder, "end", unnamed)
        with session.tool("bash"):
            (project / "new").write_text("x\n")
    session.append(user("next"))
    assert [changed(session, event) for event in actions(session)] == [["new"]]
    assert brackets_of(session) == []
