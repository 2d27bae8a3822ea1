"""Which process the agent is: the nearest one above a hook that is no shell.

A bracket belongs to the agent's process and not to the hook's, which is gone at once. When
the agent dies, the bracket ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..files.brackets import born

_SHELLS = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "busybox", "env", "timeout", "nice", "tcsh"}
)
_FAR = 16


def agent_process(pid: int | None = None) -> tuple[int, int]:
    """The agent's process and when it was born, looked for upwards from our parent."""
    at = os.getppid() if pid is None else pid
    for _ in range(_FAR):
        name, parent = _described(at)
        if name is None or at <= 1:
            break
        if name.lstrip("-") not in _SHELLS:
            return at, born(at)
        at = parent
    # Nobody is above us any more: our own end is then the bracket's.
    return os.getpid(), born(os.getpid())


def parent_of(pid: int) -> int:
    """The process above another; 0 if that is gone."""
    return _described(pid)[1]


def _described(pid: int) -> tuple[str | None, int]:
    """The name of a process and its parent; None if it is gone."""
    if sys.platform == "linux":
        found = _from_proc(pid)
        if found is not None:
            return found
    return _from_ps(pid)


def _from_proc(pid: int) -> tuple[str | None, int] | None:
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
    except FileNotFoundError:
        return (None, 0) if Path("/proc/self").is_dir() else None
    except OSError:
        return None
    return before.partition(b"(")[2].decode("utf-8", "replace"), int(after.split()[1])


def _from_ps(pid: int) -> tuple[str | None, int]:
    """Where there is no /proc."""
    import subprocess

    told = subprocess.run(
        ["ps", "-o", "ppid=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    parent, _, name = told.stdout.strip().partition(" ")
    if not parent.isdigit():
        return None, 0
    return Path(name.strip()).name, int(parent)
