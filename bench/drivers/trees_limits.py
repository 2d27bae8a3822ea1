"""The limits of snapshots: a plain copy, a plain walk, and one write that is synced."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path

from protocol import Job, Numbers, serve
from trees import build, milliseconds, tree_of, used

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def trees(job: Job) -> Numbers:
    """A copy of everything, and a look at everything by directory descriptors."""
    build(job)
    copy = Path(job["folder"], "copy")

    def snapshot() -> None:
        shutil.copytree(tree_of(job), copy, symlinks=True)
        os.sync()

    first = milliseconds(snapshot)
    known = [
        (folder, [os.fsencode(name) for name in names])
        for folder, _, names in os.walk(tree_of(job))
    ]
    looks = [milliseconds(lambda: _look(known)) for _ in range(5)]
    return {"first": first, "stored": used(copy) / 1e6, "again": statistics.median(looks)}


def _look(known: list[tuple[str, list[bytes]]]) -> None:
    look = os.stat
    for folder, names in known:
        fd = os.open(folder, DIRECTORY)
        for name in names:
            look(name, dir_fd=fd, follow_symlinks=False)
        os.close(fd)


def one_file(job: Job) -> Numbers:
    """10 KB appended to a file and synced."""
    fd = os.open(Path(job["folder"], "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    times = []
    for _ in range(job["times"]):
        content = os.urandom(7_500).hex()[:10_000].encode()
        time.sleep(0.001)  # as in the other one: a thread that sleeps wakes up slow

        def put(content: bytes = content) -> None:
            os.write(fd, content)
            os.fdatasync(fd)

        times.append(milliseconds(put))
    return {"ms": statistics.median(times)}


if __name__ == "__main__":
    serve(trees, one_file)
