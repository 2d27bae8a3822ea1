"""One environment for each peer, made on first use and kept in a folder of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".benchmarks"
OWN = Path(sys.executable)

Say = Callable[[str], None]


def peers() -> dict[str, str]:
    """What is installed into the environment of each peer."""
    lines = (ROOT / "bench" / "peers.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip() and line[0] != "#")
    return {name: requirement.strip() for name, requirement in pairs}


def interpreter(peer: str | None) -> Path:
    """The Python of a peer's environment, or our own."""
    return OWN if peer is None else CACHE / "envs" / peer / "bin" / "python"


def prepare(names: set[str], say: Say) -> None:
    """Make the environments that are missing or pinned to another version, and compile."""
    required = peers()
    for name in sorted(names):
        stamp = CACHE / "envs" / name / "installed.txt"
        if stamp.exists() and stamp.read_text(encoding="utf-8") == required[name]:
            continue
        say(f"installing {required[name]}")
        _install(name, required[name])
        stamp.write_text(required[name], encoding="utf-8")
    _compile(OWN, [ROOT / "src", ROOT / "bench"])


def _install(name: str, requirement: str) -> None:
    folder = CACHE / "envs" / name
    shutil.rmtree(folder, ignore_errors=True)
    uv = OWN.parent / "uv"
    python = interpreter(name)
    if uv.exists():
        _run([uv, "venv", "--quiet", "--python", OWN, folder])
        _run([uv, "pip", "install", "--quiet", "--python", python, *requirement.split()])
    else:
        _run([OWN, "-m", "venv", folder])
        _run([python, "-m", "pip", "install", "--quiet", *requirement.split()])
    _compile(python, [folder / "lib"])


def _compile(python: Path, folders: list[Path]) -> None:
    # Some packages ship templates that are no Python; those may fail.
    command = [python, "-m", "compileall", "-q", "-j", "0", *folders]
    subprocess.run(command, env=environment(), check=False, capture_output=True)


def _run(command: list[str | Path]) -> None:
    subprocess.run(command, env=environment(), check=True)


def environment(folder: Path | None = None) -> dict[str, str]:
    """The variables of a contender: none that change Python, and no home of a person."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "BACKTRAIL", "CLAUDE", "OPENAI", "VIRTUAL_ENV"))
    }
    kept["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    if folder is not None:
        kept["HOME"] = str(folder)
    return kept
