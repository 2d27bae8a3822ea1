"""Snapshots by a session: a user's message stores the tree, a rewind goes back to it."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from protocol import Job, Memory, Numbers, serve
from trees import ROUNDS, build, built, edit, measured, milliseconds, some_files, tree_of, used

from backtrail import Event, Session
from backtrail.files.workspace.index import Index


def opened(job: Job) -> Session:
    return Session.open(f"sqlite:///{job['folder']}/store.db", "s", cwd=tree_of(job))


def said(session: Session) -> Event:
    return session.append({"role": "user", "content": "go on"})


def trees(job: Job) -> Numbers:
    size = built(job)
    contents = Path(job["folder"], "store.db-files")
    memory = Memory()
    with opened(job) as session:
        start = milliseconds(lambda: said(session))
        added = memory.added()
        time.sleep(1)  # an idle moment, in which the write-ahead log is cut
        first = {"first": start, "stored": used(contents) / 1e6, "memory": added}
        if "mb" in size:
            first["per_mb"] = start / size["mb"]
        numbers = measured(job, lambda: said(session), lambda: used(contents))
        back = _back(job, session)
    return {**numbers, **first, "back": back}


def _back(job: Job, session: Session) -> float:
    """Ten files changed by a call, and a rewind to before it."""
    paths = some_files(tree_of(job))
    ways = []
    for n in range(ROUNDS):
        point = said(session)
        contents = [path.read_bytes() for path in paths]
        with session.tool("bash"):
            edit(paths, f"wrong {n}")
        ways.append(milliseconds(lambda point=point: session.rewind(point)))
        if [path.read_bytes() for path in paths] != contents:
            raise ValueError("the files did not come back")
    return statistics.median(ways)


def one_file(job: Job) -> Numbers:
    """A known file of 10 KB that a person changed, stored before a tool edits it."""
    root = Path(job["folder"], "project")
    root.mkdir()
    path = root / "file.txt"
    path.write_text("x")
    times = []
    with Session.open(f"sqlite:///{job['folder']}/store.db", "s", cwd=root) as session:
        said(session)
        workspace, log = session.parts.capture.needed(), session.parts.capture.recorder.log
        for _ in range(job["times"]):
            path.write_text(os.urandom(7_500).hex()[:10_000])
            time.sleep(0.001)
            begin = time.perf_counter()
            bracket = workspace.begin(log, "edit", None, [b"file.txt"])
            times.append((time.perf_counter() - begin) * 1e3)
            workspace.end(bracket, log)
            workspace.drop(bracket)
    return {"ms": statistics.median(times)}


def index(job: Job) -> Numbers:
    """Loading and saving what is known about the tree."""
    build(job)
    with opened(job) as session:
        said(session)
        blobs = session.parts.capture.needed().blobs
        store, epoch = blobs.id, blobs.epoch()
    path = next(Path(job["folder"], "store.db-files").glob("index-*"))
    times = []
    for _ in range(ROUNDS):
        known: list[Index] = []
        load = milliseconds(lambda known=known: known.append(Index.load(path, store, epoch)))
        known[0].changed = True
        times.append(load + milliseconds(lambda known=known: known[0].save(path)))
    return {"ms": statistics.median(times)}


if __name__ == "__main__":
    serve(trees, one_file, index)
