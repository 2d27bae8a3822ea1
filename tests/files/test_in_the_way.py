"""What is in the way of a restore, and what a restore puts beside something else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from backtrail import Session
from backtrail.testing.contract_base import child, joined
from tests.files.conftest import shell
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("exchange", [True, False])
def test_an_empty_folder_that_nobody_may_write_in(
    exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes way for the file that was there, and comes back with its mode."""
    if not exchange:
        monkeypatch.setattr("backtrail.files.beneath.renameat2", None)
    with TemporaryDirectory() as place:
        root = Path(place) / "project"
        root.mkdir()
        (root / "f").write_text("mine\n")
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", place], check=True)
        (Path(place) / "home").mkdir()
        os.chown(Path(place) / "home", NOBODY, NOBODY)

        def play() -> None:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.environ.update(HOME=f"{place}/home", BACKTRAIL_STATE=f"{place}/home/state")
            with Session.create(f"sqlite:///{place}/store.db", "s", cwd=root) as session:
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

        assert joined([child(play)]) == [0]
