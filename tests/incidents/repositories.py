"""The user's git, and repositories in the project: not read, and not written."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from .driver import Refused
from .stage import Stage


def _repository(stage: Stage, place: str = ".") -> None:
    """A repository of the user's, with one commit."""
    (stage.root / place).mkdir(parents=True, exist_ok=True)
    stage.write(f"{place}/committed", "committed\n")
    stage.git("init", "-q", "-b", "main", at=place)
    stage.git("add", "-A", at=place)
    stage.git("commit", "-qm", "first", at=place)


def _bytes(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, with its content and time."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def users_repository_is_not_written_to(stage: Stage) -> None:
    """Snapshots were objects in the user's own `.git`, a hundred gigabytes of them."""
    _repository(stage)
    stage.start("a")
    before = _bytes(stage.root / ".git")
    with stage.turn() as token:
        stage.write("a", os.urandom(1000))
    stage.checkpoint()
    stage.restore(token)
    stage.expect(_bytes(stage.root / ".git") == before, "something in .git was written")


def users_repository_gets_no_refs(stage: Stage) -> None:
    """Odd references in the user's repository broke other programs."""
    _repository(stage)
    stage.start("a")
    before = stage.git("for-each-ref") + stage.git("stash", "list") + stage.git("reflog")
    with stage.turn() as token:
        stage.write("a", "agent\n")
    stage.restore(token)
    after = stage.git("for-each-ref") + stage.git("stash", "list") + stage.git("reflog")
    stage.expect(after == before, "the user's references changed")


def users_commits_stay(stage: Stage) -> None:
    """A restore moved the user's branch back: later commits were only in the reflog."""
    _repository(stage)
    stage.start()
    with stage.turn() as token:
        stage.write("committed", "second\n")
        stage.git("commit", "-qam", "second")
    head = stage.git("rev-parse", "main")
    stage.restore(token)
    stage.expect_file("committed", "committed\n")
    stage.expect(stage.git("rev-parse", "main") == head, "the branch was moved")
    stage.expect(stage.git("symbolic-ref", "HEAD").strip() == b"refs/heads/main", "HEAD moved")


def staged_work_stays_staged(stage: Stage) -> None:
    """Undo lost what the user had staged."""
    _repository(stage)
    stage.write("committed", "staged\n")
    stage.git("add", "committed")
    stage.write("committed", "staged\nand not staged\n")
    stage.start()
    with stage.turn() as token:
        stage.write("committed", "agent\n")
    stage.restore(token)
    stage.expect_file("committed", "staged\nand not staged\n")
    stage.expect(stage.git("show", ":committed") == b"staged\n", "what was staged is lost")


def branch_switched_since_is_said(stage: Stage) -> None:
    """A restore over a branch switch mixed two branches, without a word."""
    _repository(stage)
    stage.start("a")
    token = stage.checkpoint()
    stage.git("checkout", "-qb", "other")
    with stage.agent():
        stage.write("a", "agent\n")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    said = " ".join(stage.driver.warnings())
    stage.expect("main" in said and "other" in said, "it does not say that the branch changed")


def _nested(stage: Stage, files: dict[str, str], change: str) -> None:
    """Checkpoint, a change by the agent, restore, in a project with a nested repository."""
    for name, text in files.items():
        stage.write(name, text)
    stage.start("outer")
    token = stage.checkpoint()
    before = stage.state()
    with stage.agent():
        stage.shell(change)
    stage.restore(token)
    stage.expect_state(before)


def nested_repo_without_commit(stage: Stage) -> None:
    """One `git init` below the project, and nothing at all was captured any more."""
    (stage.root / "inner").mkdir()
    stage.git("init", "-q", at="inner")
    _nested(stage, {"inner/file": "inner\n"}, "echo x > outer; echo x > inner/file")


def nested_repo_with_commits(stage: Stage) -> None:
    """A nested repository came back as an empty directory."""
    _repository(stage, "inner")
    files = {"inner/untracked": "untracked\n"}
    _nested(stage, files, "echo x > inner/committed; rm inner/untracked")


def nested_repo_deleted_comes_back(stage: Stage) -> None:
    """The agent removed the files of a nested repository, and a restore gave none back."""
    _repository(stage, "inner")
    _nested(stage, {}, "rm inner/committed")


def submodule_with_a_pointer_file(stage: Stage) -> None:
    """A `.git` that is a file, as in worktrees and submodules, was not understood."""
    pointer = {"inner/.git": "gitdir: ../../elsewhere\n", "inner/file": "inner\n"}
    _nested(stage, pointer, "echo x > inner/file; echo x > outer")


def dot_git_is_never_renamed(stage: Stage) -> None:
    """Nested `.git` folders were renamed for a moment; a crash left them renamed."""
    _repository(stage, "inner")
    _repository(stage)
    stage.start()
    stage.checkpoint()
    stage.write("big", os.urandom(3_000_000))
    stage.driver.kill_checkpoint()
    for place in (".", "inner"):
        names = os.listdir(stage.root / place)
        stage.expect(".git" in names, f"{place}/.git is gone")
        stage.expect(stage.git("log", "--format=%s", at=place) == b"first\n", "git log fails")
        stage.expect(not [n for n in names if "disabled" in n], "a renamed .git is left")


def repository_that_was_only_moved_stays(stage: Stage) -> None:
    """The agent renamed `.git`; undo removed the whole repository, because it was new there."""
    _repository(stage)
    stage.start("a")
    before = _bytes(stage.root / ".git")
    with stage.turn() as token:
        stage.shell("mv .git .git_disabled; echo agent > a")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    places = [stage.root / name for name in (".git", ".git_disabled")]
    stage.expect(any(_bytes(place) == before for place in places), "the repository is gone")


def strangers_files_never_reach_git(stage: Stage) -> None:
    """A session from a stranger wrote `.git/config`, and the next `git status` ran it."""
    _repository(stage)
    stage.start("a")
    mark = stage.folder / "ran"
    script = f'[core]\n\tfsmonitor = "touch {mark}; false"\n'
    before = _bytes(stage.root / ".git")
    with suppress(Refused):
        token = stage.driver.bring({".git/config": script.encode(), "a": b"stranger\n"})
        stage.driver.restore_all(token)
    stage.expect(_bytes(stage.root / ".git") == before, "something in .git was written")
    stage.git("status")
    stage.expect(not mark.exists(), "a stranger's command ran")


def repository_that_was_emptied_stays(stage: Stage) -> None:
    """The agent moved all of `.git` into another folder; undo removed it, history and all."""
    _repository(stage)
    stage.start("a")
    time.sleep(0.05)
    with stage.turn() as token:
        stage.shell("mkdir old; mv .git/* old/; echo agent > a")
    stage.restore(token)
    stage.expect_file("a", "a\n")
    found = [place for place in (".git", "old") if stage.read(f"{place}/HEAD") is not None]
    stage.expect(bool(found), "the repository is gone")
    git = stage.git("--git-dir", found[0], "log", "--format=%s") if found else b""
    stage.expect(b"first" in git, "the commits are gone")


def repository_that_changed_places_comes_back(stage: Stage) -> None:
    """The agent swapped `.git` with an ignored folder; undo mended neither, and said nothing."""
    _repository(stage)
    stage.write("node_modules/left-pad/index.js", "pad\n")
    stage.start("a")
    with stage.turn() as token:
        stage.shell("mv .git t; mv node_modules .git; mv t node_modules; echo agent > a")
    stage.restore(token)
    stage.expect_files({"a": "a\n", "node_modules/left-pad/index.js": "pad\n"})
    stage.expect(b"first" in stage.git("log", "--format=%s"), "the repository is not back")
