"""Forks of a process that uses SQLite: no thread is within SQLite when it is forked.

SQLite has locks of its own, some for the whole process. A child inherits them as they are,
and would wait for ever for one that another thread held. So a fork waits until every open
database rests and none is opened or closed; see `Database.rest`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    import apsw

    from .database import Database

PATIENCE = 5.0
"""Seconds that a fork waits for threads at work; then it goes on without a rest."""

_STEP = 0.0002

# How often a hook begins again that is interrupted.
_TRIES = 100


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
            settle()
            time.sleep(_STEP)

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._inside -= 1

    def shut(self) -> None:
        """Let no thread in, and wait until none is inside."""
        with self._guard:
            self._shut = True
        deadline = time.monotonic() + PATIENCE
        while self._inside and time.monotonic() < deadline:
            time.sleep(_STEP)

    def reopen(self) -> None:
        with self._guard:
            self._shut = False


doorway = _Doorway()
"""A thread that opens or closes a database is in here meanwhile."""

_all: WeakSet[Database] = WeakSet()
_leaked: list[apsw.Connection] = []
_resting: list[Database] = []
_forking = threading.Lock()

_ending = threading.RLock()

_forkers: dict[int, bool] = {}
"""The thread that forks, and whether it has `_forking`."""

_over: set[int] = set()
"""The threads that have forked since they last began to."""


def register(database: Database) -> None:
    """Let forks wait for this database while it lives."""
    _all.add(database)


def leak(connections: list[apsw.Connection]) -> None:
    """Never close these: one was at work in a thread that is not here, and closing could hang."""
    _leaked.extend(connections)


def _insisting(step: Callable[[], None]) -> Callable[[], None]:
    """Do all of a step, which may be begun again, whatever interrupts it.

    Python drops what a hook raises, and forks all the same.
    """

    def hook() -> None:
        interrupt: BaseException | None = None
        for _ in range(_TRIES):
            try:
                step()
                break
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    return hook


def _before_fork() -> None:
    me = threading.get_ident()
    settle()
    _over.discard(me)
    if me in _forkers:
        # Interrupted, and begun again.
        _go_on()
    else:
        # One fork at a time, so that two do not wait for each other's stores. One call of C
        # code takes the lock and notes it.
        _forkers.update(zip((me,), map(_forking.acquire, (True,), (20.0,)), strict=False))
    doorway.shut()
    for database in list(_all):
        locked = any(other.path == database.path for other in _resting)
        # Noted first: what an interrupt leaves half done is undone all the same.
        _resting.append(database)
        if not database.rest(locked):
            _resting.remove(database)


def _go_on() -> None:
    while _resting:
        _resting[-1].go_on()
        del _resting[-1]


def _after_in_parent() -> None:
    _end(threading.get_ident())


def _end(forker: int) -> None:
    with _ending:
        if forker not in _forkers:
            return
        _go_on()
        doorway.reopen()
        if forker in _forkers:
            taken = _forkers[forker]
            # No interrupt comes between this and the release.
            del _forkers[forker]
            if taken:
                _forking.release()


def settle() -> None:
    """End a fork that is over, if an interrupt kept its own thread from it."""
    for forker in list(_forkers):
        if forker in _over:
            _end(forker)


def _after_in_child() -> None:
    global _ending, _forking
    _ending, _forking = threading.RLock(), threading.Lock()
    _forkers.clear()
    doorway.begin_anew()
    rested, _resting[:] = list(_resting), []
    for database in list(_all):
        database.begin_anew(database in rested)


os.register_at_fork(
    before=_insisting(_before_fork),
    after_in_parent=_insisting(_after_in_parent),
    after_in_child=_after_in_child,
)
# An interrupt that comes as a hook begins keeps it from doing anything, so that the fork is
# over is said by C code alone: `settle` is for the threads that wait then.
os.register_at_fork(after_in_parent=map(_over.add, iter(threading.get_ident, 0)).__next__)
