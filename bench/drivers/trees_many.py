"""Many files at once: a new directory with all of them, and going back over some.

Trees are made below the folder of the run, which goes when all is measured: on ext4, making files
is up to ten times slower for a while after a tree was deleted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from protocol import Job, Numbers, serve
from trees import build, edit, milliseconds, tree_of

from backtrail import Session

_ROUNDS = 3


def many(job: Job) -> Numbers:
    build(job)
    place = Path(job["data"], f"many-{uuid.uuid4().hex}")
    place.mkdir()
    root = place / "work"
    subprocess.run(["cp", "-a", tree_of(job), root], check=True)
    return {"ours": _ours, "git": _git, "cp": _cp}[job["who"]](job, place, root)


def _ours(job: Job, place: Path, root: Path) -> Numbers:
    with Session.open(f"sqlite:///{place}/store.db", "s", cwd=root) as session:
        session.append({"role": "user", "content": "go on"})

        def back(paths: list[Path]) -> float:
            point = session.append({"role": "user", "content": "go on"})
            with session.tool("bash"):
                edit(paths, "wrong")
            os.sync()
            return milliseconds(lambda: session.rewind(point))

        copy = _copied(place, lambda into: session.fork(into=into).close())
        return {"copy": copy, **_back(job, root, back)}


def _git(job: Job, place: Path, root: Path) -> Numbers:
    git = ["git", f"--git-dir={place}/shadow", f"--work-tree={root}", "-c", "user.name=bench"]
    git += ["-c", "user.email=bench", "-c", "gc.auto=0"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "point"]):
        subprocess.run([*git, *words], check=True, capture_output=True)

    def back(paths: list[Path]) -> float:
        edit(paths, "wrong")
        os.sync()
        command = [*git, "reset", "-q", "--hard"]
        return milliseconds(lambda: subprocess.run(command, check=True, capture_output=True))

    return _back(job, root, back)


def _cp(job: Job, place: Path, root: Path) -> Numbers:
    return {
        "copy": _copied(place, lambda into: subprocess.run(["cp", "-a", root, into], check=True))
    }


def _copied(place: Path, copy: Callable[[Path], object]) -> float:
    times = []
    for number in range(_ROUNDS):
        os.sync()
        into = place / f"copy-{number}"
        times.append(milliseconds(lambda into=into: copy(into)))
    return statistics.median(times)


def _back(job: Job, root: Path, back: Callable[[list[Path]], float]) -> Numbers:
    """Milliseconds to go back over many files and over ten, which are as they were then."""
    usual = [path for path in sorted(root.rglob("*.py")) if 500 < path.stat().st_size < 60_000]
    numbers: Numbers = {}
    for name, count in (("many", job["rewound"]), ("few", 10)):
        paths = usual[:: max(1, len(usual) // count)][:count]
        contents = [path.read_bytes() for path in paths]
        numbers[name] = statistics.median(back(paths) for _ in range(_ROUNDS))
        if [path.read_bytes() for path in paths] != contents:
            raise ValueError("the files did not come back")
    return numbers


if __name__ == "__main__":
    serve(many)
