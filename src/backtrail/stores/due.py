"""When contents of files are to be collected next, noted beside them, and how that begins.

Deleting a session, or coming near the budget, notes a time in the file `upkeep`. A process that is
done with a store later and finds that time past begins a collection in a process of its own,
and waits for nothing. A note that is lost costs a delay, never data.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..events import Json
    from .base import Store

NAME = "upkeep"
"""The file beside the contents that says when they are to be collected."""

SWITCH = "BACKTRAIL_COLLECT"
"""The variable of the environment that says `off` where nothing is to be collected unasked."""

GRACE = 3600.0
"""Seconds for which contents without references are spared: one may be on its way."""

AGAIN = 600.0
"""Seconds after which a collection that was begun, and ended nothing, is begun again."""

HELD = 6 * 3600.0
"""The same where the last collection could not make room."""

ANY = ""
"""The name under which the budget is noted: whichever store collects may make room."""

_LONGEST = 1 << 16

Plan = dict[str, list[float]]
"""For each store the moments at which its contents are to be collected."""


def note(store: Store, name: str, seconds: float) -> None:
    """Have contents collected in so many seconds, or before that, by the next to come by."""
    at = time.time() + seconds

    def later(plan: Plan, held: float) -> tuple[Plan, float]:
        known = plan.get(name, [])
        # One that is past may be under way, and not see what was deleted meanwhile.
        if not any(time.time() < moment <= at for moment in known):
            plan[name] = [*known[-2:], at]
        return plan, min(held, at)

    _change(store.contents, later)


def note_full(folder: Path) -> None:
    """Have the contents in a folder collected now: there is hardly any room left."""

    def now(plan: Plan, held: float) -> tuple[Plan, float]:
        return {**plan, ANY: plan.get(ANY) or [time.time()]}, held

    _change(folder, now)


def settled(store: Store, began: float, *, full: bool) -> None:
    """Drop what was due when a collection began; `full`: it could not make enough room."""

    def done(plan: Plan, held: float) -> tuple[Plan, float]:
        for name in (name_of(store), ANY):
            plan[name] = [moment for moment in plan.get(name, []) if moment > began]
        left = {name: moments for name, moments in plan.items() if moments}
        # What was deleted less than an hour ago was spared, and makes room in its time.
        deleted = [moment for name, moments in left.items() if name != ANY for moment in moments]
        return left, min([time.time() + (HELD if full else 0), *deleted])

    _change(store.contents, done)


def start(store: Store, retention: str | None = None, env: Mapping[str, str] | None = None) -> bool:
    """Begin a collection in a process of its own, if one is due; whether it was begun.

    `env` is the environment of that process, by default ours.
    """
    scheme = store.url.partition(":")[0]
    if scheme in ("", "memory", "null") or os.environ.get(SWITCH) == "off":
        return False
    if not _claimed(store) and not (retention and _is_old(store, retention)):
        return False
    blobs = store.contents_url or str(store.contents or "")
    words = (store.url, store.scope, blobs, retention or "")
    if store.environment:
        env = {**(os.environ if env is None else env), **store.environment}
    run_apart("backtrail.files.workspace.upkeep", *words, env=env)
    return True


def run_apart(module: str, *words: str, env: Mapping[str, str] | None = None) -> None:
    """Run a module of ours in a process of its own, which is not waited for."""
    import subprocess

    # The shell ends at once, so that the process has no parent that would have to ask for it.
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-m", module, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env=env,
        check=False,
    )


def name_of(store: Store) -> str:
    """The name under which a store's deletions are noted; several may share the contents."""
    return f"{store.url}#{store.scope}"


def _claimed(store: Store) -> bool:
    """Whether a collection is due, and ours to begin."""
    # Asked by every process that closes a store: first without a lock.
    if not _is_due(store, *_read(store.contents)):
        return False
    ours = False

    def claim(plan: Plan, held: float) -> tuple[Plan, float]:
        nonlocal ours
        ours = _is_due(store, plan, held)
        return plan, time.time() + AGAIN if ours else held

    _change(store.contents, claim)
    return ours


def _is_due(store: Store, plan: Plan, held: float) -> bool:
    moments = [*plan.get(name_of(store), ()), *plan.get(ANY, ())]
    return bool(moments) and max(min(moments), held) <= time.time()


def _is_old(store: Store, retention: str) -> bool:
    from .retention import is_due

    return is_due(store, retention)


def _read(folder: Path | None) -> tuple[Plan, float]:
    if folder is None:
        return {}, 0
    try:
        fd = _opened(folder, os.O_RDONLY)
    except OSError:
        return {}, 0
    try:
        return _parsed(os.read(fd, _LONGEST))
    finally:
        os.close(fd)


def _opened(folder: Path, flags: int) -> int:
    """The file, opened; `OSError` where a pipe has its name, which must not be waited for."""
    # To join paths takes longer than to find that there is nothing.
    fd = os.open(f"{folder}/{NAME}", flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(folder / NAME))


_DATABASES = ("blobs.db", "catalogue.db")
"""What lies in a folder for contents; without the first where these are elsewhere."""


def _change(folder: Path | None, change: Callable[[Plan, float], tuple[Plan, float]]) -> None:
    """Change what is noted beside contents, if there are any.

    What keeps the note from being written keeps nothing else from being done.
    """
    if folder is None or not any(map(os.path.exists, (folder / name for name in _DATABASES))):
        return
    with suppress(OSError):
        fd = _opened(folder, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            plan, held = change(*_parsed(os.read(fd, _LONGEST)))
            content = _encoded(plan, held)
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
        finally:
            os.close(fd)


def _encoded(plan: Plan, held: float) -> bytes:
    import msgspec

    return msgspec.json.encode({"due": plan, "not_before": held})


def _parsed(content: bytes) -> tuple[Plan, float]:
    """What a file says; nothing where that is not known."""
    import msgspec

    try:
        found: dict[str, Json] = msgspec.json.decode(content, type=dict)
        plan = msgspec.convert(found.get("due"), type=Plan)
        return plan, msgspec.convert(found.get("not_before"), type=float)
    except msgspec.MsgspecError:
        return {}, 0
