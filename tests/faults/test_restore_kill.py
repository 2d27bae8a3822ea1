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
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.faults import rewinds
from tests.faults.calls import Function
from tests.faults.kill import Violation, over
from tests.faults.restore_calls import RestoreCalls
from tests.faults.restore_variants import COMPLAINTS
from tests.faults.restoring import FIRST, SESSION, Scene, erase, git, look
from tests.faults.rewinds import QUIET, SYNCS, WAYS, Sweep, killed_at
from tests.faults.test_strace import STRACE, calls_at
from tests.faults.variants import Broken

from backtrail.files.workspace import root
from backtrail.files.workspace.roots import Identity, identity

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(7200),
]


@pytest.fixture(autouse=True)
def removable(fast: Path) -> Iterator[None]:
    """Folders that cannot be written in could not be removed in the end."""
    yield
    for folder in fast.iterdir():
        erase(folder)


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
    calls = json.loads(scene.copy().reported)["calls"]
    expected = look(scene.copied)
    assert len(expected) > 10
    for point in [*range(1, len(calls), len(calls) // 15), len(calls)]:
        scene.fresh()
        where = f"killed at {point}, {calls[point - 1]}"
        done = over(scene.copy(killed_at(point)), point, len(calls), where)
        states[scene.check_copy(where, expected, returned=done)] += 1
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
    assert "is another directory" in json.loads(scene.use().reported)["error"]
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


@pytest.mark.parametrize(
    ("broken", "complaint"),
    COMPLAINTS.items(),
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


def test_a_rewind_that_makes_fewer_calls_is_done(fast: Path) -> None:
    """It cannot die at a call it does not make; it must have happened, and be shown so."""
    sweep = Sweep(Scene(fast))
    sweep.calls.append("close")
    last = len(sweep.calls)
    sweep.strike(last, undo=True)
    sweep.strike_with_person(last)
    assert sweep.states["over"] == 2 and sweep.states["after"] == 2
    sweep.calls += ["close"] * len(sweep.calls)
    with pytest.raises(Violation, match="lives, after"):
        sweep.strike(len(sweep.calls))


def test_a_kill_that_does_not_kill_is_found(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind that makes the call at which it should die, and goes on, is no success."""

    def sparing(name: str, real: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return real(*args, **kwargs)

    sweep = Sweep(Scene(fast))
    monkeypatch.setattr(rewinds, "killed_at", lambda point, _=0: RestoreCalls(sparing, point))
    for point in (1, len(sweep.calls) // 2, len(sweep.calls)):
        with pytest.raises(Violation, match="lives, after"):
            sweep.strike(point)
