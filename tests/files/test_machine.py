"""What the machine knows of roots: sessions of nested folders and of several stores."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.files.workspace.machine import Machine

from .world import look


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A project with a part that a second session may have for itself."""
    root = tmp_path / "repo"
    (root / "pkg").mkdir(parents=True)
    (root / "a.txt").write_text("a\n")
    (root / "pkg" / "b.txt").write_text("b\n")
    return root


@pytest.fixture(params=["nested", "nested, two stores", "one root, two stores"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, repo: Path) -> Iterator[list[Session]]:
    """Session A at the project, session B in its part or at the same root in another store."""
    first = f"sqlite:///{tmp_path}/first.db"
    second = f"sqlite:///{tmp_path}/second.db" if "two" in request.param else first
    inner = repo if "one root" in request.param else repo / "pkg"
    with ExitStack() as stack:
        a = stack.enter_context(Session.create(first, "a", cwd=repo))
        b = stack.enter_context(Session.create(second, "b", cwd=inner))
        for session in (a, b):
            session.append(said("begin"))
        yield [a, b]


def wanted(repo: Path, **contents: str) -> None:
    """The project has exactly these texts, whatever any session says."""
    found = {path: content.decode() for path, (kind, _, content) in look(repo).items()
             if kind == "file"}  # fmt: skip
    assert found == {name.replace("__", "/").replace("_", "."): text
                     for name, text in contents.items()}  # fmt: skip


@pytest.mark.parametrize("order", ["a ends first", "b ends first"])
def test_a_declared_path_is_its_call_s_alone_elsewhere_too(
    pair: list[Session], repo: Path, order: str
) -> None:
    """A runs a shell, B names its file: A's way back leaves B's file as it is."""
    a, b = pair
    shell, edit = a.tool("bash"), b.tool("edit", paths=[repo / "pkg" / "b.txt"])
    shell.__enter__()
    edit.__enter__()
    (repo / "a.txt").write_text("A\n")
    (repo / "pkg" / "b.txt").write_text("B\n")
    for call in (shell, edit) if order == "a ends first" else (edit, shell):
        call.__exit__(None, None, None)
    done = a.rewind(before=2)
    assert [file.path for file in done.files] == ["a.txt"]
    assert not done.conflicts
    wanted(repo, a_txt="a\n", pkg__b_txt="B\n")
    assert [file.path for file in b.rewind(before=2).files] in (["b.txt"], ["pkg/b.txt"])
    wanted(repo, a_txt="a\n", pkg__b_txt="b\n")


@pytest.mark.parametrize("order", ["a began first", "b began first"])
@pytest.mark.parametrize("end", ["a ends first", "b ends first"])
def test_what_two_shells_may_both_have_done_is_shared(
    pair: list[Session], repo: Path, order: str, end: str
) -> None:
    """Neither takes it back by itself; what lies outside the inner root is the outer one's."""
    a, b = pair
    calls = [a.tool("bash"), b.tool("bash")]
    for call in calls if order == "a began first" else calls[::-1]:
        call.__enter__()
    (repo / "a.txt").write_text("A\n")
    (repo / "pkg" / "b.txt").write_text("B\n")
    for call in calls if end == "a ends first" else calls[::-1]:
        call.__exit__(None, None, None)
    nested = b.info().cwd != a.info().cwd
    done = a.rewind(before=2)
    assert "pkg/b.txt" in [file.path for file in done.conflicts]
    assert ("a.txt" in [file.path for file in done.conflicts]) is not nested
    assert b.rewind(before=2).conflicts
    wanted(repo, a_txt="a\n" if nested else "A\n", pkg__b_txt="B\n")


def test_a_call_that_was_over_before_is_not_met(pair: list[Session], repo: Path) -> None:
    """One after the other, each owns what it did."""
    a, b = pair
    with b.tool("bash"):
        (repo / "pkg" / "b.txt").write_text("B\n")
    with a.tool("bash"):
        (repo / "pkg" / "new").write_text("A\n")
    assert not a.rewind(before=2).conflicts
    wanted(repo, a_txt="a\n", pkg__b_txt="B\n")
    assert not b.rewind(before=2).conflicts
    wanted(repo, a_txt="a\n", pkg__b_txt="b\n")


def test_each_part_of_a_call_knows_the_calls_it_met(pair: list[Session], repo: Path) -> None:
    """What it did so far is recorded at a message, and the call goes on."""
    a, b = pair
    with a.tool("bash"):
        with b.tool("edit", paths=[repo / "pkg" / "b.txt"]):
            (repo / "pkg" / "b.txt").write_text("B\n")
            a.append(said("meanwhile"))
        (repo / "a.txt").write_text("A\n")
    assert not a.rewind(before=2).conflicts
    wanted(repo, a_txt="a\n", pkg__b_txt="B\n")


def test_what_a_restore_did_elsewhere_is_no_call_s(pair: list[Session], repo: Path) -> None:
    """B goes back by force while a call of A is open: A's way back does not undo that."""
    a, b = pair
    with b.tool("bash"):
        (repo / "pkg" / "b.txt").write_text("B\n")
    with a.tool("bash"):
        (repo / "a.txt").write_text("A\n")
        b.rewind(before=2, force=True)
        wanted(repo, a_txt="A\n", pkg__b_txt="b\n")
    a.rewind(before=2)
    wanted(repo, a_txt="a\n", pkg__b_txt="b\n")


# --- locks -------------------------------------------------------------------------------


def roots(state: Path) -> dict[str, Path]:
    """The folders of the roots in the registry, by the last name of the root."""
    found = {}
    for folder in (state / "roots").iterdir():
        if folder.is_dir():
            path = (folder / "lock").read_bytes()[64:].rstrip(b"\n").split(b" ")[-1]
            found[os.path.basename(os.fsdecode(path))] = folder
    return found


@pytest.mark.parametrize("held", ["repo", "pkg"])
def test_a_restore_waits_for_the_roots_above_and_below(
    tmp_path: Path, repo: Path, state: Path, held: str
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with Session.create(url, "a", cwd=repo) as a, Session.create(url, "b", cwd=repo / "pkg") as b:
        for session, name in ((a, "new"), (b, "pkg/new")):
            session.append(said("begin"))
            with session.tool("bash"):
                (repo / name).write_text("new\n")
        with (roots(state)[held] / "lock").open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            going = b if held == "repo" else a
            thread = threading.Thread(target=lambda: going.rewind(before=2))
            thread.start()
            time.sleep(0.3)
            assert (repo / "pkg" / "new").exists() and (repo / "new").exists()
        thread.join()
        assert (repo / "pkg" / "new").exists() == (held == "pkg")


def test_a_scan_waits_for_its_own_root_alone(tmp_path: Path, repo: Path, state: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with Session.create(url, "a", cwd=repo) as a, Session.create(url, "b", cwd=repo / "pkg") as b:
        b.append(said("begin"))
        with (roots(state)["pkg"] / "lock").open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            a.append(said("begin"))
            with a.tool("bash"):
                (repo / "a.txt").write_text("A\n")


def test_two_stores_share_the_lock_of_a_root(tmp_path: Path, repo: Path, state: Path) -> None:
    for name in ("first", "second"):
        with Session.create(f"sqlite:///{tmp_path}/{name}.db", "s", cwd=repo) as session:
            session.append(said("begin"))
    assert list(roots(state)) == ["repo"]


# --- the registry itself -----------------------------------------------------------------


def test_only_the_user_can_read_the_registry(tmp_path: Path, repo: Path, state: Path) -> None:
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=repo) as session:
        session.append(said("begin"))
        with session.tool("bash"):
            for path in [state, *state.rglob("*")]:
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode == (0o700 if path.is_dir() else 0o600), path
            assert [path.name for path in state.rglob("calls/*")]
    assert not list(state.rglob("calls/*"))


@pytest.mark.parametrize("garbage", [b"", b"\0" * 300, b"{}\n" * 50, bytes(range(256))])
def test_garbage_in_the_registry_stops_no_session(
    tmp_path: Path, repo: Path, state: Path, garbage: bytes
) -> None:
    """Damaged files are read as nothing, or, where they say which calls it met, as any call."""
    url = f"sqlite:///{tmp_path}/s.db"
    with Session.create(url, "s", cwd=repo) as session:
        session.append(said("begin"))
    (folder,) = roots(state).values()
    (folder / "calls").mkdir(0o700)
    for path in (folder / "lock", state / "roots" / "map", folder / "calls" / "x.y"):
        path.write_bytes(garbage)
    with Session.resume(url, "s") as session:
        with session.tool("bash"):
            (repo / "a.txt").write_text("A\n")
        assert not session.rewind(before=2).conflicts
        wanted(repo, a_txt="a\n", pkg__b_txt="b\n")
        with session.tool("bash"):
            (repo / "a.txt").write_text("A\n")
            (mine,) = (path for path in folder.glob("calls/*") if path.name != "x.y")
            with mine.open("ab") as file:
                file.write(b"\n{garbage\n")
        assert [file.path for file in session.rewind(before=2).conflicts] == ["a.txt"]


def test_links_in_the_registry_are_not_followed(tmp_path: Path, repo: Path, state: Path) -> None:
    """Nothing is written where a link leads; the call is captured all the same, or refused."""
    url = f"sqlite:///{tmp_path}/s.db"
    with Session.create(url, "s", cwd=repo) as session:
        session.append(said("begin"))
    (folder,) = roots(state).values()
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    for path in (folder / "lock", state / "roots" / "map"):
        path.unlink()
        path.symlink_to(victim)
    with Session.resume(url, "s", on_error="record") as session:
        with session.tool("bash"):
            (repo / "a.txt").write_text("A\n")
        assert session.problems
    assert victim.read_text() == "mine\n"


def test_a_state_folder_that_cannot_be_made_is_said(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are captured as before; what is not seen is a problem that is shown."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BACKTRAIL_STATE", str(tmp_path / "file" / "state"))
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=repo) as session:
        session.append(said("begin"))
        with session.tool("bash"):
            (repo / "a.txt").write_text("A\n")
        assert any("BACKTRAIL_STATE" in problem.detail for problem in session.problems)
        assert not session.rewind(before=2).conflicts
    wanted(repo, a_txt="a\n", pkg__b_txt="b\n")


def test_a_state_folder_in_the_root_is_not_captured(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way back never puts the registry back."""
    monkeypatch.setenv("BACKTRAIL_STATE", str(repo / ".state"))
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=repo) as session:
        session.append(said("begin"))
        with session.tool("bash"):
            (repo / "a.txt").write_text("A\n")
        assert [file.path for file in session.rewind(before=2, mode="exact").files] == ["a.txt"]


def test_a_registry_that_was_removed_is_made_again(tmp_path: Path, repo: Path, state: Path) -> None:
    import shutil

    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=repo) as session:
        session.append(said("begin"))
        shutil.rmtree(state)
        with session.tool("bash"):
            (repo / "a.txt").write_text("A\n")
            shutil.rmtree(state)
        assert not session.rewind(before=2).conflicts
    wanted(repo, a_txt="a\n", pkg__b_txt="b\n")


def test_roots_below_are_found_where_they_were_moved(
    tmp_path: Path, repo: Path, state: Path
) -> None:
    """Also if no session has worked in them since."""
    url = f"sqlite:///{tmp_path}/store.db"
    with Session.create(url, "b", cwd=repo / "pkg") as b:
        b.append(said("begin"))
    with Session.create(url, "a", cwd=repo) as a:
        a.append(said("begin"))
    moved = tmp_path / "moved\nelsewhere %0A"
    repo.rename(moved)
    with Session.resume(url, "a", cwd=moved) as a:
        a.append(said("here"))
        machine = Machine(str(state))
        (found,) = machine.related("", os.fsencode(moved))
        assert found.below == b"pkg"
