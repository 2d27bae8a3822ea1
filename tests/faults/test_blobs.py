"""Blobs under faults: kills, full disks, and a sweep among writers lose nothing referred to.

A *group* is a root and the contents it stands for; groups overlap, so that writers find
some of their contents there and skip them. Whoever refers to a root relies on its group.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import apsw
import pytest
from tests.faults.kill import Violation
from tests.faults.test_strace import STRACE, calls_at, some
from tests.faults.variants import Broken
from tests.faults.workers import Worker

from backtrail.errors import Conflict, Damaged, NotFound, StoreFailed
from backtrail.files import sqlite_blobs
from backtrail.files.blobs import Blobs, Reference
from backtrail.files.sqlite_blobs import SQLiteBlobs
from backtrail.files.sqlite_sweep import Sweep
from backtrail.files.trees import Get
from backtrail.stores.sqlite_connections import Execute

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

LATER = 4e9

Body = Callable[[Callable[[str], None]], None]
"""What a child does; it is given a way to tell."""


@cache
def content(n: int) -> bytes:
    """The n-th content: mostly small, some in pieces, some that cannot be compressed."""
    dice = random.Random(n)
    length = 2_500_000 if n % 40 == 7 else dice.choice([10, 300, 5000, 40_000])
    return b"%d " % n + (dice.randbytes(length) if n % 3 else b"text " * (length // 5))


def root_of(n: int) -> bytes:
    """What stands for a group: the numbers of its contents."""
    dice = random.Random(-n)
    return b"group %d:" % n + b",".join(b"%d" % dice.randrange(400) for _ in range(8))


def numbers(root: bytes) -> list[int]:
    return [int(part) for part in root.partition(b":")[2].split(b",")]


def named(data: bytes) -> bytes:
    return sha256(data).digest()


@cache
def digest_of(n: int) -> bytes:
    """The digest of a content."""
    return named(content(n))


@cache
def know() -> None:
    """Make the contents before children are forked, which would make them holding locks."""
    for n in range(440):
        digest_of(n)


class Groups:
    """A `keep` that reads which contents a root stands for."""

    def __init__(self) -> None:
        self.kept: set[bytes] = set()

    def __call__(self, roots: Collection[bytes], get: Get) -> set[bytes]:
        for root in roots:
            self.kept.add(root)
            self.kept.update(digest_of(n) for n in numbers(get(root)))
        return self.kept


def write_group(blobs: Blobs, n: int, log: str, pause: float = 0.0) -> None:
    """Refer to a group, having written only what was not there a moment before."""
    root = root_of(n)
    parts = {named(data): data for data in [*map(content, numbers(root)), root]}
    while True:
        epoch = blobs.epoch()
        there = blobs.has(parts)
        new = [(digest, data) for digest, data in parts.items() if digest not in there]
        time.sleep(pause)
        try:
            blobs.write(new, [Reference("s", log, named(root))], epoch=epoch, relies=parts)
            return
        except Conflict:
            continue


def check(path: Path, acknowledged: Collection[str], where: str) -> None:
    """All that was acknowledged is referred to, all that is referred to is whole."""
    connection = apsw.Connection(str(path))
    found = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    if found != [("ok",)]:
        raise Violation(f"{where}: {found}")
    with SQLiteBlobs(path) as blobs:
        references = list(blobs.references())
        wanted = {named(root_of(int(n))) for n in acknowledged}
        if lost := wanted - {reference.root for reference in references}:
            raise Violation(f"{where}: {len(lost)} references are lost")
        try:
            for reference in references:
                for n in numbers(blobs.get(reference.root)):
                    blobs.get(digest_of(n))
        except (NotFound, Damaged) as error:
            raise Violation(f"{where}: {error}") from error
        if problems := list(blobs.verify()):
            raise Violation(f"{where}: {problems}")


# --- kills at random moments -------------------------------------------------------------


def writing(path: Path, first: int, pause: float = 0.0) -> Body:
    """A child that writes groups for ever, and tells of each; it soon lets go of them."""

    def body(tell: Callable[[str], None]) -> None:
        with SQLiteBlobs(path) as blobs:
            for n in range(first, first + 100_000):
                if n % 10 == 0:
                    tell("dropping")
                    blobs.drop_references("s", f"log-{first}")
                write_group(blobs, n, f"log-{first}", pause)
                tell(str(n))

    return body


def sweeping(path: Path) -> Body:
    """A child that makes garbage and sweeps it, for ever."""

    def body(tell: Callable[[str], None]) -> None:
        with SQLiteBlobs(path) as blobs:
            n = 0
            while True:
                n = (n + 40) % 400
                blobs.write([(digest_of(i), content(i)) for i in range(n, n + 40)])
                blobs.drop_references("garbage")
                blobs.sweep(Groups(), LATER)
                tell("swept")

    return body


def strike(path: Path, bodies: list[Body], wait: float) -> list[str]:
    """Let children work for a while, and kill them all; the groups they rely on."""
    know()
    workers = [Worker(body) for body in bodies]
    workers[0].line()
    time.sleep(wait)
    for worker in workers:
        worker.kill()
    return [n for worker in workers for n in relied(worker.wait())]


def relied(lines: list[str]) -> list[str]:
    """The groups that a child told of and did not let go of."""
    last = max((at for at, line in enumerate(lines) if line == "dropping"), default=0)
    return [line for line in lines[last:] if line.isdigit()]


def kill_often(folder: Path, rounds: int, *, sweeps: bool) -> int:
    """Kill again and again in one database, which goes on each time."""
    dice = random.Random(rounds)
    path = folder / "blobs.db"
    acknowledged: set[str] = set()
    for round in range(rounds):
        bodies = [writing(path, round * 1000)]
        if sweeps:
            bodies.append(sweeping(path))
        acknowledged.update(strike(path, bodies, dice.uniform(0, 0.08)))
        check(path, acknowledged, f"round {round}")
        with SQLiteBlobs(path) as blobs:
            blobs.drop_references("s")
            acknowledged.clear()
    return rounds


def test_killed_writers_lose_nothing(fast: Path) -> None:
    """Writers killed at any moment: what they were told is stored is there, and whole."""
    kill_often(fast, 12, sweeps=False)


def test_killed_sweeps_lose_nothing(fast: Path) -> None:
    """Writers and a sweep killed at any moment: nothing referred to is gone."""
    kill_often(fast, 12, sweeps=True)


def test_killed_sweeps_are_finished_by_the_next(fast: Path) -> None:
    """What a killed sweep or writer left unfinished goes with the next sweep."""
    path = fast / "blobs.db"
    for round in range(4):
        strike(path, [sweeping(path), writing(path, 1000 * round)], 0.03 * round)
    with SQLiteBlobs(path) as blobs:
        blobs.drop_references("s")
        blobs.sweep(Groups(), LATER)
        assert list(blobs.digests()) == []
    connection = apsw.Connection(str(path))
    for table in ("chunks", "pending", "blobs"):
        assert connection.execute(f"SELECT count(*) FROM {table}").get == 0
    connection.close()


@pytest.mark.torture
@pytest.mark.parametrize("sweeps", [False, True])
def test_killed_often(fast: Path, sweeps: bool) -> None:
    """The same, for long."""
    kill_often(fast, 400, sweeps=sweeps)


# --- several writers and a sweep ---------------------------------------------------------


def contend(folder: Path, seconds: float) -> int:
    """Three processes refer to what they find while one sweeps; how many groups."""
    path = folder / "blobs.db"
    SQLiteBlobs(path).close()
    know()
    writers = [Worker(writing(path, first, 0.002)) for first in (0, 10_000, 20_000)]
    sweeper = Worker(sweeping(path))
    time.sleep(seconds)
    for worker in [*writers, sweeper]:
        worker.kill()
    told = [worker.wait() for worker in writers]
    sweeps = sweeper.wait()
    groups = [n for lines in told for n in relied(lines)]
    count = sum(line.isdigit() for lines in told for line in lines)
    check(path, groups, f"{count} groups, {len(sweeps)} sweeps")
    return count if len(sweeps) > 2 else 0


def test_sweeping_among_writers_loses_nothing(fast: Path) -> None:
    """Nothing that a writer skipped because it was there is swept under its reference."""
    assert contend(fast, 2.5) > 30


@pytest.mark.torture
def test_sweeping_among_writers_for_long(fast: Path) -> None:
    """The same, for a minute."""
    assert contend(fast, 60) > 500


@contextmanager
def not_checking_the_epoch() -> Iterator[None]:
    """References are stored whatever was removed since."""
    with patch.object(sqlite_blobs, "_check", lambda *_: None):
        yield


@contextmanager
def not_asking_again() -> Iterator[None]:
    """A sweep that only knows the references of its beginning."""
    real = Sweep._new_roots

    def once(self: Sweep, execute: Execute) -> set[bytes]:
        return real(self, execute) if self._asked < 0 else set()

    with patch.object(Sweep, "_new_roots", once):
        yield


@pytest.mark.parametrize("broken", [not_checking_the_epoch, not_asking_again])
def test_sweeping_among_writers_finds_broken_stores(fast: Path, broken: Broken) -> None:
    """The check above fails on a store without one of the two rules."""
    with broken(), pytest.raises(Violation, match="no blob"):
        for round in range(15):
            (fast / str(round)).mkdir()
            contend(fast / str(round), 0.2 + 0.2 * round)


# --- full disks --------------------------------------------------------------------------


def fill_up(blobs: Blobs, tell: Callable[[str], None]) -> None:
    """Write groups until the disk says no, and a little more."""
    refused = 0
    for n in range(100_000):
        try:
            write_group(blobs, n, "log")
            tell(str(n))
        except StoreFailed as error:
            assert error.errno in (errno.ENOSPC, errno.EFBIG, errno.EIO), error
            refused += 1
            if refused == 3:
                return
    raise AssertionError("the limit was never reached")


def go_on(path: Path, told: Collection[str], where: str) -> None:
    """With space again, all is there and the store works."""
    check(path, told, where)
    with SQLiteBlobs(path) as blobs:
        write_group(blobs, 100_001, "log")
        blobs.sweep(Groups(), LATER)
    check(path, [*told, "100001"], f"{where}, afterwards")


def test_file_size_limit(fast: Path) -> None:
    """Files that may not grow, at many lengths: refused, whole, and in order afterwards."""
    for limit in range(100_000, 4_000_000, 330_001):
        path = fast / str(limit) / "blobs.db"
        SQLiteBlobs(path).close()

        def body(tell: Callable[[str], None], path: Path = path, limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            blobs = SQLiteBlobs(path)
            fill_up(blobs, tell)
            for reference in blobs.references():
                blobs.get(reference.root)
            blobs.close()

        told = Worker(body).wait()
        go_on(path, told, f"limit {limit}")


def test_full_disk(tmp_path: Path) -> None:
    """A disk that is really full: refused, readable, and in order once there is space."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        path = disk / "blobs.db"
        told: list[str] = []
        with SQLiteBlobs(path) as blobs:
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(24 << 20))
            fill_up(blobs, told.append)
            assert told
            for reference in blobs.references():
                blobs.get(reference.root)
            ballast.unlink()
            # The -wal of 16 MB has to fit twice, and a sweep makes more space.
            blobs.sweep(Groups(), LATER)
            blobs.put(b"more")
        check(path, told, "full disk")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- kills and errors at every call ------------------------------------------------------

SCRIPT = """
import os, sys
sys.path[:0] = {path!r}
from backtrail.errors import BacktrailError
from tests.faults.test_blobs import *
from backtrail.stores import syncing
syncing.DELAY = 60.0

def tell(n):
    os.write(1, b"%d\\n" % n)

def steps():
    for n in (1, 2, 7):
        yield lambda: (write_group(blobs, n, "log"), tell(n))
    yield lambda: blobs.drop_references("garbage")
    yield lambda: blobs.sweep(Groups(), LATER)
    yield lambda: blobs.remove([named(content(500))])
    yield lambda: (write_group(blobs, 3, "log"), tell(3))

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
        self.told, self.errors = done.stdout.split(), done.stderr
        if "Traceback" in self.errors:
            raise Violation(f"{options}: {self.errors}")
        return log.read_text(errors="replace")

    def strike(self, point: tuple[str, int], fault: str) -> bool:
        """One fault at one call, and the checks; whether it struck."""
        call, count = point
        log = self.run(["-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={count}"])
        check(self.place / "blobs.db", ["0", *self.told], f"{fault} at {call} {count}")
        return "+++ killed by SIGKILL" in log or "(INJECTED)" in log


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_strace_smoke(tmp_path: Path) -> None:
    """A few kills and errors in the midst of SQLite's calls do no harm."""
    traced = Traced(tmp_path)
    assert set(traced.told) == {"1", "2", "7", "3"}
    assert len(traced.points) > 100
    struck = [traced.strike(point, "signal=SIGKILL") for point in some(traced.points, 6)]
    writes = [point for point in traced.points if "write" in point[0] or "sync" in point[0]]
    struck += [traced.strike(point, "error=ENOSPC") for point in some(writes, 3)]
    assert sum(struck) >= 8


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
@pytest.mark.parametrize("fault", ["signal=SIGKILL", "error=EIO", "error=ENOSPC"])
def test_strace_at_every_call(tmp_path: Path, fault: str) -> None:
    """Every call of writing, sweeping and removing is struck once."""
    traced = Traced(tmp_path)
    points = traced.points
    if limit := int(os.environ.get("BACKTRAIL_STRACE_POINTS", "0")):
        points = random.Random(limit).sample(points, min(limit, len(points)))
    struck = sum(traced.strike(point, fault) for point in points)
    assert struck >= len(points) * 0.95, f"{struck} of {len(points)}"
