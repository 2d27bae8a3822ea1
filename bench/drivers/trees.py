"""What the drivers of snapshots share: a real tree of files, and how it is changed.

The tree is made of published packages: the files that are installed for the peers and for
the corpus, in the order of their names, without compiled ones. Rules of git that come with
them are left out, so that everybody captures the same files.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from protocol import Job, Numbers

_LEFT_OUT = {".git", ".gitignore", ".gitattributes", "__pycache__", "node_modules", ".cache"}
_LARGEST = 20 * 1024 * 1024

CHANGED = 10
ROUNDS = 5


def tree_of(job: Job) -> Path:
    """Where the files are."""
    return Path(job["data"], f"tree-{job['n']}")


def build(job: Job) -> Numbers:
    """Make the tree, with `n` files, unless another contender did."""
    root = tree_of(job)
    if root.exists():
        return {}
    root.mkdir()
    count = size = 0
    for source, name in _files(Path(job["corpus"])):
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        count, size = count + 1, size + target.stat().st_size
        if count == job["n"]:
            os.sync()
            return {"files": count, "mb": size / 1e6}
    raise ValueError(f"the corpus holds {count} files, not {job['n']}")


def built(job: Job) -> Numbers:
    """Make the tree, and say how large it is."""
    build(job)
    size = sum(path.lstat().st_size for path in tree_of(job).rglob("*") if path.is_file())
    return {"mb": size / 1e6}


def _files(corpus: Path) -> Iterator[tuple[Path, str]]:
    for environment in sorted(corpus.iterdir()):
        for place in sorted(environment.glob("lib/python*/site-packages")):
            for folder, folders, names in os.walk(place):
                folders[:] = sorted(set(folders) - _LEFT_OUT)
                for name in sorted(set(names) - _LEFT_OUT):
                    path = Path(folder, name)
                    if not name.endswith(".pyc") and path.stat().st_size < _LARGEST:
                        yield path, f"{environment.name}/{path.relative_to(place)}"


def some_files(root: Path) -> list[Path]:
    """Ten files spread over the tree, of a usual size."""
    names = sorted(root.rglob("*.py"))
    usual = [path for path in names if 2_000 < path.stat().st_size < 20_000]
    return usual[:: max(1, len(usual) // CHANGED)][:CHANGED]


def edit(paths: list[Path], text: str) -> None:
    """A line more in each."""
    for path in paths:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"# {text}\n")


def milliseconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def measured(job: Job, snapshot: Callable[[], object], size: Callable[[], int]) -> Numbers:
    """A first snapshot, some with nothing changed, and some with ten files changed."""
    paths = some_files(tree_of(job))
    # A file written a moment ago is looked at twice by careful tools.
    time.sleep(0.1)
    numbers: Numbers = {"first": milliseconds(snapshot), "stored": size() / 1e6}
    snapshot()
    numbers["again"] = statistics.median(milliseconds(snapshot) for _ in range(ROUNDS))
    before = size()
    times = []
    for n in range(ROUNDS):
        edit(paths, f"change {n}")
        time.sleep(0.05)
        times.append(milliseconds(snapshot))
    numbers["changed"] = statistics.median(times)
    numbers["growth"] = (size() - before) / ROUNDS / 1e3
    return numbers


def used(folder: Path) -> int:
    """Bytes that the files in a folder take on the disk, once all is written there."""
    os.sync()
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
