"""The demo is a promise too."""

from __future__ import annotations

import subprocess
import sys


def test_the_demo_runs_and_loses_nothing() -> None:
    """`make demo` shows every step and ends well."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "backtrail.demo"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for step in (
        "Two turns",
        "s.rewind(",
        "s.undo()",
        "s.fork(",
        "sed -i",
        "s.diff(",
        "kill -9",
        "finds 0 problems",
    ):
        assert step in done.stdout
    assert "\033" not in done.stdout
