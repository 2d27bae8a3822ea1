"""Counts of lines: by bytes as far as contents begin alike, and by lines from there."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

from backtrail.files.patches import line_counts, unified


def git_lines(content: bytes) -> list[bytes]:
    """Lines end at one character, as git has it."""
    return re.findall(rb"[^\n]*\n|[^\n]+$", content)


def by_lines(before: bytes, after: bytes) -> tuple[int, int]:
    """Lines added and removed, by the longest common subsequence of all lines."""
    old, new = git_lines(before), git_lines(after)
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
        plus, minus = line_counts(before, after)
        least_plus, least_minus = by_lines(before, after)
        assert plus - minus == least_plus - least_minus
        assert plus >= least_plus
        if len(ends) == 1 and not set(lines[:at] + lines[to:]) & set(lines[at:to]):
            assert (plus, minus) == (least_plus, least_minus)


def test_a_patch_is_what_git_apply_takes(tmp_path: Path) -> None:
    """Random texts of few different lines, and ends of every kind; git makes the one the other."""
    rng = random.Random(2)
    for _ in range(60):
        texts = [
            b"".join(rng.choice([b"a", b"b", b"c\r", b"\x0c", b"", b"last"]) + b"\n"
                     for _ in range(rng.randrange(20)))
            for _ in range(2)
        ]  # fmt: skip
        before, after = (text.removesuffix(b"\n") if rng.random() < 0.3 else text for text in texts)
        (tmp_path / "f").write_bytes(before)
        patch = unified(before, after, "f", "f")
        assert bool(patch) == (before != after)
        if patch:
            git = ["git", "apply", "--unidiff-zero", "-"]
            subprocess.run(git, input=patch.encode(), cwd=tmp_path, check=True)
        assert (tmp_path / "f").read_bytes() == after
        plus, minus = line_counts(before, after)
        rows = [line[:1] for line in patch.split("\n")[2:]]
        assert (rows.count("+"), rows.count("-")) == (plus, minus)
