"""The sessions that this process has open, for the removal of old ones."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet

from .base import Store


class Open(Protocol):
    """What is known of an open session."""

    id: str
    store: Store


_sessions: WeakSet[Open] = WeakSet()
_guard = threading.Lock()


def begin(session: Open) -> None:
    """A session is open from now on, until it is closed or forgotten."""
    with _guard:
        _sessions.add(session)


def end(session: Open) -> None:
    """A session is closed."""
    with _guard:
        _sessions.discard(session)


def is_open(store: Store, session_id: str) -> bool:
    """Whether this process has the session open, in this store or another on its place."""
    place = (store.url, store.scope, session_id)
    with _guard:
        known = list(_sessions)
    return any((one.store.url, one.store.scope, one.id) == place for one in known)


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
