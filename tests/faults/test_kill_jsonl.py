"""A writer killed by SIGKILL at any call loses nothing it has acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults import variants
from tests.faults.kill import Sweep, Violation, apart, shown, sweeps
from tests.faults.variants import Broken

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def check(made: list[Sweep], points: int) -> None:
    """Every point must have ended its child, and the interesting cases must have come up."""
    assert sum(sweep.points for sweep in made) == points
    assert sum(sweep.killed + sweep.over for sweep in made) == points
    assert sum(sweep.over for sweep in made) <= points / 50, shown(made)
    assert sum(sweep.torn for sweep in made) > points / 50, shown(made)
    assert sum(sweep.again for sweep in made) > points / 50, shown(made)


@pytest.mark.parametrize("part", range(2))
def test_kill_loses_nothing_acknowledged(fast: Path, part: int) -> None:
    """1,000 kill points: acknowledged means there, and half done means not there."""
    check(apart(sweeps, fast, 501 + part), 501 + part)


@pytest.mark.torture
def test_kill_ten_thousand_times(fast: Path) -> None:
    """The same at 10,000 points."""
    check(apart(sweeps, fast, 10_000), 10_000)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (variants.acknowledging_first, "should be one of"),
        (variants.not_sealing, "new damage|last lines"),
        (variants.reusing_numbers, "is used again"),
        (variants.stopping_at_bad_line, "after three more events"),
        (variants.not_dropping_torn_batches, "should be one of"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_kill_finds_broken_stores(fast: Path, broken: Broken, complaint: str) -> None:
    """The sweep fails on a store that breaks a promise."""
    with pytest.raises(Violation, match=complaint):
        sweeps(fast, 1500, broken, ["singles", "batches"])
