"""What people do with a session that a framework wrote: the command line, as they run it."""

from __future__ import annotations

import os
import subprocess
import sys


def cli(url: str, *words: str) -> str:
    """What `backtrail` prints on a store."""
    done = subprocess.run(
        [sys.executable, "-m", "backtrail", *words],
        env={**os.environ, "BACKTRAIL_STORE": url, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
