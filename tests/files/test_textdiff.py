"""Counts of lines: by bytes as far as contents begin alike, and by lines from there."""

from __future__ import annotations

import random

from backtrail.files.differences import line_counts


def by_lines(before: bytes, after: bytes) -> tuple[int, int]:
    """Lines added and removed, by the longest common subsequence of all lines."""
    old, new = before.splitlines(), after.splitlines()
    longest = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, left in enumerate(old, 1):
        for j, right in enumerate(new, 1):
            one = longest[i - 1][j - 1] + 1 if left == right else 0
            longest[i][j] = max(one, longest[i - 1][j], longest[i][j - 1])
    return len(new) - longest[-1][-1], len(old) - longest[-1][-1]


def test_one_change_is_counted_wherever_it_is() -> None:
    """One run of lines replaced by another, with any ends of lines, is counted as it is."""
    rng = random.Random(1)
    for _ in range(2000):
        ends = rng.choice([[b"\n"], [b"\r\n"], [b"\n", b"\r\n", b"\r", b"\n\n"]])
        names = [b"line %d" % n for n in range(40)]
        lines = [
            rng.choice([*names, b"", b"x"]) + rng.choice(ends) for _ in range(rng.randrange(12))
        ]
        at, to = sorted(rng.randrange(len(lines) + 1) for _ in range(2))
        new = [b"new %d" % n + rng.choice(ends) for n in range(rng.randrange(3))]
        before, after = b"".join(lines), b"".join([*lines[:at], *new, *lines[to:]])
        if rng.random() < 0.2:
            after = after.rstrip(b"\r\n")
        if before.splitlines() == after.splitlines():
            assert line_counts(before, after) == ((0, 0) if before == after else (1, 1))
            continue
        plus, minus = line_counts(before, after)
        least_plus, least_minus = by_lines(before, after)
        assert plus - minus == least_plus - least_minus
        assert plus >= least_plus
        if not set(lines[:at] + lines[to:]) & set(lines[at:to]):
            assert (plus, minus) == (least_plus, least_minus)
