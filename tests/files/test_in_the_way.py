"""What is in the way of a restore, and what a restore puts beside something else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from backtrail import Session
from backtrail.session.fileplans import Mode
from backtrail.testing.store.base import child, joined
from tests.files.conftest import shell
from tests.files.test_moved import snapshot
from tests.talking import user

NOBODY = 65534


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127 + "x", "n" * 250])
def test_aside_of_a_long_name(name: str, session: Session, project: Path) -> None:
    """The content that was wanted lies beside, under a name that a file may have."""
    (project / name).write_text("first\n")
    point = session.append(user("now"))
    shell(session, f"echo agent > {name}; echo agent > README", project)
    (project / name).write_text("person\n")
    done = session.rewind(point, on_conflict="aside")
    assert (project / name).read_text() == "person\n"
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    (beside,) = [f for f in os.listdir(project) if f not in (name, "README", "src")]
    assert (project / beside).read_text() == "first\n"
    assert len(os.fsencode(beside)) <= 255
    assert beside in [file.path for file in done.files]


def test_two_long_names_that_begin_alike_lie_beside_each_other(
    session: Session, project: Path
) -> None:
    """Cutting a name short does not make two of them one."""
    names = ["n" * 254 + end for end in "ab"]
    for name in names:
        (project / name).write_text(f"first {name[-1]}\n")
    point = session.append(user("now"))
    shell(session, f"echo agent | tee {names[0]} > {names[1]}", project)
    for name in names:
        (project / name).write_text("person\n")
    session.rewind(point, on_conflict="aside")
    found = {(project / f).read_text() for f in os.listdir(project) if (project / f).is_file()}
    assert {"first a\n", "first b\n", "person\n"} <= found


def played_unseen(place: str, root: Path, play: Callable[[Session], None]) -> None:
    """Play with a session of a user without privileges, in a process of its own."""
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", place], check=True)
    (Path(place) / "home").mkdir()
    os.chown(Path(place) / "home", NOBODY, NOBODY)

    def body() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.environ.update(HOME=f"{place}/home", BACKTRAIL_STATE=f"{place}/home/state")
        with Session.create(f"sqlite:///{place}/store.db", "s", cwd=root) as session:
            play(session)

    assert joined([child(body)]) == [0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("exchange", [True, False])
def test_an_empty_folder_that_cannot_be_written_in(
    exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes way for the file that was there, and comes back with its mode."""
    if not exchange:
        monkeypatch.setattr("backtrail.files.beneath.system.renameat2", None)
    with TemporaryDirectory() as place:
        root = Path(place) / "project"
        root.mkdir()
        (root / "f").write_text("mine\n")

        def play(session: Session) -> None:
            point = session.append(user("now"))
            shell(session, "rm f; mkdir f; chmod 555 f; echo x > other", root)
            session.rewind(point)
            assert (root / "f").read_text() == "mine\n"
            assert os.listdir(root) == ["f"]
            session.undo()
            assert (root / "f").is_dir() and not os.listdir(root / "f")
            assert (root / "f").stat().st_mode & 0o7777 == 0o555
            session.redo()
            assert (root / "f").read_text() == "mine\n"

        played_unseen(place, root, play)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("mode", ["mine", "exact"])
def test_a_folder_that_cannot_be_looked_into_is_a_conflict(mode: Mode) -> None:
    """It is said that it stays, and why; all else goes back, and undo is exact."""
    with TemporaryDirectory() as place:
        root = Path(place) / "project"
        (root / "d").mkdir(parents=True)
        (root / "d/x").write_text("x\n")
        (root / "f").write_text("mine\n")

        def play(session: Session) -> None:
            point = session.append(user("now"))
            shell(session, "chmod 000 d; mkdir new; chmod 000 new; echo x > f", root)
            plan = session.rewind(point, mode=mode, dry_run=True)
            done = session.rewind(point, mode=mode)
            assert [f.path for f in plan.conflicts] == [f.path for f in done.conflicts]
            assert [f.path for f in done.conflicts] == ["d", "new"]
            assert all("Permission denied" in f.reason for f in done.conflicts)
            assert (root / "f").read_text() == "mine\n"
            assert (root / "d").stat().st_mode & 0o777 == 0
            session.undo()
            assert (root / "f").read_text() == "x\n"
            session.redo()
            for name in ("d", "new"):
                (root / name).chmod(0o755)
            session.rewind(point, mode=mode)
            assert (root / "d/x").read_text() == "x\n"

        played_unseen(place, root, play)


WAYS = {
    "grown": "truncate -s 20971521 f",
    "a pipe": "rm f; mkfifo f",
    "packages for a file": "rm node_modules; mkdir node_modules; echo x > node_modules/x.js",
    "packages for a link": "rm .venv; mkdir .venv; echo x > .venv/x.js",
    "left out": "rm -r d; mkdir d; echo x > d/x; mv d f.key; rm f; mv f.key f",
    "grown and moved": "truncate -s 20971521 f; mv f g; echo new > f",
    "a pipe for a folder": "rm -r d; mkfifo d",
}


@pytest.mark.parametrize("mode", ["mine", "exact"])
@pytest.mark.parametrize("command", WAYS.values(), ids=WAYS)
def test_what_is_not_captured_makes_way(
    command: str, mode: Mode, session: Session, project: Path
) -> None:
    """The file is back, what was in its way lies under a name that is said; undo swaps them."""
    (project / "f").write_text("captured\n")
    (project / "d").mkdir()
    (project / "d/y").write_text("y\n")
    (project / "node_modules").write_text("a file of this name\n")
    (project / ".venv").symlink_to("/somewhere/else")
    point = session.append(user("now"))
    before = snapshot(project)
    shell(session, command, project)
    after = snapshot(project)
    plan = session.rewind(point, mode=mode, dry_run=True)
    assert snapshot(project) == after
    done = session.rewind(point, mode=mode)
    now = snapshot(project)
    assert {path: now.get(path) for path in before} == before
    aside = now.keys() - before.keys()
    reported = {file.path for file in done.files if file.action == "move"}
    assert {path.partition("/")[0] for path in aside} <= {*reported, "f", "g"}
    assert [(f.path, f.action) for f in done.files] == [(f.path, f.action) for f in plan.files]
    contents = [value for value in now.values() if value[0] != "directory"]
    lost = [v for p, v in after.items() if v not in contents and v[0] == "file" and len(v[2]) == 32]
    assert not lost
    assert not done.conflicts
    session.undo()
    assert snapshot(project) == after
    session.redo()
    assert snapshot(project) == now


def test_what_a_person_put_there_since_is_a_conflict(session: Session, project: Path) -> None:
    """It is said, and stays; `overwrite` puts it aside."""
    point = session.append(user("now"))
    shell(session, "rm README; mkfifo README", project)
    os.unlink(project / "README")
    (project / "README").mkdir()
    os.truncate(project / "src/main.py", 0)
    with (project / "README/big").open("wb") as file:
        file.truncate(20971521)
    done = session.rewind(point)
    assert {file.path: file.action for file in done.files}["README"] == "conflict"
    assert (project / "README/big").stat().st_size == 20971521


def test_a_folder_that_holds_what_is_not_captured_is_a_conflict(
    session: Session, project: Path
) -> None:
    """It is said which one, and all of it stays."""
    point = session.append(user("now"))
    shell(session, "rm README; mkdir README; mkfifo README/pipe; echo x > src/main.py", project)
    done = session.rewind(point)
    assert [file.path for file in done.conflicts] == ["README"]
    assert "README/pipe" in done.conflicts[0].reason
    assert (project / "README/pipe").is_fifo()
    assert (project / "src/main.py").read_text() == "print('hello')\n"


def test_a_name_aside_that_is_taken(session: Session, project: Path) -> None:
    """A second thing aside gets another name."""
    (project / "README.aside").write_text("taken\n")
    point = session.append(user("now"))
    shell(session, "rm README; mkfifo README", project)
    session.rewind(point)
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert (project / "README.aside").read_text() == "taken\n"
    assert (project / "README.aside-2").is_fifo()
