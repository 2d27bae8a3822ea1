"""Which directory a workspace is: made anew, reached by a link that leads elsewhere now."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backtrail import Conflict, Session
from backtrail.events import Json

from .world import look


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def made_anew(project: Path) -> None:
    """The folder is removed, and another one with other files is at its path."""
    shutil.rmtree(project)
    project.mkdir()
    (project / "fresh.txt").write_text("fresh\n")


# --- a folder made anew ------------------------------------------------------------------


def test_a_new_session_in_a_folder_made_anew_has_its_own_baseline(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """It captures, and goes back to, the folder as it is now."""
    url = session.store.url
    session.close()
    made_anew(project)
    before = look(project)
    with Session.create(url, "new", cwd=project) as new:
        new.append(said("begin"))
        with new.tool("bash"):
            (project / "fresh.txt").write_text("changed\n")
            (project / "more").write_text("more\n")
        assert not new.problems
        assert {file.path for file in new.rewind(before=2).files} == {"fresh.txt", "more"}
        assert look(project) == before
    with Session.resume(url, "new") as new:
        with new.tool("bash"):
            (project / "fresh.txt").write_text("again\n")
        assert not new.rewind(before=2, mode="exact").conflicts
        assert look(project) == before


@pytest.mark.parametrize("first", ["the old session looks first", "a new session looks first"])
def test_an_old_session_refuses_a_folder_made_anew(
    session: Session, project: Path, first: str
) -> None:
    """Whatever it wants there, until `relocate` takes it as it is."""
    with session.tool("bash"):
        (project / "README").write_text("agent\n")
    url = session.store.url
    session.close()
    made_anew(project)
    if first == "a new session looks first":
        with Session.create(url, "new", cwd=project) as new:
            new.append(said("begin"))
    before = look(project)
    with Session.resume(url, "s") as old:
        for wish in ({"mode": "exact"}, {"mode": "mine"}, {"dry_run": True}, {"scope": "files"}):
            with pytest.raises(Conflict, match="relocate"):
                old.rewind(before=2, **wish)
        with pytest.raises(Conflict, match="relocate"):
            old.append(said("on"))
        with pytest.raises(Conflict, match="relocate"), old.tool("bash"):
            raise AssertionError
        assert look(project) == before
        old.relocate()
        with old.tool("bash"):
            (project / "fresh.txt").write_text("x\n")
    with Session.resume(url, "s") as old:
        point = old.append(said("on"))
        old.undo()
        (project / "later").write_text("x\n")
        old.rewind(point, mode="exact")
        assert not (project / "later").exists()


def test_a_folder_made_anew_with_the_same_content_is_as_good(
    session: Session, project: Path
) -> None:
    """As a clone is; and from then on it is the session's."""
    url = session.store.url
    session.close()
    shutil.copytree(project, project.with_name("copy"))
    shutil.rmtree(project)
    project.with_name("copy").rename(project)
    with Session.resume(url, "s") as old, old.tool("bash"):
        (project / "README").write_text("agent\n")
    (project / "README").write_text("person\n")
    with Session.resume(url, "s") as old:
        old.append(said("on"))
        assert not old.problems


def test_relocating_to_an_equal_folder_is_remembered(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """Though no file differs, the next process knows where the session is."""
    url = session.store.url
    session.close()
    shutil.copytree(project, tmp_path / "copy")
    with Session.resume(url, "s") as old:
        old.relocate(tmp_path / "copy")
    (tmp_path / "copy" / "README").write_text("person\n")
    with Session.resume(url, "s") as old:
        old.append(said("on"))
        assert not old.problems


def test_a_session_that_does_not_know_its_root_refuses_one_that_is_younger(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs of earlier versions have no id of the root, but the time of their looks."""
    url = session.store.url
    session.close()
    # File systems take the time of birth from a clock that is some milliseconds late.
    time.sleep(0.05)
    made_anew(project)
    monkeypatch.setattr("backtrail.files.workspace.root.root_of", lambda event: "")
    with Session.resume(url, "s") as old, pytest.raises(Conflict, match="relocate"):
        old.append(said("on"))


def test_a_call_may_replace_its_own_folder(session: Session, project: Path) -> None:
    """What is there afterwards is the call's work, and can be taken back."""
    before = look(project)
    with session.tool("bash"):
        made_anew(project)
    session.rewind(before=2)
    assert look(project) == before


def test_a_folder_that_comes_back_is_known_again(session: Session, project: Path) -> None:
    """Another one was there meanwhile, with a session of its own."""
    with session.tool("bash"):
        (project / "README").write_text("agent\n")
    url = session.store.url
    session.close()
    away = project.with_name("away")
    project.rename(away)
    project.mkdir()
    with Session.create(url, "new", cwd=project) as new:
        new.append(said("begin"))
    shutil.rmtree(project)
    away.rename(project)
    with Session.resume(url, "s") as old:
        assert [file.path for file in old.rewind(before=2).files] == ["README"]
    assert (project / "README").read_text() == "one\ntwo\nthree\n"


# --- a link ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exact", "mine"])
def test_a_link_that_leads_to_another_folder_is_refused(tmp_path: Path, mode: str) -> None:
    """The workspace is the directory: the second one keeps every byte."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(f"{name}\n")
        (tmp_path / name / f"only-{name}").write_text("x\n")
    link = tmp_path / "current"
    link.symlink_to("one")
    url = f"sqlite:///{tmp_path}/s.db"
    with Session.create(url, "s", cwd=link) as session:
        session.append(said("begin"))
        with session.tool("bash"):
            (link / "f").write_text("agent\n")
    link.unlink()
    link.symlink_to("two")
    before = look(tmp_path / "two")
    with Session.resume(url, "s", cwd=link) as session:
        with pytest.raises(Conflict, match="relocate"):
            session.rewind(before=2, mode=mode)  # type: ignore[arg-type]
        with pytest.raises(Conflict, match="relocate"):
            session.undo()
        with pytest.raises(Conflict, match="relocate"):
            session.append(said("on"))
    assert look(tmp_path / "two") == before
    (tmp_path / "one").rename(tmp_path / "real")
    (tmp_path / "one").symlink_to("two")
    with Session.resume(url, "s") as session, pytest.raises(Conflict, match="relocate"):
        session.rewind(before=2, mode=mode)  # type: ignore[arg-type]
    assert look(tmp_path / "two") == before
    (tmp_path / "one").unlink()
    (tmp_path / "real").rename(tmp_path / "one")
    with Session.resume(url, "s") as session:
        session.rewind(before=2, mode=mode)  # type: ignore[arg-type]
    assert (tmp_path / "one" / "f").read_text() == "one\n"


# --- the stamp ---------------------------------------------------------------------------


def stamps(session: Session) -> list[tuple[str, dict[str, Json] | None]]:
    return [(e.kind, e.data.get("workspace")) for e in session.events()
            if "tree" in e.data or "files" in e.data]  # fmt: skip


def test_every_event_with_files_says_which_root_and_state(session: Session, project: Path) -> None:
    """One id for all, and numbers that grow with every state."""
    with session.tool("bash"):
        (project / "README").write_text("agent\n")
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "x",
                                                 "input": {}}]}  # fmt: skip
    session.append(message)
    (project / "README").write_text("call\n")
    result = {"type": "tool_result", "tool_use_id": "c", "content": "done"}
    session.append({"role": "user", "content": [result]})
    (project / "README").write_text("person\n")
    session.checkpoint("here")
    session.rewind(before=2, on_conflict="overwrite")
    session.undo()
    session.redo()
    found = stamps(session)
    assert {kind for kind, _ in found} == {
        "user_message", "action", "tool_result", "files_changed", "checkpoint", "rewound",
        "undone", "redone",
    }  # fmt: skip
    ids = {stamp["id"] for _, stamp in found if stamp is not None}
    assert len(ids) == 1 and len(str(ids.pop())) == 32
    assert all(stamp is not None for _, stamp in found)
    numbers = [(stamp or {})["n"] for _, stamp in found]
    assert numbers == sorted(numbers, key=int)
    changing = [(stamp or {})["n"] for kind, stamp in found
                if kind not in ("user_message", "checkpoint")]  # fmt: skip
    assert len(set(changing)) == len(changing)


def test_a_checkpoint_of_an_earlier_point_has_that_point_s_stamp(
    session: Session, project: Path
) -> None:
    first = stamps(session)[0][1]
    with session.tool("bash"):
        (project / "README").write_text("agent\n")
    session.checkpoint("then", at=2)
    assert stamps(session)[-1] == ("checkpoint", first)


def test_sessions_and_stores_share_a_root_s_line_of_time(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """A state that one store numbered has that number in the other."""
    with session.tool("bash"):
        (project / "README").write_text("agent\n")
    with Session.create(f"sqlite:///{tmp_path}/second.db", "t", cwd=project) as other:
        other.append(said("begin"))
        assert stamps(other)[0][1] == stamps(session)[-1][1]
        with other.tool("bash"):
            (project / "README").write_text("other\n")
        session.append(said("on"))
        assert stamps(session)[-1][1] == stamps(other)[-1][1]


def test_a_number_is_not_used_again_after_a_boot(
    session: Session, project: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry is not synced: a power cut may bring back an old number."""
    url = session.store.url
    (lock,) = state.glob("roots/*/lock")
    old = lock.read_bytes()
    with session.tool("bash"):
        (project / "README").write_text("agent\n")
    session.close()
    number = max(int((stamp or {})["n"]) for _, stamp in stamps_in(url))
    lock.write_bytes(old)
    monkeypatch.setattr("backtrail.files.workspace.machine._boot", lambda: "another")
    with Session.resume(url, "s") as session:
        with session.tool("bash"):
            (project / "README").write_text("more\n")
        assert int((stamps(session)[-1][1] or {})["n"]) > number
        assert len({(stamp or {})["id"] for _, stamp in stamps(session)}) == 1


def stamps_in(url: str) -> list[tuple[str, dict[str, Json] | None]]:
    with Session.resume(url, "s", files=False) as session:
        return stamps(session)


def test_what_a_killed_process_left_keeps_its_stamp(session: Session, project: Path) -> None:
    """By the session itself, later; other sessions have moved the root on by then."""
    url = session.store.url
    session.close()
    code = (
        "import os, sys; from backtrail import Session\n"
        "s = Session.resume(sys.argv[1], 's'); c = s.tool('bash'); c.__enter__()\n"
        "open(sys.argv[2] + '/README', 'w').write('agent\\n'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, url, os.fspath(project)], check=False)
    with Session.create(url, "t", cwd=project) as other:
        other.append(said("begin"))
        kept = stamps(other)[-1][1]
        with other.tool("bash"):
            (project / "more").write_text("more\n")
    with Session.resume(url, "s") as again:
        again.append(said("on"))
        (reported,) = (e for e in again.events() if e.kind == "action")
        assert reported.data["workspace"] == kept
        assert [f.path for f in again.rewind(before=2).files] == ["README"]
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert (project / "more").read_text() == "more\n"


def test_a_fork_in_a_folder_of_its_own_does_not_know_another(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """Whatever a person did there before the fork's first look."""
    url = session.store.url
    session.fork(session_id="f", into=tmp_path / "other").close()
    (tmp_path / "other" / "README").write_text("person\n")
    with Session.resume(url, "f") as fork:
        fork.append(said("on"))
        assert not fork.problems
    made_anew(tmp_path / "other")
    with Session.resume(url, "f") as fork, pytest.raises(Conflict, match="relocate"):
        fork.append(said("on"))


@pytest.mark.parametrize("lost", ["removed", "another one", "damaged"])
def test_a_lost_registry_does_not_make_it_another_root(
    session: Session,
    project: Path,
    state: Path,
    tmp_path: Path,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store remembers its id, and numbers go on."""
    with session.tool("bash"):
        (project / "README").write_text("agent\n")
    url = session.store.url
    session.close()
    (project / "README").write_text("person\n")
    if lost == "removed":
        shutil.rmtree(state)
    elif lost == "another one":
        monkeypatch.setenv("BACKTRAIL_STATE", str(tmp_path / "another"))
    else:
        (lock,) = state.glob("roots/*/lock")
        lock.write_bytes(b"garbage" * 100)
    with Session.resume(url, "s") as again:
        again.append(said("on"))
        found = [stamp or {} for _, stamp in stamps(again)]
    assert len({stamp["id"] for stamp in found}) == 1
    assert found[-1]["n"] > found[-3]["n"]
