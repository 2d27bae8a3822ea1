"""Process starts: wall time of a command from start to end."""

from __future__ import annotations

import os
import statistics
import subprocess

from protocol import Absent, Job, Numbers, clock, serve


def spawn(job: Job) -> Numbers:
    if not os.path.exists(job["command"][0]):
        raise Absent("not installed")
    warm = subprocess.run(job["command"], capture_output=True, text=True)
    if "ModuleNotFoundError" in warm.stderr:
        raise Absent(warm.stderr.splitlines()[-1])
    spent = []
    for _ in range(job["times"]):
        start = clock()
        subprocess.run(job["command"], check=True, stdout=subprocess.DEVNULL)
        spent.append((clock() - start) / 1e6)
    return {"ms": statistics.median(spent)}


if __name__ == "__main__":
    serve(spawn)
