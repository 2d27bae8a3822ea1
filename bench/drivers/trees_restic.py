"""Snapshots by restic, a backup program in Go: compressed, encrypted, in packs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from protocol import Absent, Job, Numbers, serve
from trees import build, measured, tree_of, used


def trees(job: Job) -> Numbers:
    if shutil.which("restic") is None:
        raise Absent("restic is not installed")
    build(job)
    repository = Path(job["folder"], "repository")
    variables = {**os.environ, "RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": str(repository)}

    def restic(*arguments: str) -> None:
        subprocess.run(
            ["restic", "-q", *arguments], check=True, env=variables, capture_output=True,
            cwd=tree_of(job),
        )  # fmt: skip

    restic("init")
    return measured(job, lambda: restic("backup", "."), lambda: used(repository))


if __name__ == "__main__":
    serve(trees)
