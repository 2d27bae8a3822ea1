"""Power loss around the tray of the blob store: what was acknowledged is there afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults import variants
from tests.faults.groups import named
from tests.faults.kill import Violation
from tests.faults.test_powerloss import ROUNDS, Disk, disk, told_before_the_cut
from tests.faults.variants import Broken, sound
from tests.faults.workers import Worker

from backtrail.files.contents import content_tray
from backtrail.files.contents.blobs import Reference
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.stores.disk import sync

__all__ = ["disk"]

pytestmark = [
    pytest.mark.torture,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(3600),
]


def little(n: int) -> bytes:
    return b"%d " % n + random.Random(n).randbytes(random.Random(-n).choice([10, 700, 9_000]))


def lay_for_ever(path: Path, first: int, tell: Callable[[str], None]) -> None:
    """Lay contents in a tray that is soon full; now and then a transaction empties it."""
    sync.DELAY = 60.0
    content_tray.SIZE = 64 << 10
    blobs = SQLiteBlobs(path)
    for n in range(first, first + 100_000):
        content = little(n)
        blobs.write([(named(content), content)], [Reference("s", str(n), named(content))])
        tell(str(n))
        if n % 7 == 0:
            blobs.drop_references("nobody")


def lost(path: Path, told: list[str]) -> int:
    """How many acknowledged contents are not there; the store must be sound, and goes on."""
    with SQLiteBlobs(path) as blobs:
        held = {reference.log for reference in blobs.references()}
        missing = sum(
            n not in held or not blobs.has([named(little(int(n)))]) for n in told if n.isdigit()
        )
        if problems := list(blobs.verify()):
            raise Violation(f"damage by a power cut: {problems}")
        blobs.put(b"goes on")
        blobs.put(b"goes on too")
    return missing


def cut_once(disk: Disk, first: int, dice: random.Random, broken: Broken) -> int:
    path = disk.place / "blobs.db"
    with broken():
        worker = Worker(lambda tell: lay_for_ever(path, first, tell))
    told = told_before_the_cut(disk, worker, dice.random() * 0.05)
    checker = Worker(lambda tell: tell(str(lost(path, told))))
    return int(checker.wait()[0])


def rounds(disk: Disk, count: int, broken: Broken = sound) -> int:
    """Cut the power so many times; in how many rounds something acknowledged was lost."""
    dice = random.Random(count)
    return sum(cut_once(disk, n * 1_000_000, dice, broken) > 0 for n in range(count))


def test_what_lies_in_the_tray_survives_power_loss(disk: Disk) -> None:
    assert rounds(disk, ROUNDS) == 0


def test_power_loss_finds_a_tray_that_does_not_sync(disk: Disk) -> None:
    """The control."""
    count = max(10, ROUNDS // 5)
    assert rounds(disk, count, variants.not_syncing) > count / 2
