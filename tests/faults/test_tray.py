"""The tray of the blob store: killed, refused and full at every call."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.calls import REAL, Calls, Strike, filling, killing, refusing
from tests.faults.groups import named
from tests.faults.kill import Violation, forked
from tests.faults.variants import Broken

from backtrail.errors import StoreFailed
from backtrail.files import tray
from backtrail.files.blobs import Reference
from backtrail.files.sqlite_blobs import SQLiteBlobs

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

STEPS = 26
"""Contents that are laid, one after another; with them a tray is filled twice."""


def little(n: int) -> bytes:
    return b"%d " % n + random.Random(n).randbytes(7_000 if n % 3 else 200)


def lay_all(blobs: SQLiteBlobs, tell: Callable[[int], None]) -> None:
    """Lay contents, each with a reference; now and then a transaction comes between."""
    for n in range(STEPS):
        content = little(n)
        with suppress(StoreFailed):
            blobs.write([(named(content), content)], [Reference("s", str(n), named(content))])
            tell(n)
        if n % 10 == 9:
            with suppress(StoreFailed):
                blobs.drop_references("nobody")


def check(path: Path, acknowledged: set[int], where: str) -> None:
    """All that was acknowledged is there, now and after it was moved; the store works."""
    with SQLiteBlobs(path) as blobs:
        for _ in range(2):
            held = {reference.log for reference in blobs.references()}
            there = blobs.has([named(little(n)) for n in acknowledged])
            for n in acknowledged:
                if str(n) not in held or named(little(n)) not in there:
                    raise Violation(f"{where}: {n} is lost")
                if blobs.get(named(little(n))) != little(n):
                    raise Violation(f"{where}: {n} is another")
            if problems := list(blobs.verify()):
                raise Violation(f"{where}: {problems}")
            blobs.put(b"goes on")
            blobs.put(b"goes on too")
            blobs.drop_references("nobody")


def struck(folder: Path, strike: Strike, point: int, *, lasting: bool = False) -> tuple[bool, int]:
    """One run, struck at one call; whether it died, and how many calls it made."""
    path = folder / "blobs.db"

    def body(pipe: int) -> None:
        def tell(n: int) -> None:
            REAL["write"](pipe, b"%d\n" % n)

        with SQLiteBlobs(path) as blobs, Calls(strike, point, lasting=lasting) as calls:
            lay_all(blobs, tell)
            with suppress(StoreFailed):
                blobs.close()
        REAL["write"](pipe, b"=%d\n" % calls.count)

    child = forked(body)
    lines = child.told.decode().split()
    told = {int(line) for line in lines if line.isdigit()}
    count = next((int(line[1:]) for line in lines if line.startswith("=")), 0)
    check(path, told, f"call {point}")
    return child.killed, count


def at_every_call(folder: Path, make: Callable[[int], Strike], *, lasting: bool = False) -> int:
    """Strike at each call of a run, and look each time."""
    (folder / "whole").mkdir()
    _, calls = struck(folder / "whole", refusing(errno.EIO), 0)
    for point in range(1, calls + 1):
        place = folder / str(point)
        place.mkdir()
        struck(place, make(point), point, lasting=lasting)
        shutil.rmtree(place)
    return calls


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tray that is soon full."""
    monkeypatch.setattr(tray, "SIZE", 64 << 10)


def test_killed_at_every_call(fast: Path) -> None:
    """Whatever was acknowledged is there afterwards."""
    assert at_every_call(fast, lambda point: killing(random.Random(point))) > 60


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_refused_at_every_call(fast: Path, code: int) -> None:
    """An error is told, and takes nothing that was acknowledged."""
    assert at_every_call(fast, lambda point: refusing(code)) > 60


def test_full_at_every_call(fast: Path) -> None:
    """So is a disk that fills up in the middle of a write."""

    def make(point: int) -> Strike:
        return filling(errno.ENOSPC, random.Random(point))

    assert at_every_call(fast, make, lasting=True) > 60


@contextmanager
def not_moving() -> Iterator[None]:
    """A tray that is emptied, and the database gets nothing."""

    def broken(self: SQLiteBlobs, writer: object) -> None:
        if self._tray.laid().contents:
            self._tray.clear()

    with patch.object(SQLiteBlobs, "_empty_tray", broken):
        yield


@contextmanager
def kept_in_memory() -> Iterator[None]:
    """A tray that writes its header, and no record."""
    real = os.pwrite

    def lazy(fd: int, data: bytes, at: int) -> int:
        return len(data) if at == 20 else real(fd, data, at)

    with patch.object(os, "pwrite", lazy), patch.dict(REAL, {"pwrite": lazy}):
        yield


@pytest.mark.parametrize("broken", [not_moving, kept_in_memory])
def test_killing_finds_broken_trays(fast: Path, broken: Broken) -> None:
    """The check above fails on a tray that breaks its promise."""
    with broken(), pytest.raises(Violation):
        at_every_call(fast, lambda point: killing(random.Random(point)))
