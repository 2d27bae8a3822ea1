"""The first import of a project, which no hook waits for.

A hook tries for a while: a small project is done by then. Otherwise a process of its own, of
low priority, goes on where the hook stopped, and calls are not captured whole until it is
done. Only one at a time works on a project; others see that by a lock.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .places import folder_of

if TYPE_CHECKING:
    from ..files.looking import Log
    from ..files.workspace import Workspace
    from ..stores.base import Store

SHARE = 0.4
"""The part of a hook's time that it spends on the first import itself."""

AGAIN = 60.0
"""Seconds after an import that failed before another is begun."""


@contextmanager
def claimed(store: Store, workspace: Workspace) -> Iterator[bool]:
    """Whether the first import is ours to do, for as long as the context lasts."""
    path = folder_of(store) / f"baseline-{workspace.place.n}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


def is_there(store: Store, workspace: Workspace, log: Log, seconds: float) -> bool:
    """Whether the first import is done, after working on it for a while."""
    if not workspace.is_new():
        return True
    from ..files.scan import Stopped

    if _failed_lately(_failure(store, workspace)):
        return False
    deadline = time.monotonic() + seconds
    with claimed(store, workspace) as ours:
        if not ours:
            return False
        try:
            workspace.scan(log, store, rebind=True, stop=lambda: time.monotonic() > deadline)
            return True
        except Stopped:
            pass
    go_on(store, os.fsdecode(workspace.root))
    return False


def _failure(store: Store, workspace: Workspace) -> Path:
    """The file that says that an import failed, by its time."""
    return folder_of(store) / f"baseline-{workspace.place.n}.failed"


def _failed_lately(path: Path) -> bool:
    """Whether trying again would only cost the agent's time."""
    try:
        return time.time() - path.stat().st_mtime < AGAIN
    except OSError:
        return False


def go_on(store: Store, cwd: str) -> None:
    """Do the first import in a process of its own, which nobody waits for."""
    import subprocess

    # The shell ends at once, so that the import is nobody's child: no one has to ask for it.
    subprocess.run(
        [
            *("/bin/sh", "-c", '"$@" &', "sh"),
            *(sys.executable, "-m", "backtrail.hooks.baseline", store.url, store.scope, cwd),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        check=False,
    )


def run(url: str, scope: str, cwd: str) -> int:
    """The first import, to its end, whatever time it takes."""
    from ..errors import BacktrailError
    from ..files.depot import Depot
    from ..stores.opening import open_store
    from .misses import Miss, note, now

    os.nice(10)
    folder = None
    try:
        with open_store(url, scope=scope) as store:
            folder = folder_of(store)
            depot = Depot.of(store)
            try:
                workspace = depot.workspace(cwd, store)
                try:
                    with claimed(store, workspace) as ours:
                        if ours and workspace.is_new():
                            failure = _failure(store, workspace)
                            failure.touch(0o600)
                            workspace.scan((store.url, "hooks-baseline"), store, rebind=True)
                            failure.unlink()
                finally:
                    workspace.close()
            finally:
                depot.close()
    except (BacktrailError, OSError) as error:
        note(folder, Miss(now(), "", "baseline", "", "", cwd, str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:4]))
