"""Which directories may be watched over: a project, not a home or a whole file system."""

from __future__ import annotations

import os

from ..errors import Unsafe


def refuse_broad(root: str) -> None:
    """Refuse to watch over a whole home or file system."""
    path = os.path.realpath(root)
    home = os.path.realpath(os.path.expanduser("~"))
    broad = {"/", home, *(os.path.join(home, n) for n in ("Desktop", "Documents", "Downloads"))}
    if path in broad or home.startswith(path + "/") or _is_file_system(path):
        raise Unsafe(
            f"{path} is too much to watch over: choose a project folder, or say files='force'"
        )


def _is_file_system(path: str) -> bool:
    """Whether a path is the root of a file system, and not a part of one mounted there."""
    if not os.path.ismount(path):
        return False
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            rows = [line.split() for line in mounts]
    except OSError:
        return True
    roots = [row[3] for row in rows if row[4] == path]
    return not roots or roots[-1] == "/"
