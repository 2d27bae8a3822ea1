"""Telemetry of appends, put around a store's `append`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from .. import telemetry
from ..events import MAIN_LOG, Event, NewEvent
from .base import Store

Append = TypeVar("Append", bound=Callable[..., list[Event]])


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
        metadata = {"session_id": session_id, "store": type(self).__name__, "log": log}
        try:
            result = append(self, session_id, events, log=log, expected=expected)
        except Exception as error:
            numbers = {"count": len(events), "duration": time.perf_counter() - began}
            failure = {"operation": "append", "error": type(error).__name__, "message": str(error)}
            telemetry.emit("store.error", numbers, {**metadata, **failure})
            raise
        numbers = {"count": len(result), "duration": time.perf_counter() - began}
        telemetry.emit("store.append", numbers, metadata)
        return result

    return cast(Append, wrapper)
