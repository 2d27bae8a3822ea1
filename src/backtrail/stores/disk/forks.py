"""What a forked child must let go of: locks held elsewhere, threads that are not there.

Anything with an `after_fork` method registers itself. In the child it is called once,
before any other code, and makes the object usable anew: own locks, own file descriptors,
nothing queued twice.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """Something that must know when its process was forked."""

    def after_fork(self) -> None:
        """Forget the parent's threads, locks and descriptors."""


_aware: WeakSet[ForkAware] = WeakSet()


def register(thing: ForkAware) -> None:
    """Call `thing.after_fork()` in every forked child while `thing` lives."""
    _aware.add(thing)


def _after_fork() -> None:
    for thing in list(_aware):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_fork)
