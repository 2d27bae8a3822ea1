"""Blobs under faults: kills, full disks, and a sweep among writers lose nothing referred to."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import apsw
import pytest
from tests.faults.groups import LATER, Body, Groups, check, content, digest_of, know, write_group
from tests.faults.kill import Violation
from tests.faults.variants import Broken
from tests.faults.workers import Worker

from backtrail.errors import StoreFailed
from backtrail.files.contents import sqlite
from backtrail.files.contents.blobs import Blobs
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.contents.sweep import Sweep
from backtrail.stores.disk.schema import Execute

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

# --- kills at random moments -------------------------------------------------------------


def writing(path: Path, first: int, pause: float = 0.0) -> Body:
    """A child that writes groups for ever, and reports each; it soon lets go of them."""

    def body(report: Callable[[str], None]) -> None:
        with SQLiteBlobs(path) as blobs:
            for n in range(first, first + 100_000):
                if n % 10 == 0:
                    report("dropping")
                    blobs.drop_references("s", f"log-{first}")
                write_group(blobs, n, f"log-{first}", pause)
                report(str(n))

    return body


def sweeping(path: Path) -> Body:
    """A child that makes garbage and sweeps it, for ever."""

    def body(report: Callable[[str], None]) -> None:
        with SQLiteBlobs(path) as blobs:
            n = 0
            while True:
                n = (n + 40) % 400
                blobs.write([(digest_of(i), content(i)) for i in range(n, n + 40)])
                blobs.drop_references("garbage")
                blobs.sweep(Groups(), LATER)
                report("swept")

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
    """The groups that a child reported and did not let go of."""
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
    """Writers killed at any moment: what was acknowledged is there, and whole."""
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
    reported = [worker.wait() for worker in writers]
    sweeps = sweeper.wait()
    groups = [n for lines in reported for n in relied(lines)]
    count = sum(line.isdigit() for lines in reported for line in lines)
    check(path, groups, f"{count} groups, {len(sweeps)} sweeps")
    return count if len(sweeps) > 2 else 0


def test_sweeping_among_writers_loses_nothing(fast: Path) -> None:
    """Nothing that a writer skipped because it was there is swept under its reference."""
    count = 0
    for turn in range(10):
        place = fast / f"{turn}"
        place.mkdir()
        count += contend(place, 2.5)
        if count > 30:
            return
    raise AssertionError(f"{count} groups only")


@pytest.mark.torture
def test_sweeping_among_writers_for_long(fast: Path) -> None:
    """The same, for a minute."""
    assert contend(fast, 60) > 500


@contextmanager
def not_checking_the_epoch() -> Iterator[None]:
    """References are stored whatever was removed since."""
    with patch.object(sqlite, "check", lambda *_: None):
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


def fill_up(blobs: Blobs, report: Callable[[str], None]) -> None:
    """Write groups until the disk says no, and a little more."""
    refused = 0
    for n in range(100_000):
        try:
            write_group(blobs, n, "log")
            report(str(n))
        except StoreFailed as error:
            assert error.errno in (errno.ENOSPC, errno.EFBIG, errno.EIO), error
            refused += 1
            if refused == 3:
                return
    raise AssertionError("the limit was never reached")


def go_on(path: Path, reported: Collection[str], where: str) -> None:
    """With space again, all is there and the store works."""
    check(path, reported, where)
    with SQLiteBlobs(path) as blobs:
        write_group(blobs, 100_001, "log")
        blobs.sweep(Groups(), LATER)
    check(path, [*reported, "100001"], f"{where}, afterwards")


def test_file_size_limit(fast: Path) -> None:
    """Files that may not grow, at many lengths: refused, whole, and in order afterwards."""
    for limit in range(100_000, 4_000_000, 330_001):
        path = fast / str(limit) / "blobs.db"
        SQLiteBlobs(path).close()

        def body(report: Callable[[str], None], path: Path = path, limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            blobs = SQLiteBlobs(path)
            fill_up(blobs, report)
            for reference in blobs.references():
                blobs.get(reference.root)
            blobs.close()

        reported = Worker(body).wait()
        go_on(path, reported, f"limit {limit}")


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
        reported: list[str] = []
        with SQLiteBlobs(path) as blobs:
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(24 << 20))
            # Most of the room at once, the rest in groups.
            blobs.put(os.urandom(12 << 20))
            fill_up(blobs, reported.append)
            assert reported
            for reference in blobs.references():
                blobs.get(reference.root)
            ballast.unlink()
            # The -wal of 16 MB has to fit twice, and a sweep makes more space.
            blobs.sweep(Groups(), LATER)
            blobs.put(b"more")
        check(path, reported, "full disk")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
