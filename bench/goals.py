"""What a figure is compared with, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .running import Result


@dataclass(frozen=True)
class Goal:
    """Our figure divided by the best of others is at most, or at least, a number.

    Without `against` the figure is a ratio by itself. Without a number the ratio is only shown.
    """

    row: str
    ours: str
    metric: str
    against: tuple[str, ...] = ()
    at_most: float | None = None
    at_least: float | None = None

    @property
    def binding(self) -> bool:
        """Whether there is something to hold."""
        return self.at_most is not None or self.at_least is not None


@dataclass(frozen=True)
class Verdict:
    """A goal, the figures it was judged by, and whether it holds; None: nothing to judge."""

    goal: Goal
    ours: float | None = None
    best: str = ""
    other: float | None = None
    ratio: float | None = None
    passed: bool | None = None

    @property
    def word(self) -> str:
        if self.passed is None:
            return "no figure" if self.ratio is None else ""
        return "PASS" if self.passed else "MISS"


def judge(goal: Goal, results: Mapping[str, Result]) -> Verdict:
    """Compare medians over the rounds."""
    ours = _median(results, goal.ours, goal.metric)
    if ours is None:
        return Verdict(goal)
    if not goal.against:
        return Verdict(goal, ours, ratio=ours, passed=_holds(goal, ours))
    found = {name: _median(results, name, goal.metric) for name in goal.against}
    known = {name: value for name, value in found.items() if value}
    if not known:
        return Verdict(goal, ours)
    pick = min if goal.at_most is not None else max
    best = pick(known, key=lambda name: known[name])
    ratio = ours / known[best]
    return Verdict(goal, ours, best, known[best], ratio, _holds(goal, ratio))


def _median(results: Mapping[str, Result], name: str, metric: str) -> float | None:
    return results[name].median(metric) if name in results else None


def _holds(goal: Goal, ratio: float) -> bool | None:
    if goal.at_most is not None:
        return ratio <= goal.at_most
    return None if goal.at_least is None else ratio >= goal.at_least
