"""Blame: a file of many lines that many turns, or as many commits, have changed."""

from __future__ import annotations

import random
import statistics
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from protocol import Absent, Job, Numbers, serve
from trees import milliseconds

from backtrail import Session

_ROUNDS = 5
_EDITS = 5


def blame(job: Job) -> Numbers:
    place = Path(job["folder"], f"blame-{uuid.uuid4().hex}")
    root = place / "work"
    root.mkdir(parents=True)
    file = root / "file.py"
    lines = [f"line {n} of a file that many turns change\n" for n in range(job["lines"])]
    file.write_text("".join(lines))
    rng = random.Random(1)

    def edit(turn: int) -> None:
        for _ in range(_EDITS):
            at = rng.randrange(len(lines))
            lines[at : at + rng.randint(0, 1)] = [f"turn {turn} wrote {rng.random()}\n"]
        file.write_text("".join(lines))

    found = {"ours": _ours, "git": _git}[job["who"]](place, root, job["turns"], edit)
    return {"ms": statistics.median(found)}


def _ours(place: Path, root: Path, turns: int, edit: Callable[[int], None]) -> list[float]:
    with Session.create(f"sqlite:///{place}/store.db", "s", cwd=root) as session:
        for turn in range(turns):
            with session.turn(f"turn {turn}"), session.tool("edit", paths=["file.py"]):
                edit(turn)
        return [milliseconds(lambda: session.blame("file.py")) for _ in range(_ROUNDS)]


def _git(place: Path, root: Path, turns: int, edit: Callable[[int], None]) -> list[float]:
    git = ["git", "-C", str(root), "-c", "user.name=bench", "-c", "user.email=bench"]
    git += ["-c", "gc.auto=0"]

    def run(*words: str) -> None:
        subprocess.run([*git, *words], check=True, capture_output=True)

    try:
        run("init", "-q")
    except FileNotFoundError as error:
        raise Absent("git is not installed") from error
    run("add", "-A")
    run("commit", "-qm", "begin")
    for turn in range(turns):
        edit(turn)
        run("commit", "-qam", f"turn {turn}")
    return [milliseconds(lambda: run("blame", "--porcelain", "file.py")) for _ in range(_ROUNDS)]


if __name__ == "__main__":
    serve(blame)
