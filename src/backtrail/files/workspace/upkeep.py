"""Upkeep of a store in a process of its own: old sessions go, and contents that none needs.

`stores/due.py` begins it. It has low priority and half an hour; one at a time works on a place
of contents. It may be killed at any moment: whatever was not done is done by the next one.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from ...errors import BacktrailError, NotFound
from ...stores.disk.locks import alone
from ...stores.opening import open_store
from ...stores.retention import note_gone, sweep_daily
from ..contents.collect import collect
from ..depot import has_contents

if TYPE_CHECKING:
    from ...stores.base import Store

LONGEST = 1800
"""Seconds after which the process ends, whatever it does."""


def run(url: str, scope: str, blobs: str, retention: str) -> int:
    """Sweep and collect once, and note beside the store what went."""
    os.nice(10)
    # No handler is set: the process ends.
    signal.alarm(LONGEST)
    try:
        with open_store(url, scope=scope, blobs=blobs or None, create=False) as store:
            try:
                with _alone(store) as ours:
                    if ours:
                        _keep_up(store, retention)
            except (BacktrailError, OSError) as error:
                note_gone(store, {"failed": str(error)})
                return 1
    except NotFound:
        # The store is gone, and all that was to be done with it.
        return 0
    return 0


def _keep_up(store: Store, retention: str) -> None:
    if retention:
        sweep_daily(store, retention)
    if not has_contents(store):
        return
    done = collect(store)
    if done.blobs or done.sessions or done.points:
        names = ("sessions", "points", "blobs", "bytes", "used", "budget")
        row = done.to_dict()
        note_gone(store, {"collected": {name: row[name] for name in names}})


def _alone(store: Store) -> AbstractContextManager[bool]:
    """Whether no other process does this, for as long as the block lasts."""
    if store.contents is None or not store.contents.is_dir():
        return nullcontext(True)
    return alone(store.contents / "upkeep-lock")


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:5]))
