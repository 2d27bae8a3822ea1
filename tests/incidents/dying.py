"""A child that goes on with a session of ours, and dies in the middle of something.

`python -m tests.incidents.dying URL ID ROOT checkpoint|restore|call WHAT STEP`: it dies
before the STEP-th time that a restore changes a name or a mode, or in a checkpoint when a
part of the contents is stored, or in a call when its command is done. It ends at once, as
by SIGKILL: nothing is flushed, no lock is given back by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from backtrail import Session
from backtrail.files import beneath
from backtrail.files.contents import sqlite

DIED = 77
"""How a child says that it died where it was to."""

NAMES = ("rename", "link", "symlink", "mkdir", "unlink", "rmdir", "fchmod")
"""The calls of `os` with which a restore changes names and modes."""


def main(url: str, session_id: str, root: str, verb: str, what: str, step: str) -> None:
    """Do it, and die."""
    with Session.open(url, session_id, cwd=root) as session:
        if verb == "call":
            with session.tool("bash", {"command": what}):
                subprocess.run(["sh", "-c", what], cwd=root, check=True)
                die()
        elif verb == "restore":
            _die_at_a_name(int(step))
            session.rewind(what)
        else:
            sqlite.goes_on = die  # type: ignore[assignment, attr-defined]
            session.checkpoint()


def die(*_: object) -> NoReturn:
    """End here."""
    os._exit(DIED)


def _die_at_a_name(left: int) -> None:
    """Die before the restore changes so many names."""

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*words: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                die()
            return act(*words, **named)

        return acting

    for name in NAMES:
        setattr(os, name, counted(getattr(os, name)))
    if beneath.system.renameat2 is not None:
        beneath.system.renameat2 = counted(beneath.system.renameat2)


if __name__ == "__main__":
    main(*sys.argv[1:])
