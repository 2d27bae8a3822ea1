"""Leases in PostgreSQL: a holder and an end in the head row of the main log.

The server's clock says when a lease ends. Its holder counts by a clock of its own, from before it
asked, and so stops first. One thread renews all leases of a store. Each append of the holder names
it, so that one that lost its lease changes nothing, whatever it believes.

A holder on this machine also has a file locked that bears its name: that shows the others here at
once that it died.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ..._startup.folders import state_folder
from ...errors import NotFound, Owner, SessionBusy, StoreFailed
from ...events import MAIN_LOG
from ..base import Lease
from ..disk import forks
from ..disk.fs import make_directory
from ..disk.locks import busy, file_lease, me
from .appender import Appender, Holding, lapsed
from .link import Execute, Link, Lost
from .spans import find_log

LENGTH = 30.0
"""Seconds after which a lease ends that is not renewed."""

RENEWED = 10.0
"""Seconds after which it is renewed."""

_PAUSE = 0.05

# Not synced: what a crash of the server takes back is found out by the holder's next append.
_LIGHTLY = "WITH c AS (SELECT set_config('synchronous_commit', 'off', true)) "
_UNTIL = "until = clock_timestamp() + make_interval(secs => %s)"
_TAKE = (
    f"{_LIGHTLY}UPDATE backtrail.logs SET holder = %s, owner = %s, {_UNTIL} FROM c "
    "WHERE n = %s AND session IS NOT NULL "
    "AND (holder IS NULL OR holder = %s OR holder = %s OR until <= clock_timestamp()) RETURNING n"
)
_RENEW = (
    f"{_LIGHTLY}UPDATE backtrail.logs SET {_UNTIL} FROM c WHERE n = %s AND holder = %s RETURNING n"
)
_GIVE = (
    f"{_LIGHTLY}UPDATE backtrail.logs SET holder = NULL, owner = NULL, until = NULL FROM c "
    "WHERE n = %s AND holder = %s"
)
_ASK = "SELECT holder, owner, session FROM backtrail.logs WHERE n = %s"


class Leases:
    """The leases that one store holds, and the thread that renews them."""

    def __init__(self, link: Link, scope: str, appender: Appender) -> None:
        self._link = link
        self._scope = scope
        self._held = appender.leases
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """The parent's thread renews the parent's leases."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    @contextmanager
    def lease(self, session_id: str, wait: float) -> Iterator[Lease]:
        """`Store.lease`."""
        _, log = self._link.read(
            lambda execute: find_log(execute, self._scope, session_id, MAIN_LOG)
        )
        if log is None:
            raise NotFound(f"no session `{session_id}`")
        holder, owner, process = os.urandom(16).hex(), me(), os.getpid()
        path, left = _path(holder), False
        with ExitStack() as ending:
            with suppress(OSError):
                make_directory(path.parent)
                ending.callback(lambda: None if left else _unlink(path, process))
                ending.enter_context(file_lease(path, session_id, 0))
            self._take(log.n, session_id, holder, owner, wait)
            try:
                self._watch()
                yield Lease(session_id, owner)
            finally:
                # A forked child does not hold it.
                if os.getpid() == process:
                    self._held.pop(log.n, None)
                    # Where it cannot be given back, as the store is closed, its file stays: not
                    # locked any more, it tells the others here that the holder is gone.
                    left = True
                    with suppress(StoreFailed, ValueError):
                        self._link.read(lambda execute: execute(_GIVE, (log.n, holder)))
                        left = False

    def _take(self, log: int, session_id: str, holder: str, owner: Owner, wait: float) -> None:
        deadline = time.monotonic() + wait
        said = msgspec.json.encode(owner).decode()
        dead = holder
        while True:
            began = time.monotonic()
            values = (holder, said, LENGTH, log, dead, holder)
            row = self._link.read(lambda execute, v=values: execute.one(_TAKE, v))  # type: ignore[misc]
            if row is not None:
                self._held[log] = Holding(holder, began + LENGTH)
                return
            other = self._link.read(lambda execute: execute.one(_ASK, (log,)))
            if other is None or other[2] is None:
                raise NotFound(f"no session `{session_id}`")
            if other[0] is not None and dead != other[0] and _is_dead(other[0], session_id):
                dead = other[0]
                continue
            if time.monotonic() >= deadline:
                raise busy(session_id, _owner(other[1]))
            time.sleep(_PAUSE)

    # --- renewing ----------------------------------------------------------------------------

    def _watch(self) -> None:
        with self._guard:
            if self._thread is None or not self._thread.is_alive():
                self._wake.clear()
                self._thread = threading.Thread(
                    target=self._renew_all, name="backtrail-leases", daemon=True
                )
                self._thread.start()

    def _renew_all(self) -> None:
        while not self._wake.wait(RENEWED):
            for log, holding in list(self._held.items()):
                with suppress(StoreFailed, SessionBusy, ValueError):
                    self._renew(log, holding)
            with self._guard:
                if not self._held:
                    self._thread = None
                    return

    def _renew(self, log: int, holding: Holding) -> None:
        began = time.monotonic()
        if began > holding.until:
            # Too late: another may have had it since.
            return

        def renew(execute: Execute) -> tuple[Any, ...] | None:
            return execute.one(_RENEW, (LENGTH, log, holding.holder))

        try:
            row = self._link.attempt(renew)
        except Lost:
            # There is time for another attempt before it ends.
            return
        if self._held.get(log) != holding:
            return
        if row is None:
            # Another one has it, so every append from now on is refused.
            self._held[log] = holding._replace(until=0.0)
        else:
            self._held[log] = holding._replace(until=began + LENGTH)

    def close(self) -> None:
        """End the thread; leases that are still held end by themselves."""
        self._wake.set()


def _path(holder: str) -> Path:
    return Path(state_folder(), "leases", holder)


def _unlink(path: Path, process: int) -> None:
    if os.getpid() == process:
        path.unlink(missing_ok=True)


def _is_dead(holder: str, session_id: str) -> bool:
    """Whether a holder was a process of this machine, and is no more."""
    path = _path(holder)
    if len(holder) != 32 or not holder.isalnum() or not path.exists():
        return False
    try:
        with file_lease(path, session_id, 0):
            path.unlink(missing_ok=True)
            return True
    except (SessionBusy, NotFound, OSError):
        return False


def _owner(text: str | None) -> Owner:
    try:
        return msgspec.json.decode(text or "", type=Owner)
    except msgspec.MsgspecError:
        return Owner()


__all__ = ["LENGTH", "RENEWED", "Leases", "lapsed"]
