"""Every incident, against Backtrail; and that the suite can fail, against shadow git."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .catalogue import SCENARIOS
from .driver import Driver
from .known import OPEN, SHADOW_GIT_CANNOT, SHADOW_GIT_FAILS
from .ours import Ours
from .shadow_git import ShadowGit
from .stage import Scenario, perform

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="the incidents need git")

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: no scenario needs a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=MEMORY, prefix="incident-"))
    yield made
    shutil.rmtree(made)


def _ours() -> list[object]:
    return [
        pytest.param(
            scenario,
            id=scenario.name,
            marks=[pytest.mark.xfail(reason=OPEN[scenario.name])] if scenario.name in OPEN else [],
        )
        for scenario in SCENARIOS
    ]


@pytest.mark.parametrize("scenario", _ours())
def test_ours(scenario: Scenario, folder: Path) -> None:
    """What went wrong elsewhere does not go wrong here."""
    outcome = perform(scenario, Ours, folder)
    assert outcome.verdict == "pass", f"{outcome.verdict}: {outcome.reason}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_suite_can_fail(scenario: Scenario, folder: Path) -> None:
    """Shadow git fails exactly those that are known, so they test something."""
    outcome = perform(scenario, ShadowGit, folder)
    expected = "pass"
    if scenario.name in SHADOW_GIT_FAILS:
        expected = "fail"
    elif scenario.name in SHADOW_GIT_CANNOT:
        expected = "cannot"
    assert outcome.verdict == expected, f"{outcome.verdict}: {outcome.reason}"


def test_the_known_failures_are_scenarios() -> None:
    """No name stands in a list without a scenario, or in two."""
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert {*OPEN, *SHADOW_GIT_FAILS, *SHADOW_GIT_CANNOT} <= set(names)
    assert not SHADOW_GIT_FAILS & SHADOW_GIT_CANNOT


def test_every_scenario_has_its_story() -> None:
    """A reader of the table finds out what went wrong."""
    assert [scenario.name for scenario in SCENARIOS if not scenario.story] == []


def test_an_ability_that_is_missing_is_no_pass(folder: Path) -> None:
    """A tool that can do nothing but the four calls passes nothing by that."""

    class Idle(Driver):
        name = "idle"

        def start(self, root: Path) -> None:
            self.root = root

        def checkpoint(self) -> object:
            return None

        def restore(self, token: object) -> None:
            return None

        def stop(self) -> None:
            return None

    verdicts = {s.name: perform(s, Idle, folder / s.name).verdict for s in SCENARIOS[:12]}
    assert "pass" not in {verdicts[name] for name in verdicts if "comes_back" in name}
    undo = next(s for s in SCENARIOS if s.name == "one_file_alone_comes_back")
    assert perform(undo, Idle, folder / "undo").verdict == "cannot"
