"""Kills and errors at every system call that touches a store, injected by strace.

This reaches what the shim of `calls.py` cannot: the calls of SQLite, and those of the
interpreter itself. A dry run lists the calls; then each is struck in a run of its own.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from tests.faults.kill import Violation
from tests.faults.workers import STORES, url_of

from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store
from backtrail.stores.base import Store

STRACE = shutil.which("strace")

pytestmark = [
    pytest.mark.skipif(STRACE is None, reason="strace is not installed"),
    pytest.mark.timeout(3600),
]

SCRIPT = """
import os, sys
sys.path[:0] = {path!r}
from backtrail.errors import BacktrailError
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store; from backtrail.stores.disk import sync as syncing
syncing.DELAY = 60.0

def put(name, count, log="messages"):
    ids = [f"{{name}}-{{n}}" for n in range(count)]
    batch = [NewEvent("test", {{"name": id}}, id=id) for id in ids]
    line = " ".join([log, *ids]).encode() + b"\\n"
    early = {early!r}
    if early:
        os.write(1, line)
    store.append("s", batch, log=log)
    if not early:
        os.write(1, line)

def steps():
    yield lambda: put("one", 1)
    yield lambda: put("lot", 3)
    yield lambda: store.update("s", title="new")
    yield lambda: put("side", 2, "transcript")
    yield store.flush
    yield lambda: store.create(SessionInfo("f"), base=("s", 2))
    yield lambda: put("last", 1)

try:
    store = open_store({url!r}, durability="synced")
    for step in steps():
        try:
            step()
        except BacktrailError as error:
            os.write(2, f"refused: {{error}}\\n".encode())
    store.close()
except BacktrailError as error:
    os.write(2, f"refused: {{error}}\\n".encode())
"""


@dataclass
class Harness:
    """One store, the calls that touch it, and what became of each strike."""

    folder: Path
    kind: str
    early: bool = False
    struck: int = 0
    refused: int = 0
    points: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.template = self.folder / "template"
        self.place = self.folder / "place"
        self.template.mkdir()
        with open_store(url_of(self.kind, self.template)) as store:
            store.create(SessionInfo("s", title="old"))
            store.append("s", [NewEvent("test", {"name": f"first-{n}"}) for n in range(3)])
        before: list[tuple[str, int]] = []
        # The first run may compile modules, so what counts is what two runs agree on.
        for _ in range(5):
            self.fresh()
            log = self.trace([])
            if "Traceback" in self.errors or "refused" in self.errors:
                raise Violation(self.errors)
            before, self.points = self.points, calls_at(log, str(self.place))
            if set(before) == set(self.points):
                break
        self.points = [point for point in self.points if point in before]

    def fresh(self) -> None:
        """The store as it is before each run."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place)

    def trace(self, options: list[str]) -> str:
        """Run the script under strace, and return the trace."""
        script = SCRIPT.format(
            path=[entry for entry in sys.path if entry],
            url=url_of(self.kind, self.place),
            early=self.early,
        )
        # The interpreter itself: a launcher in front of it would be traced as well.
        command = [os.path.realpath(sys.executable), "-S", "-E", "-I", "-c", script]
        log = self.folder / "trace"
        done = subprocess.run(
            [str(STRACE), "-qq", "-f", "-y", "-o", str(log), *options, *command],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.acknowledged = done.stdout
        self.errors = done.stderr
        return log.read_text(errors="replace")

    def strike(self, point: tuple[str, int], fault: str) -> None:
        """One fault at one call, then the checks."""
        call, count = point
        self.fresh()
        log = self.trace(["-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={count}"])
        where = f"{fault} at {call} {count}"
        if fault.startswith("signal"):
            self.struck += "+++ killed by SIGKILL +++" in log
        else:
            self.struck += "(INJECTED)" in log
            if "Traceback" in self.errors:
                raise Violation(f"{where}: {self.errors}")
        self.refused += "refused" in self.errors
        self.check(where)

    def check(self, where: str) -> None:
        """What was acknowledged is there, the store is sound, and goes on."""
        with open_store(url_of(self.kind, self.place)) as store:
            problems = [p for p in store.verify() if p.what not in ("torn line", "stray")]
            if problems:
                raise Violation(f"{where}: {problems}")
            for line in self.acknowledged.splitlines():
                log, *ids = line.split()
                there = [event.id for event in store.read("s", log=log)]
                if not set(ids) <= set(there):
                    raise Violation(f"{where}: {ids} acknowledged, there are {there}")
            self.check_batches(store, where)
            new = store.append("s", [NewEvent("later", {})])
            if store.tail("s", 1) != new or store.info("s").title not in ("old", "new"):
                raise Violation(f"{where}: the store does not go on")
        if self.kind == "sqlite":
            connection = apsw.Connection(str(self.place / "store.db"))
            result = connection.execute("PRAGMA integrity_check").fetchall()
            connection.close()
            if result != [("ok",)]:
                raise Violation(f"{where}: {result}")

    def check_batches(self, store: Store, where: str) -> None:
        ids = [event.id for event in store.read("s")]
        lot = [id for id in ids if id.startswith("lot")]
        if len(lot) not in (0, 3) or len(ids) != len(set(ids)):
            raise Violation(f"{where}: half a batch, or events twice: {ids}")


def calls_at(log: str, place: str) -> list[tuple[str, int]]:
    """The calls of the main thread that touch `place`: which, and the how-many-eth."""
    counts: dict[tuple[str, str], int] = {}
    points: list[tuple[str, int]] = []
    main = log.split(maxsplit=1)[0]
    for line in log.splitlines():
        match = re.match(r"(\d+) +(\w+)\(", line)
        if match is None:
            continue
        thread, call = match[1], match[2]
        count = counts[thread, call] = counts.get((thread, call), 0) + 1
        if thread == main and place in line and call not in ("execve", "munmap", "mmap"):
            points.append((call, count))
    return points


def some(points: list[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """A few points, of every part of the run."""
    step = max(1, len(points) // count)
    return points[step // 2 :: step][:count]


@pytest.mark.parametrize("kind", list(STORES))
def test_strace_smoke(tmp_path: Path, kind: str) -> None:
    """A few kills and errors in either store: all of them strike, none does harm."""
    harness = Harness(tmp_path, kind)
    assert len(harness.points) > 50
    for point in some(harness.points, 6):
        harness.strike(point, "signal=SIGKILL")
    assert harness.struck == 6
    for point in some([p for p in harness.points if "write" in p[0] or "sync" in p[0]], 4):
        harness.strike(point, "error=EIO")
    assert harness.struck == 10
    assert harness.refused > 0


def test_strace_finds_early_acknowledgement(tmp_path: Path) -> None:
    """The sweep fails on a program that acknowledges before it appends."""
    harness = Harness(tmp_path, "jsonl", early=True)
    points = [point for point in harness.points if point[0] in ("write", "flock")]
    with pytest.raises(Violation, match="acknowledged"):
        for point in points:
            harness.strike(point, "signal=SIGKILL")


@pytest.mark.torture
@pytest.mark.parametrize("fault", ["signal=SIGKILL", "error=EIO", "error=ENOSPC"])
@pytest.mark.parametrize("kind", list(STORES))
def test_strace_at_every_call(tmp_path: Path, kind: str, fault: str) -> None:
    """Every call that touches the store is struck once; nothing acknowledged is lost."""
    harness = Harness(tmp_path, kind)
    points = harness.points
    if limit := int(os.environ.get("BACKTRAIL_STRACE_POINTS", "0")):
        points = random.Random(limit).sample(points, min(limit, len(points)))
    violations: list[str] = []
    for point in points:
        try:
            harness.strike(point, fault)
        except Violation as violation:
            violations.append(str(violation))
    assert not violations, "\n\n".join([f"{len(violations)} points:", *violations])
    # A call may come a little earlier or later than in the dry run, at the very end.
    assert harness.struck >= len(points) * 0.97, f"{harness.struck} of {len(points)}"
    if fault != "signal=SIGKILL":
        assert harness.refused > len(points) / 10
