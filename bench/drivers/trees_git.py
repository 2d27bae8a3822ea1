"""Snapshots by git: a repository of its own beside the files, as shadow-git tools have it."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

from protocol import Absent, Job, Numbers, serve
from trees import ROUNDS, build, edit, measured, milliseconds, some_files, tree_of, used


def git(job: Job, *arguments: str) -> str:
    """Run git on the tree with a directory of its own."""
    shadow = Path(job["folder"], "shadow")
    command = ["git", f"--git-dir={shadow}", f"--work-tree={tree_of(job)}"]
    identity = ["-c", "user.name=bench", "-c", "user.email=bench", "-c", "gc.auto=0"]
    try:
        done = subprocess.run(
            [*command, *identity, *arguments], check=True, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise Absent("git is not installed") from error
    return done.stdout.strip()


def trees(job: Job) -> Numbers:
    build(job)
    git(job, "init", "-q")
    shadow = Path(job["folder"], "shadow")

    def snapshot() -> str:
        git(job, "add", "-A")
        return git(job, "write-tree")

    numbers = measured(job, snapshot, lambda: used(shadow))
    paths, ways = some_files(tree_of(job)), []
    for n in range(ROUNDS):
        commit = git(job, "commit-tree", snapshot(), "-m", "point")
        git(job, "update-ref", "HEAD", commit)
        contents = [path.read_bytes() for path in paths]
        edit(paths, f"wrong {n}")
        ways.append(milliseconds(lambda: git(job, "reset", "-q", "--hard")))
        if [path.read_bytes() for path in paths] != contents:
            raise ValueError("the files did not come back")
    return {**numbers, "back": statistics.median(ways)}


if __name__ == "__main__":
    serve(trees)
