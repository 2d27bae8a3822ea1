"""Kills and errors at the system calls of a blob store, injected by strace."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.groups import check, content, named, write_group
from tests.faults.kill import Violation
from tests.faults.test_strace import STRACE, calls_at, some

from backtrail.files.contents.sqlite import SQLiteBlobs

pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed")

SCRIPT = """
import os, sys
sys.path[:0] = {path!r}
from backtrail.errors import BacktrailError
from tests.faults.groups import *
from backtrail.stores.disk import sync as syncing
syncing.DELAY = 60.0

def report(n):
    os.write(1, b"%d\\n" % n)

def steps():
    for n in (1, 2, 7):
        yield lambda: (write_group(blobs, n, "log"), report(n))
    yield lambda: blobs.drop_references("garbage")
    yield lambda: blobs.sweep(Groups(), LATER)
    yield lambda: blobs.remove([named(content(500))])
    yield lambda: (write_group(blobs, 3, "log"), report(3))

try:
    blobs = SQLiteBlobs({place!r})
    for step in steps():
        try:
            step()
        except BacktrailError as error:
            os.write(2, f"refused: {{error}}\\n".encode())
    blobs.close()
except BacktrailError as error:
    os.write(2, f"refused: {{error}}\\n".encode())
"""


class Traced:
    """A script under strace, struck at one of its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template = folder / "template"
        self.place = folder / "place"
        garbage = [content(n) for n in range(200, 260)] + [content(500)]
        with SQLiteBlobs(self.template / "blobs.db") as blobs:
            blobs.write([(named(data), data) for data in garbage])
            write_group(blobs, 0, "log")
        self.run([])
        self.points = calls_at(self.run([]), str(self.place))

    def run(self, options: list[str]) -> str:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place)
        script = SCRIPT.format(
            path=[os.getcwd(), *(entry for entry in sys.path if entry)],
            place=str(self.place / "blobs.db"),
        )
        log = self.folder / "trace"
        command = [os.path.realpath(sys.executable), "-S", "-E", "-I", "-c", script]
        done = subprocess.run(
            [str(STRACE), "-qq", "-f", "-y", "-o", str(log), *options, *command],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.reported, self.errors = done.stdout.split(), done.stderr
        if "Traceback" in self.errors:
            raise Violation(f"{options}: {self.errors}")
        return log.read_text(errors="replace")

    def strike(self, point: tuple[str, int], fault: str) -> bool:
        """One fault at one call, and the checks; whether it struck."""
        call, count = point
        log = self.run(["-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={count}"])
        check(self.place / "blobs.db", ["0", *self.reported], f"{fault} at {call} {count}")
        return "+++ killed by SIGKILL" in log or "(INJECTED)" in log


def test_strace_smoke(tmp_path: Path) -> None:
    """A few kills and errors in the midst of SQLite's calls do no harm."""
    traced = Traced(tmp_path)
    assert set(traced.reported) == {"1", "2", "7", "3"}
    assert len(traced.points) > 100
    struck = [traced.strike(point, "signal=SIGKILL") for point in some(traced.points, 6)]
    writes = [point for point in traced.points if "write" in point[0] or "sync" in point[0]]
    struck += [traced.strike(point, "error=ENOSPC") for point in some(writes, 3)]
    assert sum(struck) >= 8


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", ["signal=SIGKILL", "error=EIO", "error=ENOSPC"])
def test_strace_at_every_call(tmp_path: Path, fault: str) -> None:
    """Every call of writing, sweeping and removing is struck once."""
    traced = Traced(tmp_path)
    points = traced.points
    if limit := int(os.environ.get("BACKTRAIL_STRACE_POINTS", "0")):
        points = random.Random(limit).sample(points, min(limit, len(points)))
    struck = sum(traced.strike(point, fault) for point in points)
    assert struck >= len(points) * 0.95, f"{struck} of {len(points)}"
