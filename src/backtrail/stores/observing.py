"""Telemetry of appends, put around a store's `append`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from .. import telemetry
from ..events import MAIN_LOG, Event, NewEvent
from .base import Store
from .batches import Call, Outcome

Append = TypeVar("Append", bound=Callable[..., list[Event]])
Each = Callable[[Any, Sequence[Call]], list[Outcome]]


def observed(append: Append) -> Append:
    """Emit `store.append`, or `store.error`, while somebody listens."""

    @functools.wraps(append)
    def wrapper(
        self: Store,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
    ) -> list[Event]:
        if not telemetry.listeners:
            return append(self, session_id, events, log=log, expected=expected)
        began = time.perf_counter()
        try:
            result = append(self, session_id, events, log=log, expected=expected)
        except Exception as error:
            _emit(self, session_id, log, len(events), began, error)
            raise
        _emit(self, session_id, log, len(result), began, result)
        return result

    return cast(Append, wrapper)


def observed_each(append_each: Each) -> Each:
    """The same for each of several calls."""

    @functools.wraps(append_each)
    def wrapper(self: Store, calls: Sequence[Call]) -> list[Outcome]:
        if not telemetry.listeners:
            return append_each(self, calls)
        from .queue import Postponed

        began = time.perf_counter()
        outcomes = append_each(self, calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            if not (call.quiet or isinstance(outcome, Postponed)):
                _emit(self, call.session_id, call.log, len(call.batch), began, outcome)
        return outcomes

    return wrapper


def _emit(
    store: Store, session_id: str, log: str, count: int, began: float, outcome: Outcome
) -> None:
    numbers = {"count": count, "duration": time.perf_counter() - began}
    metadata = {"session_id": session_id, "store": type(store).__name__, "log": log}
    if isinstance(outcome, BaseException):
        failure = {"error": type(outcome).__name__, "message": str(outcome)}
        telemetry.emit("store.error", numbers, {**metadata, "operation": "append", **failure})
    else:
        telemetry.emit("store.append", numbers, metadata)
