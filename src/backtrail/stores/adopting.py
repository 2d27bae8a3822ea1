"""A session from elsewhere, with all its logs, as one step: shared by the stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from ..errors import InvalidData, NotFound
from ..events import MAIN_LOG, NewEvent, SessionInfo, check_log
from .batches import Stored, drafts, settle

if TYPE_CHECKING:
    from .base import Store

Logs = Mapping[str, Iterable[NewEvent]]
"""By name: the events of each log, in order, numbered from 1. Each is gone through once."""

_BATCH = 256


def with_main(logs: Logs) -> Logs:
    """The logs in the order given, an empty main log behind them if there is none."""
    return logs if MAIN_LOG in logs else {**logs, MAIN_LOG: ()}


def whole(events: Iterable[NewEvent]) -> Iterator[Stored]:
    """The events of a whole log, checked, encoded and numbered from 1.

    An id that comes twice is `InvalidData`: skipping it would move all numbers behind it.
    """
    ids: set[str] = set()
    head = 0
    waiting = iter(events)
    while batch := list(islice(waiting, _BATCH)):
        _, fresh = settle(drafts(batch), head, lambda _: None, None)
        if len(fresh) < len(batch):
            raise InvalidData(f"an id comes twice among the events {head + 1} and following")
        for stored in fresh:
            if stored.event.id in ids:
                raise InvalidData(f"the id `{stored.event.id}` comes twice in one log")
            ids.add(stored.event.id)
        head += len(batch)
        yield from fresh


def adopt(store: Store, info: SessionInfo, logs: Logs) -> None:
    """Make the session by the plain verbs, and take it back if that fails."""
    for log in logs:
        check_log(log)
    store.create(info)
    try:
        for log, events in logs.items():
            head = 0
            waiting = iter(events)
            while batch := list(islice(waiting, _BATCH)):
                stored = store.append(info.id, batch, log=log, expected=head)
                head += len(batch)
                if stored[-1].seq not in (0, head):
                    raise InvalidData(f"an id comes twice in the log `{log}`")
    except BaseException:
        try:
            store.delete(info.id)
        except NotFound:
            pass
        raise
