"""A rewind that the disk refuses half-way leaves the files as they were, or is finished later.

Every call of the restore is refused once, with the errors of a full disk, a broken one and
one that may not be written. The error names the file. The conversation goes with the files.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.faults.calls import refusing
from tests.faults.kill import Violation
from tests.faults.restore_calls import (
    CHANGING,
    LOOKING,
    RestoreCalls,
    syncing_all,
    without_renameat2,
)
from tests.faults.restoring import FIRST, SESSION, Scene, erase
from tests.faults.variants import Broken, sound

from backtrail import Session
from backtrail.errors import StoreFailed
from backtrail.files import beneath
from backtrail.files.names import shown
from backtrail.files.restore import restore
from backtrail.files.restore.restore import HalfRestored
from backtrail.files.restore.workbench import Deeds

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(7200),
]

REFUSED = tuple(name for name in (*CHANGING, *LOOKING) if name != "close")
"""All but closing: what was written is synced before, so that a close has nothing to say."""

CODES = (errno.ENOSPC, errno.EIO, errno.EACCES)

WAYS = {"renameat2": sound, "fallback": without_renameat2}
SYNCS = WAYS | ({"syncfs": syncing_all} if beneath.system.syncfs is not None else {})


@pytest.fixture(autouse=True)
def removable(fast: Path) -> Iterator[None]:
    """Folders that cannot be written in could not be removed in the end."""
    yield
    for folder in fast.iterdir():
        erase(folder)


@dataclass
class Sweep:
    """Errors in one scene, and what they came to."""

    scene: Scene
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        reported = json.loads(self.scene.rewind(RestoreCalls(names=REFUSED, within=True)).reported)
        self.calls: list[str] = reported["calls"]
        everything = {*self.scene.before, *self.scene.after}
        self.paths = [shown(os.fsencode(path)) for path in everything]

    def points(self, count: int = 0) -> list[int]:
        """All points, or so many, spread evenly."""
        everything = range(1, len(self.calls) + 1)
        return [everything[len(everything) * n // count] for n in range(count)] or [*everything]

    def refuse(self, point: int, code: int, *, lasting: bool = False) -> None:
        """Refuse one call, or all of its kind from there on; then look."""
        self.scene.fresh()
        more = ", and all after it" if lasting else ""
        where = f"{errno.errorcode[code]} at {point}, {self.calls[point - 1]}{more}"
        calls = RestoreCalls(refusing(code), point, REFUSED, lasting=lasting, within=True)
        reported = json.loads(self.scene.rewind(calls).reported)
        if not reported["struck"]:
            raise Violation(f"{where}: nothing was refused")
        self.look(where, reported)

    def look(self, where: str, reported: dict[str, Any]) -> None:
        """As before if it failed; finished by the next use if even that failed."""
        kind = reported.get("type", "no error")
        self.outcomes[kind] += 1
        expected = {"StoreFailed": "before", "HalfRestored": "after", "no error": "after"}
        if kind not in expected:
            raise Violation(f"{where}: {reported}")
        if kind != "no error":
            named = any(path in reported["error"] for path in [*self.paths, "the root"])
            if not named:
                raise Violation(f"{where}: no file is named: {reported['error']}")
        if kind != "HalfRestored" and self.scene.check_files(where) != expected[kind]:
            raise Violation(f"{where}: not {expected[kind]} although {reported}")
        state = self.scene.check(where)
        if state != expected[kind]:
            raise Violation(f"{where}: {state} in the end, although {reported}")

    def refuse_recovery(self, point: int, second: int, code: int) -> None:
        """Leave a restore half-way, and refuse a call of its recovery."""
        self.scene.fresh()
        where = f"half-way at {point}, then {errno.errorcode[code]} in the recovery at {second}"
        calls = RestoreCalls(refusing(errno.EIO), point, REFUSED, lasting=True, within=True)
        kind = json.loads(self.scene.rewind(calls).reported).get("type")
        calls = RestoreCalls(refusing(code), second, REFUSED, within=True)
        reported = json.loads(self.scene.use(calls).reported)
        self.outcomes["recovery refused" if reported["struck"] else "recovery"] += 1
        state = self.scene.check(where, said=["later"] if "error" not in reported else [])
        if kind == "HalfRestored" and state != "after":
            raise Violation(f"{where}: {state} in the end")


def moves(sweep: Sweep, count: int) -> list[int]:
    """Points at which names are moved."""
    names = ("renameat2", "rename", "link")
    found = [at for at, name in enumerate(sweep.calls, 1) if name in names]
    return [found[len(found) * n // count] for n in range(count)]


@pytest.mark.parametrize("way", list(SYNCS))
def test_a_refused_rewind_changes_nothing(fast: Path, way: str) -> None:
    """One call is refused: the files are as before, and so is the conversation."""
    sweep = Sweep(Scene(fast, broken=SYNCS[way]))
    for at, point in enumerate(sweep.points(15)):
        sweep.refuse(point, CODES[at % 3])
    assert sweep.outcomes["StoreFailed"] > 9, sweep.outcomes


@pytest.mark.parametrize("way", list(WAYS))
def test_what_cannot_be_taken_back_is_finished(fast: Path, way: str) -> None:
    """From some call on all of its kind are refused, then the disk is well again."""
    sweep = Sweep(Scene(fast, broken=WAYS[way]))
    for at, point in enumerate(moves(sweep, 8)):
        sweep.refuse(point, CODES[at % 3], lasting=True)
    assert sweep.outcomes["HalfRestored"] > 2, sweep.outcomes


@pytest.mark.parametrize("way", list(WAYS))
def test_a_refused_recovery_is_finished_by_the_next(fast: Path, way: str) -> None:
    """The recovery meets an error as well; the next one has better luck."""
    sweep = Sweep(Scene(fast, broken=WAYS[way]))
    for at, point in enumerate(moves(sweep, 7)):
        sweep.refuse_recovery(point, 3 + 37 * at, CODES[at % 3])
    assert sweep.outcomes["recovery refused"] > 2, sweep.outcomes


def test_the_same_session_goes_on(fast: Path) -> None:
    """A session whose rewind is stuck half-way finishes it with its next message."""
    scene = Scene(fast)
    sweep = Sweep(scene)
    calls = RestoreCalls(
        refusing(errno.EIO), moves(sweep, 4)[2], REFUSED, lasting=True, within=True
    )
    scene.fresh()

    def body() -> list[str]:
        with Session.open(scene.url, SESSION, cwd=scene.work) as session:
            with calls, pytest.raises(HalfRestored):
                session.rewind(to=FIRST)
            session.append({"role": "user", "content": "later"})
            return [event.kind for event in session.events()][-3:]

    # Only the session changed a file, so no event says so.
    assert json.loads(scene.forked(body).reported) == ["rewound", "session_resume", "user_message"]
    assert scene.check_files("in the same session") == "after"


@pytest.mark.torture
@pytest.mark.parametrize("way", list(SYNCS))
@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
def test_refuse_every_call(fast: Path, code: int, way: str) -> None:
    """Every call of the restore, once and lasting, and one of the recovery."""
    sweep = Sweep(Scene(fast, broken=SYNCS[way]))
    for point in sweep.points():
        looks = sweep.calls[point - 1] in LOOKING
        if code == errno.EIO or not looks:
            sweep.refuse(point, code)
        if not looks:
            sweep.refuse(point, code, lasting=True)
            sweep.refuse_recovery(point, point * 7 % 400 + 1, code)
    print(errno.errorcode[code], way, len(sweep.calls), dict(sweep.outcomes))
    assert sweep.outcomes["HalfRestored"] > 10


# --- broken on purpose -------------------------------------------------------------------


@contextmanager
def not_taking_back() -> Iterator[None]:
    """After an error all stays as it happens to be."""
    with patch.object(Deeds, "undo_all", lambda *_: None):
        yield


@contextmanager
def denying_half_restores() -> Iterator[None]:
    """A restore that is stuck half-way says that nothing happened."""
    with patch.object(restore, "HalfRestored", StoreFailed):
        yield


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (not_taking_back, "neither before|left behind"),
        (denying_half_restores, "neither before|left behind|although"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_errors_find_broken_restores(fast: Path, broken: Broken, complaint: str) -> None:
    """The sweeps fail on a restore that breaks a promise."""
    sweep = Sweep(Scene(fast, broken=broken))
    with pytest.raises(Violation, match=complaint):
        for point in moves(sweep, 12):
            sweep.refuse(point, errno.EIO)
            sweep.refuse(point, errno.EIO, lasting=True)
