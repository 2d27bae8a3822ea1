"""One point of a sweep can be struck again by the command that its failure prints."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults import rewinds, variants
from tests.faults.kill import Child, Sweep, Violation, over, sweeps
from tests.faults.restore_variants import keeping_no_journal
from tests.faults.restoring import Scene, erase

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

ROOT = Path(__file__).parents[2]


def run(command: str) -> subprocess.CompletedProcess[str]:
    """A command of the guide, with the interpreter of the tests."""
    words = shlex.split(command)
    assert words.pop(0) == "python"
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)


def printed(found: Violation) -> str:
    """The command that a failure prints."""
    return found.__notes__[-1].removeprefix("again: ")


def test_a_failed_point_of_a_writer_fails_again(fast: Path) -> None:
    """With the variant it fails in the same words; without it, all holds."""
    with pytest.raises(Violation) as found:
        sweeps(fast, 300, variants.acknowledging_first, ["singles"])
    command = printed(found.value)
    again = run(f"{command} --broken acknowledging_first")
    assert again.returncode == 1 and f"broken: {found.value}" in again.stderr
    assert f"again: {command}" in again.stderr
    sound = run(command)
    assert sound.returncode == 0, sound.stderr
    assert "the promises hold" in sound.stdout


def test_a_failed_point_of_a_rewind_fails_again(fast: Path) -> None:
    """The same for a rewind, with what a person did in between."""
    sweep = rewinds.Sweep(Scene(fast, "sqlite", keeping_no_journal))
    with pytest.raises(Violation) as found:
        for point in sweep.points(20):
            sweep.strike_with_person(point)
    for folder in fast.iterdir():
        erase(folder)
    command = printed(found.value)
    assert "--store sqlite" in command and "--person" in command
    again = run(f"{command} --broken keeping_no_journal")
    assert again.returncode == 1 and "broken: killed at" in again.stderr
    assert run(command).returncode == 0


def test_a_point_that_is_none_is_refused() -> None:
    """A point behind the last call says how many there are."""
    done = run("python -m tests.faults.kill singles --point 5000 --seed 1")
    assert done.returncode == 1 and "the script makes" in done.stderr


def test_a_writer_that_makes_fewer_calls_is_done(fast: Path) -> None:
    """It must have done all of its script; one that lacks many calls is a fault."""
    sweep = Sweep(fast, "batches", "synced")
    calls = sweep.length()
    sweep.counted = calls + 1
    sweep.strike(calls + 1, 1)
    assert (sweep.over, sweep.killed) == (1, 0)
    sweep.counted = calls * 2
    with pytest.raises(Violation, match="lives, after"):
        sweep.strike(calls * 2, 1)


def test_a_writer_that_is_over_and_lacks_something_is_found(fast: Path) -> None:
    """A run that ends early and has not done what it acknowledged breaks its promise."""
    sweep = Sweep(fast, "batches", "written", variants.acknowledging_first)
    sweep.counted = sweep.length() + 1
    with pytest.raises(Violation, match="should be one of"):
        sweep.strike(sweep.counted, 1)


def test_a_killed_child_is_not_over() -> None:
    """Only one that lives can be."""
    assert not over(Child(b"", 9), 3, 5, "here")
    assert over(Child(b"...=99", 0), 100, 100, "here")
    with pytest.raises(Violation):
        over(Child(b"...=100", 0), 100, 100, "here")
