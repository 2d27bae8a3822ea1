"""Rewinds killed at a chosen call, and what they came to."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.faults.calls import killing
from tests.faults.kill import Violation, over, repeatable
from tests.faults.restore_calls import RestoreCalls, syncing_all, without_renameat2
from tests.faults.restoring import PERSON, Scene
from tests.faults.variants import sound

from backtrail.files import beneath

QUIET = ("open", "close", "fsync", "fdatasync", "ftruncate", "pwrite")
"""Calls before which a kill leaves what a kill before the next call leaves."""

WAYS = {"renameat2": sound, "fallback": without_renameat2}
"""With the system's call for swapping names, and without it."""

SYNCS = WAYS | ({"syncfs": syncing_all} if beneath.system.syncfs is not None else {})
"""Also with one sync for all files, where the system has that."""


def killed_at(point: int, seed: int = 0) -> RestoreCalls:
    """Calls of which one is the last."""
    return RestoreCalls(killing(random.Random(seed or point)), point)


@dataclass
class Sweep:
    """Kills in one scene, and what they came to."""

    scene: Scene
    seed: int = 0
    states: Counter[str] = field(default_factory=Counter)
    done: bool = False
    """The last rewind was over before the call at which it should have died."""

    def __post_init__(self) -> None:
        reported = json.loads(self.scene.rewind().reported)
        self.calls: list[str] = reported["calls"]

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
        child = self.scene.rewind(killed_at(point, self.seed))
        self.done = over(child, point, len(self.calls), where)
        self.states["over"] += self.done
        return where

    def strike(self, point: int, *, undo: bool = False) -> None:
        """One kill, then the next use."""
        with self._repeatable(point, "--undo" if undo else ""):
            where = self.kill(point)
            state = self._found(where, self.scene.check(where))
            if undo and state == "after":
                self.scene.check_undo(where)

    def strike_again(self, point: int, second: int) -> bool:
        """A kill, another in the recovery; False if the recovery was over before."""
        with self._repeatable(point, f"--second {second}"):
            where = f"{self.kill(point)}, and again at {second}"
            killed = self.scene.use(killed_at(second)).killed
            if killed:
                self.states["again"] += 1
                self._found(where, self.scene.check(where, perhaps=True))
            return killed

    def strike_with_person(self, point: int) -> None:
        """A kill, then a person works on the files before the workspace is used again."""
        with self._repeatable(point, "--person"):
            where = f"{self.kill(point)}, then a person came"
            for name, content in PERSON.items():
                (self.scene.work / name).write_bytes(content)
            self._found(where, self.scene.check(where, PERSON))

    def _repeatable(self, point: int, how: str) -> AbstractContextManager[None]:
        way = next((name for name, broken in SYNCS.items() if broken is self.scene.broken), "")
        words = [f"kill rewind --point {point} --seed {self.seed or point}"]
        words += [f"--store {self.scene.kind}", f"--way {way}" if way else "", how]
        return repeatable(" ".join(filter(None, words)))

    def _found(self, where: str, state: str) -> str:
        """Count a state; a rewind that was over has happened."""
        if self.done and state != "after":
            raise Violation(f"{where}: the rewind was over, and the files are {state}")
        self.states[state] += 1
        return state
