"""Which process the agent is: the nearest one above a hook that is no shell.

A bracket belongs to the agent's process and not to the hook's, which is gone at once. When
the agent dies, the bracket ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...files.changes.brackets import born
from .dialects import digest_of

if TYPE_CHECKING:
    from ...files.changes.brackets import Process

_SHELLS = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "busybox", "env", "timeout", "nice", "tcsh"}
)
_FAR = 16
_CLOCK = 1.5
"""Seconds by which the time of a boot, and so of a process, may be off."""


def agent_process() -> tuple[int, int]:
    """The agent's process and when it was born, looked for upwards from our parent."""
    at = os.getppid()
    for _ in range(_FAR):
        name, parent = _described(at)
        if name is None or at <= 1:
            break
        if name.lstrip("-") not in _SHELLS:
            return at, born(at)
        at = parent
    # No process is above us any more: our own end is then the bracket's.
    return os.getpid(), born(os.getpid())


def parent_of(pid: int) -> int:
    """The process above another; 0 if that is gone."""
    return _described(pid)[1]


def running(agent: int, gist: str, since: float) -> Process | None:
    """The process below an agent that runs a command of this gist and began `since` then.

    A command is an argument of the shell, and of the sandbox around it. Without /proc it is
    not found.
    """
    from ...files.changes.brackets import Process

    found: list[Process] = []
    for name in os.listdir("/proc") if Path("/proc/self").is_dir() else ():
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            arguments = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(digest_of(one.decode("utf-8", "replace")) == gist for one in arguments):
            pid = int(name)
            began = born(pid)
            when = _boot_time() + began / os.sysconf("SC_CLK_TCK")
            if began and when >= since - _CLOCK and _is_below(pid, agent):
                found.append(Process(pid, began, when))
    return min(found, key=lambda one: one.born, default=None)


def _is_below(pid: int, above: int) -> bool:
    for _ in range(_FAR):
        pid = parent_of(pid)
        if pid <= 1:
            return pid == above
        if pid == above:
            return True
    return False


def _boot_time() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


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

    printed = subprocess.run(
        ["ps", "-o", "ppid=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    parent, _, name = printed.stdout.strip().partition(" ")
    if not parent.isdigit():
        return None, 0
    return Path(name.strip()).name, int(parent)
