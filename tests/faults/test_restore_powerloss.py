"""Power loss around a rewind: after it returned, files and log are where it brought them.

In the middle of it, both are finished by the next use, or as they were. The disks are those
of `test_powerloss.py`. Each test has a control that forgets to sync.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.faults.calls import REAL, Function, Strike
from tests.faults.kill import Violation, over
from tests.faults.restore_calls import RestoreCalls, syncing_all
from tests.faults.restoring import FIRST, SESSION, Scene, look
from tests.faults.test_powerloss import Disk
from tests.faults.variants import Broken, sound

from backtrail import Session
from backtrail.files import beneath
from backtrail.files.changes.catalogue import Catalogue
from backtrail.stores.disk.database import Database

pytestmark = [
    pytest.mark.torture,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(7200),
]

ROUNDS = int(os.environ.get("BACKTRAIL_POWER_ROUNDS", "100"))


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk of its own."""
    kind: str = request.param
    if os.geteuid() != 0:
        pytest.skip("mounting a disk image needs root")
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    try:
        made = Disk(tmp_path, kind)
    except OSError as error:
        pytest.skip(f"cannot mount a disk image: {error}")
    yield made
    if made.mounted:
        made.unmount()
    made.image.unlink()


def cutting(disk: Disk) -> Strike:
    """Cut the power at a call, and end."""

    def strike(name: str, real: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for call, function in REAL.items():
            setattr(os, call, function)
        disk.cut()
        os.kill(os.getpid(), 9)

    return strike


@dataclass
class Cuts:
    """Power cuts in one scene, and what they came to."""

    scene: Scene
    disk: Disk
    states: Counter[str] = field(default_factory=Counter)

    def fresh(self) -> None:
        """The scene, all of it on the disk."""
        self.scene.fresh()
        subprocess.run(["sync", "-f", str(self.disk.place)], check=True)

    def __post_init__(self) -> None:
        self.fresh()
        self.calls = self.scene.rewind().calls

    def restart(self) -> None:
        """The power comes back."""
        self.disk.unmount()
        self.disk.mount()

    def cut_at(self, point: int) -> None:
        """Cut in the middle of a rewind."""
        self.fresh()
        where = f"power cut at {point}"
        child = self.scene.rewind(RestoreCalls(cutting(self.disk), point))
        done = over(child, point, self.calls, where)
        if done:
            self.disk.cut()
        self.restart()
        state = self.scene.check(where)
        if done and state != "after":
            raise Violation(f"{where}: the rewind was over, and the files are {state}")
        self.states[state] += 1

    def cut_after(self) -> None:
        """Cut right after a rewind returned; nothing of it may be missing."""
        self.fresh()

        def body() -> None:
            session = Session.open(self.scene.url, SESSION, cwd=self.scene.work)
            session.rewind(to=FIRST)
            self.disk.cut()
            os.kill(os.getpid(), 9)

        if not self.scene.forked(body).killed:
            raise Violation("the power was not cut")
        self.restart()
        state = self.scene.check_files("power cut after a rewind")
        if state != "after" or self.scene.check("after it") != "after":
            raise Violation(f"the rewind returned, and the files are {state}")
        self.states["returned"] += 1


SYNCS = {"fsync": sound} | ({"syncfs": syncing_all} if beneath.system.syncfs is not None else {})
"""Each file by itself, or all at once, where the system has that."""


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_power_cut_after_a_rewind(tmp_path: Path, disk: Disk, kind: str, sync: str) -> None:
    """What a rewind did is on the disk when it returns, in the files and in the log."""
    cuts = Cuts(Scene(tmp_path / "scene", kind, SYNCS[sync], disk=disk.place), disk)
    for _ in range(max(2, ROUNDS // 10)):
        cuts.cut_after()


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_power_cut_during_a_rewind(tmp_path: Path, disk: Disk, kind: str, sync: str) -> None:
    """Cut at any call: all before, or all after, once the workspace is used again."""
    cuts = Cuts(Scene(tmp_path / "scene", kind, SYNCS[sync], disk=disk.place), disk)
    points = random.Random(5).sample(range(1, cuts.calls + 1), ROUNDS)
    for point in points:
        cuts.cut_at(point)
    print(disk.kind, kind, len(points), dict(cuts.states))
    assert cuts.states["before"] > 0 and cuts.states["after"] > 0


@pytest.mark.parametrize("sync", SYNCS)
def test_power_cut_around_a_copy(tmp_path: Path, disk: Disk, sync: str) -> None:
    """The files of a point in a new directory: whole or not there, and whole once it returned."""
    scene = Scene(tmp_path / "scene", "sqlite", SYNCS[sync], disk=disk.place)
    cuts = Cuts(scene, disk)
    cuts.fresh()
    calls = scene.copy().calls
    expected = look(scene.copied)
    for point in random.Random(6).sample(range(1, calls + 1), min(ROUNDS, calls)):
        cuts.fresh()
        child = scene.copy(RestoreCalls(cutting(disk), point))
        where = f"power cut at {point}"
        done = over(child, point, calls, where)
        if done:
            disk.cut()
        cuts.restart()
        cuts.states[scene.check_copy(where, expected, returned=done)] += 1
    assert cuts.states["absent"] > 0
    cuts.fresh()

    def body() -> None:
        scene.copy_here()
        disk.cut()
        os.kill(os.getpid(), 9)

    if not scene.forked(body).killed:
        raise Violation("the power was not cut")
    cuts.restart()
    scene.check_copy("power cut after a copy", expected, returned=True)


# --- broken on purpose -------------------------------------------------------------------


@contextmanager
def not_syncing_files() -> Iterator[None]:
    """A restore that leaves it to the system when its files reach the disk."""
    with patch.object(os, "fsync", lambda fd: None):
        yield


@contextmanager
def not_syncing_journals() -> Iterator[None]:
    """The journal is written, and not synced."""
    real = Catalogue.write_journal

    def write(self: Catalogue, *args: Any) -> None:
        with patch.object(Database, "flush", lambda self: None):
            real(self, *args)

    with patch.object(Catalogue, "write_journal", write):
        yield


@contextmanager
def not_syncing_at_once() -> Iterator[None]:
    """The same where all would be synced at once; directories and the rest are synced."""
    with syncing_all(), patch.object(beneath.system, "syncfs", lambda fd: None):
        yield


@pytest.mark.parametrize("broken", [not_syncing_files, not_syncing_at_once, not_syncing_journals])
def test_power_cuts_find_missing_syncs(tmp_path: Path, disk: Disk, broken: Broken) -> None:
    """The control: a restore that does not sync is found out."""
    cuts = Cuts(Scene(tmp_path / "scene", disk=disk.place), disk)
    cuts.scene.broken = broken
    with pytest.raises(Violation), ExitStack() as stack:
        stack.callback(setattr, cuts.scene, "broken", sound)
        cuts.cut_after()
        for point in range(cuts.calls // 2, cuts.calls, 7):
            cuts.cut_at(point)
