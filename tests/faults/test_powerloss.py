"""Power loss: what is synced survives it, on the file systems of Linux.

A small file system in a loop-mounted image is shut down by an ioctl that throws away
everything not yet on the disk, its journal included. Mounted again, it is as after a
power cut. Each round has a control, since a disk that never forgets proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from tests.faults import variants
from tests.faults.kill import Violation
from tests.faults.variants import Broken, sound
from tests.faults.workers import STORES, Worker, url_of

from backtrail.events import MAIN_LOG, NewEvent, SessionInfo
from backtrail.stores import open_store
from backtrail.stores.base import Durability
from backtrail.stores.disk import sync

pytestmark = [
    pytest.mark.torture,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(3600),
]

SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN; with flag 2 nothing is written out on the way down."""

ROUNDS = int(os.environ.get("BACKTRAIL_POWER_ROUNDS", "100"))


class Disk:
    """A file system whose power can be cut."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.image = folder / "disk.img"
        self.place = folder / "disk"
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(400 * 1024 * 1024)
        command = {"ext4": ["mkfs.ext4", "-q"], "xfs": ["mkfs.xfs", "-q"]}[kind]
        _run([*command, str(self.image)])
        self.mounted = False
        self.mount()

    def mount(self) -> None:
        _run(["mount", "-o", "loop", "-t", self.kind, str(self.image), str(self.place)])
        self.mounted = True

    def unmount(self) -> None:
        """Retry while the last files of a dead process are being closed."""
        for attempt in range(100):
            if subprocess.run(["umount", str(self.place)], capture_output=True).returncode == 0:
                self.mounted = False
                return
            time.sleep(0.01 * attempt)
        raise Violation("the disk cannot be unmounted")

    def cut(self) -> None:
        """Lose everything that is not on the disk."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", 2))
        finally:
            os.close(fd)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


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


Work = Callable[[str, Callable[[str], None]], None]


def synced_appends(url: str, report: Callable[[str], None]) -> None:
    """Sessions made, events of all sizes in several logs, each reported once acknowledged."""
    _appends(url, report, "synced", flush=False)


def flushed_appends(url: str, report: Callable[[str], None]) -> None:
    """The same, reported only after `flush`."""
    _appends(url, report, "written", flush=True)


def written_appends(url: str, report: Callable[[str], None]) -> None:
    """The same without a sync at all, which a power cut is free to undo."""
    _appends(url, report, "written", flush=False)


def _appends(url: str, report: Callable[[str], None], level: Durability, *, flush: bool) -> None:
    dice = random.Random(os.getpid())
    sync.DELAY = 60.0
    store = open_store(url, durability=level)
    at = 0
    while True:
        session = f"s{os.getpid()}-{at // 40}"
        if at % 40 == 0:
            store.create(SessionInfo(session, title="made"))
        log = dice.choice([MAIN_LOG, MAIN_LOG, "transcript", "subagents/x"])
        batch = [
            NewEvent("test", {"text": "x" * dice.choice([0, 10, 300, 5000])}, id=f"e{at}-{n}")
            for n in range(dice.choice([1, 1, 1, 4]))
        ]
        store.append(session, batch, log=log)
        if flush:
            store.flush()
        report(f"{session} {log} {len(batch)} {at}")
        at += 1


def reported_before_the_cut(disk: Disk, worker: Worker, wait: float) -> list[str]:
    """Cut the power a moment after a worker reported something; what it reported till then."""
    reported = [worker.line()]
    time.sleep(wait)
    # Lines that reach the pipe before the cut were acknowledged before it.
    os.kill(worker.pid, signal.SIGSTOP)
    if not os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1]):
        raise Violation(f"the worker ended before the cut: {worker.line()}")
    disk.cut()
    worker.kill()
    reported += worker.wait()
    disk.unmount()
    disk.mount()
    return reported


def cut_once(disk: Disk, kind: str, work: Work, dice: random.Random, broken: Broken) -> int:
    """One power cut while a process works; how many acknowledged appends were lost."""
    url = url_of(kind, disk.place)
    with broken():
        worker = Worker(lambda report: work(url, report))
    reported = reported_before_the_cut(disk, worker, dice.random() * 0.03)
    # In a process of its own, so that nothing here keeps a file of the disk open.
    checker = Worker(lambda report: report(str(len(lost(url, reported)))))
    return int(checker.wait()[0])


def lost(url: str, reported: list[str]) -> list[str]:
    """The acknowledged events that are not there; everything else must be sound."""
    missing: list[str] = []
    with open_store(url) as store:
        there: dict[tuple[str, str], set[str]] = {}
        names = {info.id for info in store.sessions()}
        for line in reported:
            session, log, count, at = line.split()
            if session not in names:
                missing.append(line)
                continue
            key = (session, log)
            if key not in there:
                there[key] = {event.id for event in store.read(session, log=log)}
            ids = {f"e{at}-{n}" for n in range(int(count))}
            if not ids <= there[key]:
                missing.append(line)
        for problem in store.verify():
            # A cut leaves torn ends and half-made folders, and nothing in the middle.
            if problem.what not in ("torn line", "torn batch", "stray", "NUL bytes", "garbage"):
                raise Violation(f"damage by a power cut: {problem}")
        for session in sorted(names)[-3:]:
            new = store.append(session, [NewEvent("later", {})])
            if store.tail(session, 1) != new:
                raise Violation("the log does not go on")
        for session in sorted(names)[:-3]:
            store.delete(session)
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        result = connection.execute("PRAGMA integrity_check").fetchall()
        connection.close()
        if result != [("ok",)]:
            raise Violation(f"integrity check: {result}")
    return missing


def rounds(disk: Disk, kind: str, work: Work, count: int, broken: Broken = sound) -> int:
    """Cut the power so many times; in how many rounds something acknowledged was lost."""
    dice = random.Random(count)
    return sum(cut_once(disk, kind, work, dice, broken) > 0 for _ in range(count))


@pytest.mark.parametrize("kind", list(STORES))
def test_synced_appends_survive_power_loss(disk: Disk, kind: str) -> None:
    """With durability `synced`, what `append` returned is there after a power cut."""
    assert rounds(disk, kind, synced_appends, ROUNDS) == 0


@pytest.mark.parametrize("kind", list(STORES))
def test_flushed_appends_survive_power_loss(disk: Disk, kind: str) -> None:
    """With durability `written`, what was appended before `flush` returned is there."""
    assert rounds(disk, kind, flushed_appends, ROUNDS) == 0


@pytest.mark.parametrize("kind", list(STORES))
def test_power_loss_is_real(disk: Disk, kind: str) -> None:
    """The control: without a sync, most power cuts lose what was acknowledged."""
    count = max(10, ROUNDS // 5)
    assert rounds(disk, kind, written_appends, count) > count / 2


@pytest.mark.parametrize("kind", list(STORES))
def test_power_loss_finds_missing_syncs(disk: Disk, kind: str) -> None:
    """The control: `synced` that does not sync is found out."""
    count = max(10, ROUNDS // 5)
    assert rounds(disk, kind, synced_appends, count, variants.not_syncing) > count / 2
