"""What a session's log says about files: trees, brackets, and what others did."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from backtrail import Closed, Damaged, Session, StoreFailed
from backtrail.events import Event, Json
from backtrail.files.workspace.workspace import Workspace
from tests.files.conftest import shell
from tests.talking import calling, kinds, user


def newest(session: Session) -> Event:
    return next(session.events(reverse=True, limit=1))


def files(event: Event) -> dict[str, Json]:
    found = event.data.get("files")
    assert isinstance(found, dict)
    return found


def changed(session: Session, event: Event) -> list[str]:
    """The paths that an event says were changed by it."""
    for turn in session.changes():
        for call in turn.calls:
            if call.seq == event.seq:
                return [file.path for file in call.files]
    return []


def test_a_user_message_carries_the_tree(session: Session, project: Path) -> None:
    """And the same tree as long as nothing changes."""
    first = session.append(user("a"))
    second = session.append(user("b"))
    assert first.data["tree"] == second.data["tree"]
    (project / "README").write_text("new\n")
    third = session.append(user("c"))
    assert third.data["tree"] != first.data["tree"]
    assert kinds(session)[-2:] == ["files_changed", "user_message"]


def test_nothing_changed_means_no_trees_and_no_write(session: Session, project: Path) -> None:
    """A call that only reads has no `files`, and the store of contents is not touched."""
    contents = session.store.contents
    assert contents is not None
    shell(session, "cat README", project)
    before = {path: path.stat().st_mtime_ns for path in contents.iterdir()}
    shell(session, "cat README", project)
    after = {path: path.stat().st_mtime_ns for path in contents.iterdir()}
    assert "files" not in newest(session).data
    # Open brackets are noted in the catalogue; contents and index are as they were.
    assert {p for p in before if before[p] != after[p]} <= {
        path for path in after if path.name.startswith("catalogue")
    }


def test_a_shell_call_owns_what_it_did(session: Session, project: Path) -> None:
    """By whatever means: edit, create, move, delete, link, mode."""
    shell(session, "sed -i s/one/1/ README; mv src/main.py src/app.py; ln -s x l; mkdir e", project)
    event = newest(session)
    assert event.kind == "action"
    assert event.data["result"] == "done"
    assert changed(session, event) == ["README", "e", "l", "src/app.py"]


def test_a_call_with_an_id_is_answered_in_the_spelling_of_the_call(session: Session) -> None:
    """As a tool message for chat, as a block for Anthropic."""
    session.append(calling("c1"))
    with session.tool("bash", {}, id="c1") as call:
        call.result = {"ok": True}
    assert session.messages()[-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": '{"ok":true}',
    }
    block = {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}
    session.append({"role": "assistant", "content": [block]})
    with session.tool("bash", {}, id="t1") as call:
        call.result = "fine"
    answer = {"type": "tool_result", "tool_use_id": "t1", "content": "fine"}
    assert session.messages()[-1] == {"role": "user", "content": [answer]}
    assert session.pending() == []


def test_a_failing_call_is_recorded_and_raises(session: Session, project: Path) -> None:
    """With what it did to the files until then."""
    with pytest.raises(ZeroDivisionError), session.tool("calc", {"x": 1}):
        (project / "half").write_text("half")
        raise ZeroDivisionError("no")
    event = newest(session)
    assert event.data["error"] is True
    assert event.data["result"] == "ZeroDivisionError: no"
    assert changed(session, event) == ["half"]


def test_a_tool_that_declares_its_paths_owns_only_those(session: Session, project: Path) -> None:
    """What else changed meanwhile was another's doing."""
    with session.tool("edit", paths=["README"]):
        (project / "README").write_text("edited\n")
        (project / "other").write_text("a person\n")
    event = newest(session)
    assert changed(session, event) == ["README"]
    session.append(user("next"))
    others = [e for e in session.events() if e.kind == "files_changed"]
    assert [changed(session, e) for e in others] == [["other"]]


@pytest.mark.parametrize("given", ["notes", Path("notes")], ids=["text", "path"])
def test_one_path_is_not_a_list_of_letters(
    session: Session, project: Path, given: str | Path
) -> None:
    """Declared, compared or rewound alone: it is that path."""
    before = session.append(user("a"))
    with session.tool("edit", {}, paths=given) as call:  # type: ignore[arg-type]
        (project / "notes").write_text("changed\n")
        call.result = "ok"
    assert changed(session, newest(session)) == ["notes"]
    shown = session.diff(before, paths=given)  # type: ignore[arg-type]
    assert [file.path for file in shown.files] == ["notes"]
    session.rewind(before, paths=given)  # type: ignore[arg-type]
    assert not (project / "notes").exists()


def test_a_declared_path_outside_is_refused(session: Session, tmp_path: Path) -> None:
    """Before the tool runs."""
    with pytest.raises(ValueError, match="outside"), session.tool("edit", paths=["../x"]):
        raise AssertionError("not reached")


def test_parallel_calls_of_one_session(session: Session, project: Path) -> None:
    """Each change belongs to one of them, and both are taken back."""
    start = newest(session)
    with session.tool("bash") as slow:
        with session.tool("edit", paths=["README"]):
            (project / "README").write_text("fast\n")
        (project / "README").write_text("slow\n")
        (project / "new").write_text("slow\n")
        slow.result = "done"
    by = {
        call.by: [f.path for f in call.files] for turn in session.changes() for call in turn.calls
    }
    assert by == {"edit": ["README"], "bash": ["README", "new"]}
    done = session.rewind(start)
    assert done.conflicts == []
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert not (project / "new").exists()


def test_parallel_calls_that_change_one_file_in_turn(session: Session, project: Path) -> None:
    """The log has their changes in the order of time, so both are taken back."""
    start = newest(session)
    with session.tool("bash", id="slow"):
        (project / "README").write_text("slow\n")
        with session.tool("edit", paths=["README"]) as quick:
            (project / "README").write_text("fast\n")
        (project / "new").write_text("slow\n")
    calls = [call for turn in session.changes() for call in turn.calls]
    reported = [(call.by, [file.path for file in call.files]) for call in calls]
    assert reported == [("bash", ["README"]), ("edit", ["README"]), ("bash", ["new"])]
    assert quick.event is not None
    done = session.rewind(before=quick.event, scope="files", dry_run=True)
    assert (done.conflicts, {file.path for file in done.files}) == ([], {"README", "new"})
    assert session.rewind(start).conflicts == []
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert not (project / "new").exists()


def test_a_call_that_only_files_matter_of(session: Session, project: Path) -> None:
    """It leaves no event where it changed nothing."""
    head = session.info().head
    with session.tool("look") as call:
        call.only_files = True
    assert (call.event, session.info().head) == (None, head)
    with session.tool("write") as call:
        call.only_files = True
        (project / "new").write_text("x")
    assert call.event is not None


def test_a_turn_does_not_claim_what_another_session_saw_before(
    session: Session, project: Path
) -> None:
    """Between its message and its beginning another session may look, and find something new."""
    session.append(user("hello"))
    with Session.create(session.store, "t", cwd=project) as other:
        (project / "theirs").write_text("x")
        other.append(user("hello"))
        session.parts.capture.recorder.begin_turn()
        session.parts.capture.end_turn()
    assert not list(session.events(kinds=("action",)))


def test_two_sessions_at_once_share_what_both_may_have_done(
    session: Session, project: Path
) -> None:
    """A shared path is a conflict for either of them."""
    with Session.create(session.store, "t", cwd=project) as other:
        other.append(user("hello"))
        with session.tool("bash"), other.tool("bash"):
            (project / "both").write_text("?\n")
        plan = other.rewind(before=2, dry_run=True)
        assert [(f.path, f.reason) for f in plan.conflicts] == [
            ("both", "another session may have changed it at the same time")
        ]
        assert session.rewind(before=2).conflicts != []
        assert (project / "both").read_text() == "?\n"


def test_another_session_in_between_is_another_author(session: Session, project: Path) -> None:
    """Its changes are left alone, and what both changed in turn is a conflict."""
    shell(session, "echo mine > a; echo mine > b", project)
    with Session.create(session.store, "t", cwd=project) as other:
        other.append(user("hello"))
        shell(other, "echo theirs > b; echo theirs > c", project)
        done = session.rewind(before=2)
        assert [f.path for f in done.conflicts] == ["b"]
        assert sorted(os.listdir(project)) == ["README", "b", "c", "src"]


def test_what_a_person_saves_during_a_long_call_is_uncertain(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be distinguished: the plan says so, and an undo gives it back."""
    monkeypatch.setattr("backtrail.files.workspace.workspace.LONG_CALL", 0.0)
    start = newest(session)
    with session.tool("bash", {"command": "make"}):
        (project / "README").write_text("saved by a person\n")
    plan = session.rewind(start, dry_run=True)
    assert [(f.path, "perhaps" in f.reason) for f in plan.files] == [("README", True)]
    session.rewind(start)
    session.undo()
    assert (project / "README").read_text() == "saved by a person\n"


def test_a_server_left_running_is_another_author(session: Session, project: Path) -> None:
    """What it writes after the call ended is not the call's."""
    start = newest(session)
    go, done = threading.Event(), threading.Event()

    def serve() -> None:
        go.wait()
        (project / "log").write_text("started\nserved\n")
        done.set()

    with session.tool("bash", {"command": "server &"}):
        (project / "log").write_text("started\n")
        threading.Thread(target=serve).start()
    go.set()
    done.wait()
    result = session.rewind(start)
    assert [(f.path, f.reason) for f in result.conflicts] == [
        ("log", "changed since by somebody else")
    ]
    assert (project / "log").read_text() == "started\nserved\n"


def test_a_turn_around_any_code_owns_what_it_did(session: Session, project: Path) -> None:
    """As long as it uses no brackets of its own."""
    with session.turn("do it"):
        (project / "made").write_text("by the turn\n")
    event = next(session.events(kinds=("action",), reverse=True))
    assert event.data["name"] == "turn"
    assert newest(session).kind == "turn_end"
    session.undo()
    assert not (project / "made").exists()
    with session.turn("again"):
        (project / "person").write_text("saved meanwhile\n")
        shell(session, "echo x > tool", project)
    session.undo()
    assert sorted(os.listdir(project)) == ["README", "person", "src"]


def test_a_call_that_a_crash_left_open_ends_with_the_next_event(
    session: Session, project: Path
) -> None:
    """Its changes are the session's, and can be taken back."""
    pid = os.fork()
    if pid == 0:
        with session.tool("bash", {"command": "make"}):
            (project / "half").write_text("half\n")
            os._exit(9)
    os.waitpid(pid, 0)
    session.append(user("what happened?"))
    ended = [e for e in session.events() if e.kind == "action"]
    assert [e.data["interrupted"] for e in ended] == [True]
    assert changed(session, ended[0]) == ["half"]
    session.rewind(before=2)
    assert not (project / "half").exists()


def test_a_call_that_a_crash_left_open_ends_before_the_next(
    session: Session, project: Path
) -> None:
    """What it did is its own, and what the next call does is that one's alone."""
    pid = os.fork()
    if pid == 0:
        with session.tool("bash", {"command": "make"}):
            (project / "half").write_text("half\n")
            os._exit(9)
    os.waitpid(pid, 0)
    with session.tool("bash"):
        (project / "whole").write_text("whole\n")
    left, reported = (e for e in session.events() if e.kind == "action")
    assert left.data["interrupted"]
    assert changed(session, left) == ["half"]
    assert changed(session, reported) == ["whole"]
    assert session.parts.capture.workspace is not None
    assert session.parts.capture.workspace.orphans("s") == []


def test_a_call_that_is_recorded_is_not_recorded_again(session: Session, project: Path) -> None:
    """Its bracket may outlive its process, by however many events; the log says enough."""
    pid = os.fork()
    if pid == 0:
        Workspace.recorded = lambda *_: None  # type: ignore[method-assign]
        with session.tool("bash", {"command": "make"}):
            (project / "whole").write_text("whole\n")
        for n in range(300):
            session.record("note", {"n": n})
        os._exit(9)
    os.waitpid(pid, 0)
    workspace = session.parts.capture.workspace
    assert workspace is not None
    left = workspace.orphans("s")
    assert [bracket.ended for bracket in left] == [True]
    session.append(user("what happened?"))
    assert [e.data["name"] for e in session.events(kinds=("action",))] == ["bash"]
    assert workspace.orphans("s") == []


def test_a_call_whose_files_cannot_be_made_safe_does_not_begin(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it left open."""

    def fail() -> None:
        raise StoreFailed("broken")

    workspace = session.parts.capture.workspace
    assert workspace is not None
    monkeypatch.setattr(workspace.blobs, "flush", fail)
    (project / "README").write_text("a person's\n")
    with pytest.raises(StoreFailed, match="broken"), session.tool("bash"):
        pytest.fail("it ran")
    assert workspace.catalogue.lines.brackets(workspace.place.n) == []


def test_a_scan_that_fails_is_said(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too little free space nothing is captured, the conversation goes on, and a rewind
    of files is refused."""
    full = os.statvfs_result((1, 1, 10**9, 9, 9, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    (project / "README").write_text("not captured\n")
    event = session.append(user("go on"))
    assert "MB must stay free" in files(event)["missed"]
    assert "MB must stay free" in session.problems[-1].detail
    with pytest.raises(OSError, match="MB must stay free"):
        session.rewind(before=2)
    assert (project / "README").read_text() == "not captured\n"


def test_files_can_be_left_alone(tmp_path: Path, project: Path) -> None:
    """`files=False`, no `cwd`, and a store that leaves nothing behind capture nothing."""
    for options in ({"files": False, "cwd": project}, {}, {"persist": False, "cwd": project}):
        with Session.create("memory:", **options) as s:  # type: ignore[arg-type]
            event = s.append(user("a"))
            with s.tool("bash"):
                pass
            assert "tree" not in event.data
            assert s.problems == []
            with pytest.raises(RuntimeError, match=r"captured"):
                s.diff()


def test_a_home_is_refused_and_said(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation goes on; "force" insists."""
    monkeypatch.setenv("HOME", str(project))
    with Session.create("memory:", cwd=project) as s:
        assert "tree" not in s.append(user("a")).data
        assert "too much to watch over" in s.problems[0].detail
    with Session.create("memory:", cwd=project, files="force") as s:
        assert "tree" in s.append(user("a")).data


def test_scans_of_threads_and_sessions_do_not_disturb_each_other(
    session: Session, project: Path
) -> None:
    """Brackets open and close in any order; at the end nothing is left open."""

    def work(n: int) -> None:
        for i in range(5):
            with session.tool("edit", paths=[f"f{n}"]):
                (project / f"f{n}").write_text(f"{i}\n")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    workspace: Workspace | None = session.parts.capture.workspace
    assert workspace is not None
    assert workspace.catalogue.lines.brackets(workspace.place.n) == []
    done = session.rewind(before=2)
    assert done.conflicts == []
    assert sorted(os.listdir(project)) == ["README", "src"]


def test_a_call_in_a_message_is_a_bracket_until_its_result(session: Session, project: Path) -> None:
    """For loops of one's own that only append messages."""
    session.append(calling("c1"))
    (project / "by-call").write_text("x\n")
    event = session.append({"role": "tool", "tool_call_id": "c1", "content": "done"})
    assert changed(session, event) == ["by-call"]
    (project / "by-person").write_text("y\n")
    session.append(user("next"))
    session.rewind(before=2)
    assert sorted(os.listdir(project)) == ["README", "by-person", "src"]


def test_a_tool_takes_the_place_of_the_bracket_of_its_message(
    session: Session, project: Path
) -> None:
    """What happens between the message and the call is another's."""
    session.append(calling("c1"))
    (project / "waiting").write_text("saved while the host asked for permission\n")
    with session.tool("bash", {}, id="c1") as call:
        (project / "by-call").write_text("x\n")
    assert call.event is not None
    assert changed(session, call.event) == ["by-call"]


def test_a_whole_conversation_opens_no_brackets(session: Session) -> None:
    """Its calls are answered in it."""
    answer = {"role": "tool", "tool_call_id": "c9", "content": "done"}
    session.extend([*session.messages(), calling("c9"), answer])
    workspace: Workspace | None = session.parts.capture.workspace
    assert workspace is not None
    assert workspace.catalogue.lines.brackets(workspace.place.n) == []


def test_any_caller_may_record_a_tree(session: Session, project: Path) -> None:
    """Of wood. It is no state of the files."""
    point = session.append(user("a"))
    session.record("garden", {"tree": "oak"})
    session.record("garden", {"tree": "ab" * 31})
    (project / "new").touch()
    session.append(user("b"))
    session.rewind(point, mode="exact")
    assert not (project / "new").exists()


@pytest.mark.parametrize("files", [{"after": "oak"}, {"after": "ab", "before": "ab"}, {"after": 1}])
def test_a_record_that_looks_like_a_change_and_is_none(
    session: Session, project: Path, files: dict[str, Json]
) -> None:
    """It is said, and nothing is touched."""
    point = session.append(user("a"))
    (project / "new").touch()
    session.record("garden", {"files": files})
    with pytest.raises(Damaged, match="event"):
        session.rewind(point)
    assert (project / "new").exists()


@pytest.mark.parametrize("how", ["rewind", "exact", "undo", "turn"])
def test_what_a_restore_does_is_no_call_of_another_session(
    how: str, session: Session, project: Path
) -> None:
    """It is recorded by its own event; for the other session, another did it."""
    start = newest(session)
    shell(session, "echo mine > README", project)
    if how == "undo":
        session.rewind(start)
    with Session.create(session.store, "t", cwd=project) as other:
        begun = other.append(user("hello"))
        around = other.turn("go") if how == "turn" else other.tool("make")
        with around:
            if how == "undo":
                session.undo(force=True)
            else:
                session.rewind(start, mode="exact" if how == "exact" else "mine", force=True)
        left = (project / "README").read_text()
        other.append(user("next"))
        assert other.rewind(begun).files == []
        assert (project / "README").read_text() == left
        assert [call.by for turn in other.changes() for call in turn.calls] == ["others"]


@pytest.mark.parametrize("path", ["link/main.py", "file", str(Path("link", "..", "file"))])
def test_behind_a_link_it_is_the_target_that_changes(
    path: str, session: Session, project: Path
) -> None:
    """So a call that declares the link owns that, too."""
    (project / "link").symlink_to("src")
    (project / "file").symlink_to("src/main.py")
    start = session.append(user("links"))
    before = (project / "src/main.py").read_text()
    with session.tool("edit", paths=[path]) as call:
        (project / path).write_text("edited\n")
    assert call.event is not None
    assert changed(session, call.event) == ["src/main.py"]
    session.rewind(start)
    assert (project / "src/main.py").read_text() == before


def test_a_link_that_leads_out_or_to_the_root(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """What is outside is not looked at, and said; behind the root may be anything."""
    (tmp_path / "outside").write_text("x")
    (project / "out").symlink_to(tmp_path / "outside")
    (project / "all").symlink_to(".")
    session.append(user("links"))
    with session.tool("edit", paths=["out"]) as call:
        (project / "out").write_text("y")
    assert call.event is not None
    assert call.event.data["files"] == {"outside": [str((tmp_path / "outside").resolve())]}
    with session.tool("edit", paths=["all"]) as call:
        (project / "README").write_text("edited\n")
    assert call.event is not None
    assert changed(session, call.event) == ["README"]


def test_a_closed_session_says_so(session: Session) -> None:
    """Also where no files were captured."""
    with Session.create("memory:") as without:
        pass
    session.close()
    for closed in (session, without):
        for look in (closed.diff, closed.changes, closed.not_captured):
            with pytest.raises(Closed):
                look()
