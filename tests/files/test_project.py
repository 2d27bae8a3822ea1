"""Which folder is captured for an agent that runs in one: the project's root, or the folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backtrail.files.workspace.roots import MARKS, Root, project_root


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with room for projects, and none of it marked."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def made(folder: Path) -> Path:
    """A folder that is there, by its one name; one called `.git` is a repository's."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.name == ".git":
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
    return folder.resolve()


MARKED = [
    ("mkdir .git; echo 'ref: refs/heads/main' > .git/HEAD"),
    ("echo 'gitdir: elsewhere' > .git"),
    ("mkdir elsewhere; echo 'ref: refs/heads/main' > elsewhere/HEAD; ln -s elsewhere .git"),
    ("mkdir -p .hg/store"),
    ("mkdir -p .jj/repo"),
    ("mkdir -p .sl/store"),
    ("touch .backtrail.toml"),
]


@pytest.mark.parametrize("mark", MARKED)
def test_the_nearest_marked_folder_is_the_root(home: Path, mark: str) -> None:
    """Whatever marks it, and also where `.git` is a file, as in a linked worktree."""
    cwd = made(home / "repo" / "a" / "b")
    subprocess.run(["sh", "-c", mark], cwd=home / "repo", check=True)
    assert project_root(str(cwd)) == Root(str((home / "repo").resolve()))
    assert project_root(str(home / "repo")).path == str((home / "repo").resolve())


NO_MARKS = [
    *(f"mkdir {name}" for name in MARKS),
    *(f"touch {name}" for name in MARKS if name != ".backtrail.toml"),
    *(f"ln -s nowhere {name}" for name in MARKS),
    "mkdir .git; touch .git/config",
    "mkdir .backtrail.toml; touch .backtrail.toml/x",
    "mkfifo .git",
    "mkfifo .backtrail.toml",
    "mkdir .agents .aws .codex .git",
]


@pytest.mark.parametrize("look", NO_MARKS)
def test_a_name_alone_marks_nothing(home: Path, look: str) -> None:
    """Such as the empty `.git` that a sandbox leaves where it ran."""
    made(home / "repo" / ".git")
    cwd = made(home / "repo" / "sub")
    subprocess.run(["sh", "-c", look], cwd=cwd, check=True)
    assert project_root(str(cwd)) == Root(str((home / "repo").resolve()))


def test_a_repository_in_another_is_its_own_root(home: Path) -> None:
    """An agent that starts in it gets it; one that starts above gets the outer one."""
    made(home / "repo" / ".git")
    inner = made(home / "repo" / "vendor" / "lib")
    (inner / ".git").write_text("gitdir: ../../.git/modules/lib\n")
    assert project_root(str(made(inner / "src"))).path == str(inner)
    assert project_root(str(inner.parent)).path == str((home / "repo").resolve())


def test_without_a_mark_it_is_the_folder_itself(home: Path) -> None:
    """Which is nothing to report."""
    cwd = made(home / "notes" / "today")
    assert project_root(str(cwd)) == Root(str(cwd))


def test_a_link_into_a_project_is_a_folder_of_it(home: Path) -> None:
    """The folder counts, not the name by which it was reached."""
    made(home / "repo" / ".git")
    cwd = made(home / "repo" / "sub")
    (home / "shortcut").symlink_to(cwd)
    assert project_root(str(home / "shortcut")).path == str((home / "repo").resolve())


def test_the_home_folder_is_never_a_root(home: Path) -> None:
    """Many keep it in git. The search ends there, and sees nothing above it."""
    made(home / ".git")
    made(home.parent / ".git")
    cwd = made(home / "stuff" / "deep")
    assert project_root(str(cwd)) == Root(str(cwd))


def test_a_broad_root_is_not_taken_and_that_is_said(home: Path) -> None:
    """A folder that no session may watch over is no project, whatever is in it."""
    made(home / "Documents" / ".git")
    cwd = made(home / "Documents" / "letters")
    found = project_root(str(cwd))
    assert (found.path, found.wanted) == (str(cwd), str(home.resolve() / "Documents"))
    assert "too much" in found.why


def test_a_large_root_is_not_taken_and_that_is_said(home: Path) -> None:
    """Packages, caches and version control do not count, since they are not captured."""
    made(home / "repo" / ".git")
    cwd = made(home / "repo" / "sub")
    for number in range(12):
        (cwd / f"{number}.txt").write_text("x")
    for folder in (".git/objects", "node_modules/left-pad"):
        for number in range(40):
            (made(home / "repo" / folder) / str(number)).write_text("x")
    root = str((home / "repo").resolve())
    assert project_root(str(cwd), most=12) == Root(root)
    found = project_root(str(cwd), most=11)
    assert (found.path, found.wanted, found.why) == (str(cwd), root, "over 11 files")
    # Who starts in the root itself wants it, however large.
    assert project_root(root, most=1) == Root(root)
    assert "too long" in project_root(str(cwd), seconds=-1).why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_owners_folder_ends_the_search(home: Path) -> None:
    """A mark that another put above our folders says nothing about them."""
    outer = made(home / "shared")
    made(outer / ".git")
    cwd = made(outer / "mine")
    os.chown(outer, 4321, -1)
    assert project_root(str(cwd)) == Root(str(cwd))
    os.chown(outer, os.geteuid(), -1)
    assert project_root(str(cwd)) == Root(str(outer))


@pytest.mark.parametrize("kind", ["-t tmpfs none", "--bind SOURCE"])
def test_a_mount_ends_the_search(home: Path, kind: str) -> None:
    """What is mounted in a project is none of its folders, also if it is on the same device."""
    made(home / "repo" / ".git")
    at, source = made(home / "repo" / "mnt"), made(home / "source")
    mount = f"mount {kind.replace('SOURCE', str(source))} {at}"
    ask = "from backtrail.files.workspace.roots import project_root; print(project_root('.').path)"
    script = f'{mount} && mkdir {at}/sub && cd {at}/sub && exec "$0" -c "$1"'
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no `unshare` here")
    words = [unshare, "-rm", "/bin/sh", "-c", script, sys.executable, ask]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert done.stdout.strip() == f"{at}/sub"


def test_a_folder_that_is_gone_is_its_own_root(home: Path) -> None:
    """There is nothing to look at."""
    gone = home.resolve() / "gone"
    assert project_root(str(gone)) == Root(str(gone))


def test_counting_is_quick(home: Path) -> None:
    """An ordinary project is counted in a few milliseconds; a hook can do that."""
    made(home / "repo" / ".git")
    for folder in range(50):
        place = made(home / "repo" / f"d{folder}")
        for number in range(100):
            (place / str(number)).touch()
    began = time.monotonic()
    assert project_root(str(home / "repo" / "d7")).wanted is None
    assert time.monotonic() - began < 0.5
