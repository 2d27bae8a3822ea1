"""Verbs of `Store` that are derived from the abstract ones, where they take more than a line.

Loaded when one of them is first used on a store that knows no faster way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from ..errors import NotFound
from ..events import Checkpoint, Event, Problem, check_text
from ..events.history import INHERITED, Mark
from .records import check_order, checkpoint_of, is_deleted

if TYPE_CHECKING:
    from .base import Store


def outline(
    store: Store, session_id: str, kinds: Collection[str], after: int, until: int | None
) -> list[Mark]:
    """`Store.outline`, by reading all."""
    events = store.read(session_id, after=after, until=until)
    marks = (Mark(event.seq, event.kind, event.follows) for event in events)
    return [mark for mark in marks if mark.follows is not None or mark.kind in kinds]


def checkpoint(store: Store, id: str) -> Checkpoint:
    """`Store.checkpoint`, by looking through all sessions."""
    copied: Checkpoint | None = None
    for info in reversed(store.sessions()):
        for event in store.read(info.id, kinds=("checkpoint",)):
            if event.id == id and not is_deleted(store, info.id, id):
                found = checkpoint_of(event, info.id)
                if not event.data.get(INHERITED):
                    return found
                copied = copied or found
    if copied is None:
        raise NotFound(f"no checkpoint `{id}` in this store")
    return copied


def locate(store: Store, id: str) -> tuple[str, str, int]:
    """`Store.locate`, by asking every log."""
    check_text(id, "an event id")
    for info in reversed(store.sessions()):
        try:
            logs = store.logs(info.id)
        except NotFound:
            continue
        for log in logs:
            try:
                return info.id, log, store.find(info.id, id, log=log).seq
            except NotFound:
                continue
    raise NotFound(f"no event `{id}` in this store")


def verify(store: Store) -> list[Problem]:
    """`Store.verify`, by reading all."""
    problems: list[Problem] = []
    for info in store.sessions():
        for log in store.logs(info.id):
            problems.extend(check_order(info.id, log, store.read(info.id, log=log)))
    return problems


def follow(
    store: Store,
    session_id: str,
    after: int | None,
    log: str,
    poll: float,
    stop: Callable[[], bool] | None,
) -> Iterator[Event]:
    """`Store.follow`, by looking again and again."""
    newest = next(store.read(session_id, log=log, reverse=True, limit=1), None)
    start = after if after is not None else newest.seq if newest else 0

    def events(after: int) -> Iterator[Event]:
        while True:
            for event in store.read(session_id, log=log, after=after):
                after = event.seq
                yield event
            if stop is not None and stop():
                return
            time.sleep(poll)

    return events(start)
