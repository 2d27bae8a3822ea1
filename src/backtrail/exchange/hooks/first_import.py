"""The first import of a project: begun early, and waited for only by a call that needs it.

A hook tries for a while: a small project is done by then. Otherwise a process of its own, of
low priority, goes on where the hook stopped. A call that may change anything waits for the
import, or does it: all calls of a session until one deadline. What runs after that and before
the import is done is not captured whole, and its event says so. Only one process at a time
works on a project; others see that by a lock.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from ...stores.disk.locks import alone
from .places import folder_of

if TYPE_CHECKING:
    from ...files.workspace.snapshot import Log
    from ...files.workspace.workspace import Workspace
    from ...stores.base import Store

SHARE = 0.4
"""The part of a hook's time that it spends on the first import itself."""

_STEP = 0.05
"""Seconds between two looks whether another process is done."""

AGAIN = 60.0
"""Seconds after an import that failed before another is begun."""


def claimed(store: Store, workspace: Workspace) -> AbstractContextManager[bool]:
    """Whether the first import is ours to do, for as long as the context lasts."""
    return alone(folder_of(store) / f"baseline-{workspace.place.n}.lock")


def is_there(store: Store, workspace: Workspace, log: Log, seconds: float) -> bool:
    """Whether the first import is done, after working on it for a while."""
    if not workspace.is_new():
        return True
    if _failed_lately(_failure(store, workspace)):
        return False
    done = _worked(store, workspace, log, time.monotonic() + seconds)
    if done is False:
        go_on(store, os.fsdecode(workspace.root))
    return bool(done)


def _worked(store: Store, workspace: Workspace, log: Log, deadline: float) -> bool | None:
    """Work on the first import until a moment: whether it is done, None if others work on it."""
    from ...files.workspace.scan import Stopped

    with claimed(store, workspace) as ours:
        if not ours:
            return None
        if _failed_lately(_failure(store, workspace)):
            # A process at work on it leaves this mark until it is done, and none is at work.
            return False
        try:
            if workspace.is_new():
                workspace.scan(log, store, rebind=True, stop=lambda: time.monotonic() > deadline)
            return True
        except Stopped:
            return False


def awaited(store: Store, workspace: Workspace, log: Log, seconds: float) -> bool:
    """Whether the first import is done, after waiting for it until the session's deadline.

    That is `seconds` after the first call of the session that had to wait, for all of them.
    """
    left = _left(store, log[1], seconds)
    deadline = time.monotonic() + left
    while workspace.is_new():
        if time.monotonic() >= deadline:
            return False
        done = _worked(store, workspace, log, deadline)
        if done is False:
            if not _failed_lately(_failure(store, workspace)):
                go_on(store, os.fsdecode(workspace.root))
            return False
        if done is None:
            time.sleep(_STEP)
    return True


def _left(store: Store, session_id: str, seconds: float) -> float:
    """How long a session may still wait; its deadline is set by the first that asks."""
    path = folder_of(store) / "waits" / session_id
    path.parent.mkdir(0o700, exist_ok=True)
    deadline = time.time() + seconds
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        try:
            deadline = float(path.read_text("ascii"))
        except (OSError, ValueError):
            return 0
    else:
        with os.fdopen(fd, "w") as file:
            file.write(repr(deadline))
    return max(0, min(seconds, deadline - time.time()))


def forget_wait(store: Store, session_id: str) -> None:
    """Drop the deadline of a session that is over."""
    (folder_of(store) / "waits" / session_id).unlink(missing_ok=True)


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
    """Do the first import in a process of its own, which no hook waits for."""
    from ...stores.due import run_apart

    run_apart("backtrail.exchange.hooks.first_import", store.url, store.scope, cwd)


def run(url: str, scope: str, cwd: str) -> int:
    """Do the first import to its end, however long it takes."""
    from ...errors import BacktrailError
    from ...files.depot import opened
    from ...stores.opening import open_store
    from ...stores.wrapper import store_name
    from .small_files import Miss, note_miss, now

    os.nice(10)
    folder = None
    try:
        with open_store(url, scope=scope) as store, opened(store) as depot:
            folder = folder_of(store)
            with (
                closing(depot.workspace(cwd, store)) as workspace,
                claimed(store, workspace) as ours,
            ):
                if ours and workspace.is_new():
                    failure = _failure(store, workspace)
                    failure.touch(0o600)
                    workspace.scan((store_name(store), "hooks-baseline"), store, rebind=True)
                    failure.unlink()
    except (BacktrailError, OSError) as error:
        note_miss(folder, Miss(now(), "", "baseline", "", "", cwd, str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:4]))
