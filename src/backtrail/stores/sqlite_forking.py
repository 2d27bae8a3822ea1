"""Forks of a process that uses SQLite: no thread is within SQLite when it is forked.

SQLite has locks of its own, some for the whole process. A child inherits them as they are,
and would wait for ever for one that another thread held. So a fork waits until every open
database rests and nobody opens or closes one; see `Database.rest`.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    import apsw

    from .sqlite_connections import Database

PATIENCE = 5.0
"""Seconds that a fork waits for whoever is at work; then it goes on without a rest."""

_STEP = 0.0002


class _Doorway:
    """Counts the threads that open or close a database. Not to be entered twice."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        self._guard = threading.Lock()
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        while True:
            with self._guard:
                if not self._shut:
                    self._inside += 1
                    return
            time.sleep(_STEP)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._guard:
            self._inside -= 1

    def shut(self) -> None:
        """Let nobody in, and wait until nobody is inside."""
        with self._guard:
            self._shut = True
        deadline = time.monotonic() + PATIENCE
        while self._inside and time.monotonic() < deadline:
            time.sleep(_STEP)

    def reopen(self) -> None:
        with self._guard:
            self._shut = False


doorway = _Doorway()
"""Whoever opens or closes a database is in here meanwhile."""

_all: WeakSet[Database] = WeakSet()
_leaked: list[apsw.Connection] = []
_resting: list[Database] = []
_forking = threading.Lock()


def register(database: Database) -> None:
    """Let forks wait for this database while it lives."""
    _all.add(database)


def leak(connections: list[apsw.Connection]) -> None:
    """Never close these: one was at work in a thread that is not here, and closing could hang."""
    _leaked.extend(connections)


def _before_fork() -> None:
    # One fork at a time, so that two do not wait for each other's stores.
    _forking.acquire(timeout=20)
    doorway.shut()
    for database in list(_all):
        if database.rest(any(other.path == database.path for other in _resting)):
            _resting.append(database)


def _after_in_parent() -> None:
    while _resting:
        _resting.pop().go_on()
    doorway.reopen()
    if _forking.locked():
        _forking.release()


def _after_in_child() -> None:
    global _forking
    _forking = threading.Lock()
    doorway.begin_anew()
    rested, _resting[:] = list(_resting), []
    for database in list(_all):
        database.begin_anew(database in rested)


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
