"""What is not captured and only moved: it is known under its new name, and moves back."""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.files.contents.blobs import Blobs
from backtrail.files.trees import digest_of
from backtrail.session.fileplans import Mode
from tests.files.conftest import shell
from tests.talking import user

OVER = 20 * 1024 * 1024 + 1


@pytest.fixture
def repository(project: Path) -> Path:
    """A project with all that is not captured in it."""
    subprocess.run("git init -q . && git add . && git -c user.name=a -c user.email=a@b "
                   "commit -qm one", shell=True, check=True, cwd=project)  # fmt: skip
    (project / "node_modules/left").mkdir(parents=True)
    (project / "node_modules/left/index.js").write_text("left()\n")
    (project / "src/node_modules").mkdir()
    (project / "src/node_modules/right.js").write_text("right()\n")
    (project / ".backtrailignore").write_text("private/\n*.key\n")
    (project / "private").mkdir()
    (project / "lib/deep").mkdir(parents=True)
    (project / "lib/deep/code.py").write_text("pass\n")
    (project / "private/diary").write_text("dear diary\n")
    (project / "one.key").write_text("a secret key\n")
    with (project / "big.bin").open("wb") as file:
        file.write(b"begin")
        file.truncate(OVER)
    os.mkfifo(project / "pipe")
    return project


def snapshot(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Every byte below a folder, made by the test."""
    found: dict[str, tuple[str, int, bytes]] = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            key = str(path.relative_to(root))
            if path.is_fifo():
                found[key] = ("pipe", 0, b"")
            elif path.is_symlink():
                found[key] = ("link", 0, os.fsencode(os.readlink(path)))
            elif path.is_dir():
                found[key] = ("directory", path.stat().st_mode, b"")
            else:
                found[key] = ("file", path.stat().st_mode, _brief(path.read_bytes()))
    return found


def _brief(content: bytes) -> bytes:
    return content if len(content) < 1000 else sha256(content).digest()


MOVES = {
    "git": "mv .git .git_disabled",
    "packages": "mv node_modules nm_old",
    "left out folder": "mv private public",
    "left out file": "mv one.key one.txt",
    "over the limit": "mv big.bin small.bin",
    "pipe": "mv pipe fifo",
    "deeper": "mkdir -p a/b && mv .git a/b/git && mv node_modules a/b/nm",
    "with its folder": "mv src lab",
    "in place of a file": "mv .git x && rm README && mv x README",
    "in place of a folder": "rm -r lib && mv node_modules lib",
    "all of them": "mkdir t; mv .git node_modules private one.key big.bin pipe src t; echo > new",
}


@pytest.mark.parametrize("mode", ["mine", "exact"])
@pytest.mark.parametrize("command", MOVES.values(), ids=MOVES)
def test_what_was_moved_moves_back(
    command: str, mode: Mode, repository: Path, session: Session
) -> None:
    """Every byte is where it was, also of what was not captured; undo moves it away again."""
    point = session.append(user("now"))
    before = snapshot(repository)
    shell(session, command, repository)
    after = snapshot(repository)
    assert after != before
    plan = session.rewind(point, mode=mode, dry_run=True)
    assert snapshot(repository) == after
    done = session.rewind(point, mode=mode)
    assert snapshot(repository) == before
    assert [(f.path, f.action) for f in done.files] == [(f.path, f.action) for f in plan.files]
    assert not done.conflicts
    assert "move" in {file.action for file in done.files}
    session.undo()
    assert snapshot(repository) == after
    session.redo()
    assert snapshot(repository) == before


@pytest.mark.parametrize("mode", ["mine", "exact"])
def test_what_was_left_out_is_captured_under_no_name(
    mode: Mode, repository: Path, session: Session
) -> None:
    """Neither the secret, nor what is in a repository, is in the store for having moved."""
    point = session.append(user("now"))
    shell(session, "mv one.key one.txt; mv private p; mv .git g; mv node_modules n", repository)
    session.rewind(point, mode=mode)
    blobs = _blobs(session)
    for text in (b"a secret key\n", b"dear diary\n", b"left()\n", b"ref: refs/heads/master\n"):
        assert not blobs.has([digest_of(text)])
    assert blobs.has([digest_of(b"one\ntwo\nthree\n")])


def _blobs(session: Session) -> Blobs:
    workspace = session.parts.capture.workspace
    assert workspace is not None
    return workspace.blobs


@pytest.mark.parametrize("mode", ["mine", "exact"])
def test_what_took_the_place_of_its_own_folder(
    mode: Mode, repository: Path, session: Session
) -> None:
    """It waits until the folder is there again, and goes back into it."""
    point = session.append(user("now"))
    before = snapshot(repository)
    shell(session, "rm src/main.py; mv src/node_modules y; rmdir src; mv y src", repository)
    after = snapshot(repository)
    done = session.rewind(point, mode=mode)
    assert snapshot(repository) == before
    assert not done.conflicts
    session.undo()
    assert snapshot(repository) == after


def test_two_moves_and_a_point_between_them(repository: Path, session: Session) -> None:
    """It goes back to the name it had then."""
    first = session.append(user("one"))
    states = [snapshot(repository)]
    shell(session, "mv .git g1; mv one.key k1", repository)
    second = session.append(user("two"))
    states.append(snapshot(repository))
    shell(session, "mv g1 g2; mkdir s; mv k1 s/k2", repository)
    session.append(user("three"))
    session.rewind(second)
    assert snapshot(repository) == states[1]
    session.rewind(first)
    assert snapshot(repository) == states[0]


def test_what_came_back_to_its_name_by_itself(repository: Path, session: Session) -> None:
    """Nothing is to be done, and nothing is said."""
    point = session.append(user("now"))
    before = snapshot(repository)
    shell(session, "mv .git g", repository)
    shell(session, "mv g .git", repository)
    assert session.rewind(point).files == []
    assert snapshot(repository) == before


@pytest.mark.parametrize("mode", ["mine", "exact"])
def test_a_name_that_is_taken_is_left(mode: Mode, repository: Path, session: Session) -> None:
    """The repository stays under its new name, and the new one where it is."""
    point = session.append(user("now"))
    shell(session, "mv .git old; git init -q .; echo x > README", repository)
    after = snapshot(repository)
    done = session.rewind(point, mode=mode)
    now = snapshot(repository)
    assert now.pop("README")[2] == b"one\ntwo\nthree\n"
    del after["README"]
    assert now == after
    assert {f.path: f.action for f in done.files}["old"] == "skip"


def test_a_persons_move_is_left_to_the_person(repository: Path, session: Session) -> None:
    """The session did not make it, so it does not take it back."""
    point = session.append(user("now"))
    shell(session, "echo x > README", repository)
    os.rename(repository / ".git", repository / "mine")
    session.append(user("more"))
    session.rewind(point)
    assert (repository / "mine/HEAD").exists() and not (repository / ".git").exists()


def test_what_a_person_moved_further_is_left(repository: Path, session: Session) -> None:
    """What the call left is not there any more."""
    point = session.append(user("now"))
    shell(session, "mv .git g; echo x > README", repository)
    os.rename(repository / "g", repository / "mine")
    session.rewind(point)
    assert (repository / "mine/HEAD").exists() and not (repository / ".git").exists()
    assert (repository / "README").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("births", [True, False])
def test_a_new_folder_with_the_number_of_one_that_is_gone(
    births: bool, repository: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is captured, and goes with a rewind: ext4 gives a number again at once."""
    if not births:
        monkeypatch.setattr("backtrail.files.workspace.roots._statx", lambda: None)
    point = session.append(user("now"))
    for number in range(5):
        shutil.rmtree(repository / "node_modules", ignore_errors=True)
        (repository / "node_modules").mkdir()
        (repository / "node_modules/some").write_text("x")
        session.append(user(f"more {number}"))
    shell(session, "rm -r node_modules; mkdir mine; echo new > mine/new", repository)
    session.rewind(point)
    assert not (repository / "mine").exists()
    session.undo()
    assert (repository / "mine/new").read_text() == "new\n"


def test_without_a_time_of_birth_a_listing_decides(
    repository: Path, session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder with the same number and the same names in it is the one that is gone."""
    monkeypatch.setattr("backtrail.files.workspace.roots._statx", lambda: None)
    with Session.create(f"sqlite:///{tmp_path}/two.db", "s", cwd=repository) as other:
        point = other.append(user("now"))
        before = snapshot(repository)
        shell(other, "mv .git g; mv node_modules n; mv one.key k; mv big.bin b", repository)
        other.rewind(point)
        assert snapshot(repository) == before


def test_moves_are_found_by_another_process(repository: Path, tmp_path: Path) -> None:
    """What is known of the folder is read from its file."""
    url = f"sqlite:///{tmp_path}/store.db"
    with Session.create(url, "s", cwd=repository) as session:
        point = session.append(user("now"))
    before = snapshot(repository)
    with Session.open(url, "s") as session:
        shell(session, "mv .git g; mv private p", repository)
    with Session.open(url, "s") as session:
        session.append(user("more"))
        session.rewind(point.seq)
        assert snapshot(repository) == before


def test_what_is_moved_is_not_lost(repository: Path, session: Session) -> None:
    """The event does not say that it cannot be undone; `not_captured` has the new name."""
    point = session.append(user("now"))
    shell(session, "mv .git g; mv private p", repository)
    (event,) = session.events(kinds=("tool_result", "action"), after=point.seq)
    assert "lost" not in event.data["files"]
    reasons = {path: reason for path, reason, _ in session.not_captured()}
    assert reasons["g"] == "version control, moved from .git"
    assert session.rewind(point).warnings == []
