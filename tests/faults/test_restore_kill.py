"""A rewind killed by SIGKILL at any call is done or undone, once the workspace is used again.

So is the conversation. Killed once more in the recovery, the same. What a person did to
the files in between stays.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.calls import killing
from tests.faults.kill import Violation
from tests.faults.restore_calls import RestoreCalls, syncing_all, without_renameat2
from tests.faults.restoring import FIRST, PERSON, SESSION, Scene, erase, git, look
from tests.faults.test_strace import STRACE, calls_at
from tests.faults.variants import Broken, sound

from backtrail.files import beneath
from backtrail.files.beneath import describe
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.restore import journal
from backtrail.files.restore.plan import Step
from backtrail.files.restore.restore import Restore
from backtrail.files.restore.workbench import Workbench
from backtrail.files.workspace import root
from backtrail.files.workspace.roots import Identity, identity

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(7200),
]

QUIET = ("open", "close", "fsync", "fdatasync", "ftruncate", "pwrite")
"""Calls before which a kill leaves what a kill before the next call leaves."""

WAYS = {"renameat2": sound, "fallback": without_renameat2}
"""With the system's call for swapping names, and without it."""

SYNCS = WAYS | ({"syncfs": syncing_all} if beneath.syncfs is not None else {})
"""Also with one sync for all files, where the system has that."""


@pytest.fixture(autouse=True)
def removable(fast: Path) -> Iterator[None]:
    """Folders that nobody may write in could not be removed in the end."""
    yield
    for folder in fast.iterdir():
        erase(folder)


def _killed_at(point: int) -> RestoreCalls:
    return RestoreCalls(killing(random.Random(point)), point)


@dataclass
class Sweep:
    """Kills in one scene, and what they came to."""

    scene: Scene
    states: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        told = json.loads(self.scene.rewind().told)
        self.calls: list[str] = told["calls"]

    def points(self, count: int = 0) -> list[int]:
        """All points; or so many, spread evenly, where a kill makes a difference."""
        if not count:
            return list(range(1, len(self.calls) + 1))
        loud = [at for at, name in enumerate(self.calls, 1) if name not in QUIET]
        return [loud[len(loud) * n // count] for n in range(count)]

    def kill(self, point: int) -> str:
        """Rewind, and die at a call."""
        self.scene.fresh()
        where = f"killed at {point}, {self.calls[point - 1]}"
        if not self.scene.rewind(_killed_at(point)).killed:
            raise Violation(f"{where}: lives")
        return where

    def strike(self, point: int, *, undo: bool = False) -> None:
        """One kill, then the next use."""
        where = self.kill(point)
        state = self.scene.check(where)
        self.states[state] += 1
        if undo and state == "after":
            self.scene.check_undo(where)

    def strike_again(self, point: int, second: int) -> bool:
        """A kill, another in the recovery; False if the recovery was over before."""
        where = f"{self.kill(point)}, and again at {second}"
        killed = self.scene.use(_killed_at(second)).killed
        if killed:
            self.states["again"] += 1
            self.states[self.scene.check(where, perhaps=True)] += 1
        return killed

    def strike_with_person(self, point: int) -> None:
        """A kill, then a person works on the files before the workspace is used again."""
        where = f"{self.kill(point)}, then a person came"
        for name, content in PERSON.items():
            (self.scene.work / name).write_bytes(content)
        self.states[self.scene.check(where, PERSON)] += 1


@pytest.mark.parametrize("way", list(SYNCS))
def test_killed_rewind_is_done_or_undone(fast: Path, way: str) -> None:
    """At any call: files all before or all after, and the conversation with them."""
    sweep = Sweep(Scene(fast, broken=SYNCS[way]))
    for at, point in enumerate(sweep.points(15)):
        sweep.strike(point, undo=at % 5 == 4)
    assert sweep.states["before"] > 0 and sweep.states["after"] > 0


@pytest.mark.parametrize("way", ["renameat2", *(SYNCS.keys() - WAYS.keys())])
def test_killed_copy_is_whole_or_not_there(fast: Path, way: str) -> None:
    """The files of a point in a new directory: at no call is there a part of them."""
    scene, states = Scene(fast, broken=SYNCS[way]), Counter[str]()
    calls = json.loads(scene.copy().told)["calls"]
    expected = look(scene.copied)
    assert len(expected) > 10
    for point in [*range(1, len(calls), len(calls) // 15), len(calls)]:
        scene.fresh()
        if not scene.copy(_killed_at(point)).killed:
            raise Violation(f"lives at {point}")
        states[scene.check_copy(f"killed at {point}, {calls[point - 1]}", expected)] += 1
    assert states["absent"] > 9 and states["whole"] > 0, states


@pytest.mark.parametrize("way", list(WAYS))
def test_killed_recovery_is_finished_by_the_next(fast: Path, way: str) -> None:
    """A recovery is killed as well, and another finishes it."""
    sweep = Sweep(Scene(fast, broken=WAYS[way]))
    dice = random.Random(1)
    for point in sweep.points(10)[3:]:
        sweep.strike_again(point, dice.randint(3, 250))
    assert sweep.states["again"] > 3


@pytest.mark.parametrize("way", list(WAYS))
def test_recovery_keeps_what_a_person_did(fast: Path, way: str) -> None:
    """Between crash and recovery a file was repaired, one was made, one was changed."""
    sweep = Sweep(Scene(fast, broken=WAYS[way]))
    for point in sweep.points(8):
        sweep.strike_with_person(point)
    assert sweep.states["before"] > 0 and sweep.states["after"] > 0


def test_recovery_follows_a_directory_that_was_moved(fast: Path) -> None:
    """The directory is renamed between crash and recovery: it is the same one."""
    sweep = Sweep(Scene(fast))
    sweep.kill(sweep.points(4)[2])
    sweep.scene.work = sweep.scene.work.rename(fast / "elsewhere")
    assert sweep.scene.check("in a moved directory") == "after"


def test_recovery_knows_a_directory_on_a_device_with_a_new_number(fast: Path) -> None:
    """A machine that starts again may give its devices other numbers."""

    def renumbered(fd: int) -> Identity:
        found = identity(fd)
        return found._replace(device=found.device + 1000)

    sweep = Sweep(Scene(fast))
    sweep.kill(sweep.points(4)[2])
    sweep.scene.broken = lambda: patch.object(root, "identity", renumbered)
    assert sweep.scene.check("after a restart") == "after"


def test_another_directory_is_not_restored(fast: Path) -> None:
    """Something else is at the path after a crash: it is left alone, and says so."""
    sweep = Sweep(Scene(fast))
    scene = sweep.scene
    sweep.kill(sweep.points(4)[2])
    scene.work.rename(fast / "elsewhere")
    scene.work.mkdir()
    (scene.work / "w1.txt").write_text("another project\n")
    assert "is another directory" in json.loads(scene.use().told)["error"]
    assert list(look(scene.work)) == ["w1.txt"]


def test_git_is_left_alone(fast: Path) -> None:
    """Git says the same before a rewind and after, and its repository is sound."""
    scene = Scene(fast, "sqlite")
    dirty = git(scene.work, "status", "--porcelain")
    assert "big.bin" in dirty
    sweep = Sweep(scene)
    sweep.kill(sweep.points(4)[2])
    scene.check("in the middle")
    assert git(scene.work, "status", "--porcelain") == ""
    assert "error" not in git(scene.work, "fsck", "--full", "--strict")
    scene.check_undo("in the middle")
    assert git(scene.work, "status", "--porcelain") == dirty
    scene.check_bystanders("in the end")


@pytest.mark.torture
@pytest.mark.parametrize("way", list(SYNCS))
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_kill_at_every_call(fast: Path, kind: str, way: str) -> None:
    """Every call of a rewind, each alone, with a person, and with a second kill."""
    sweep = Sweep(Scene(fast, kind, SYNCS[way]))
    dice = random.Random(2)
    for point in sweep.points():
        sweep.strike(point, undo=point % 4 == 0)
        if sweep.calls[point - 1] not in QUIET:
            sweep.strike_with_person(point)
            sweep.strike_again(point, dice.randint(1, 400))
    print(kind, way, len(sweep.calls), dict(sweep.states))
    assert sweep.states["again"] > 30


@pytest.mark.torture
@pytest.mark.parametrize("way", list(WAYS))
def test_kill_at_every_call_of_a_recovery(fast: Path, way: str) -> None:
    """From some crashes on, every call of the recovery."""
    sweep = Sweep(Scene(fast, broken=WAYS[way]))
    for point in sweep.points(6)[2:]:
        second = 1
        while sweep.strike_again(point, second):
            second += 1
    print(way, dict(sweep.states))
    assert sweep.states["again"] > 300


# --- by strace ---------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path[:0] = {path!r}
from backtrail import Session
from backtrail.stores.disk import sync as syncing
syncing.DELAY = 60.0
with Session.open({url!r}, {session!r}, cwd={work!r}) as session:
    session.rewind(to={first})
"""

LOOKS = re.compile("f?stat|newfstatat|read|pread|lseek|getdents|fcntl|close|mmap|access|ioctl")
"""System calls before which a kill leaves what a kill before the next call leaves."""


def traced(scene: Scene, log: Path, options: list[str]) -> str:
    """A rewind in an interpreter of its own, under strace; its trace."""
    script = SCRIPT.format(
        path=[entry for entry in sys.path if entry],
        url=scene.url,
        session=SESSION,
        work=str(scene.work),
        first=FIRST,
    )
    command = [os.path.realpath(sys.executable), "-S", "-E", "-I", "-c", script]
    traced = [str(STRACE), "-qq", "-f", "-y", "-o", str(log), *options, *command]
    subprocess.run(traced, capture_output=True, timeout=120)
    return log.read_text(errors="replace")


@pytest.mark.torture
@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_strace_kills_at_every_call(fast: Path, kind: str) -> None:
    """Every system call that changes something, those of SQLite too."""
    scene = Scene(fast, kind)
    found: list[list[tuple[str, int]]] = []
    for _ in range(3):
        scene.fresh()
        found.append(calls_at(traced(scene, fast / "trace", []), str(scene.place)))
    points = [point for point in found[-1] if point in found[-2] and not LOOKS.match(point[0])]
    if limit := int(os.environ.get("BACKTRAIL_STRACE_POINTS", "0")):
        points = random.Random(limit).sample(points, min(limit, len(points)))
    states: Counter[str] = Counter()
    for call, count in points:
        scene.fresh()
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={count}"]
        states["killed"] += "+++ killed by SIGKILL +++" in traced(scene, fast / "trace", inject)
        states[scene.check(f"strace at {call} {count}")] += 1
    print(kind, len(points), dict(states))
    assert states["killed"] > len(points) * 0.95 and states["before"] and states["after"]


# --- broken on purpose -------------------------------------------------------------------


@contextmanager
def keeping_no_journal() -> Iterator[None]:
    """A restore that nobody can finish."""
    with patch.object(Catalogue, "write_journal", lambda *_: None):
        yield


@contextmanager
def writing_in_place() -> Iterator[None]:
    """Files are written over instead of swapped."""
    real = Restore._swap

    def swap(self: Restore, index: int, parent: int, name: bytes, step: Step) -> Step:
        if step.before is None or {step.before.kind} != {"file"} or step.after is None:
            return real(self, index, parent, name, step)
        if step.after.kind != "file":
            return real(self, index, parent, name, step)
        fd = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=parent)
        os.write(fd, self._get(step.after.value))
        os.close(fd)
        return step

    with patch.object(Restore, "_swap", swap):
        yield


@contextmanager
def telling_nobody() -> Iterator[None]:
    """A recovery that finishes the files and not the log."""
    with patch.object(journal, "tell", lambda *_: None):
        yield


@contextmanager
def overwriting() -> Iterator[None]:
    """Whatever is at a path is taken for what the plan says."""
    real = Restore._take

    def take(self: Restore, index: int, step: Step) -> Step:
        there = step.before
        try:
            there = describe(*self._directories.parent(step.path))
        except OSError:
            pass
        return real(self, index, replace(step, before=there))

    with patch.object(Restore, "_take", take), patch.object(Workbench, "knows", lambda *_: True):
        yield


@contextmanager
def not_settling() -> Iterator[None]:
    """A recovery throws away what made way."""

    def settle(self: Restore, plan: object, name: bytes) -> None:
        self._bench.drop(name)

    with without_renameat2(), patch.object(Restore, "_settle", settle):
        yield


@contextmanager
def leaving_things_behind() -> Iterator[None]:
    """The workbench is not removed."""
    with patch.object(Workbench, "remove", lambda self: None):
        yield


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (keeping_no_journal, "left behind|neither before"),
        (writing_in_place, "neither before|outside was touched"),
        (telling_nobody, "the files are after"),
        (overwriting, "a person's"),
        (not_settling, "neither before"),
        (leaving_things_behind, "left behind"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_kills_find_broken_restores(fast: Path, broken: Broken, complaint: str) -> None:
    """The sweeps fail on a restore that breaks a promise."""
    sweep = Sweep(Scene(fast, broken=broken))
    points = sweep.points(60)
    random.Random(3).shuffle(points)
    with pytest.raises(Violation, match=complaint):
        for point in points:
            sweep.strike_with_person(point)
            sweep.strike(point)
