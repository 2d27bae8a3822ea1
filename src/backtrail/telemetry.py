"""Events of the library itself: what was done, how long it took, what failed.

`listen(fn)` calls `fn` with every `Signal`, in the thread that caused it, and returns a
function that ends it. Nothing is measured while nobody listens. A listener that raises is
logged and goes on listening. `opentelemetry()` turns signals into spans and metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from .events import Json

logger = logging.getLogger("backtrail")


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing the library did.

    `name` is such as `session.rewind`. `measurements` are numbers, `duration` (seconds)
    among them; `metadata` says of what. A failure has `error` in its metadata.
    """

    name: str
    measurements: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Json] = field(default_factory=dict)


Listener = Callable[[Signal], None]

listeners: list[Listener] = []
"""Who listens now. Changed only by `listen`."""


def listen(fn: Listener) -> Callable[[], None]:
    """Call `fn` with every signal until the returned function is called."""
    global listeners
    listeners = [*listeners, fn]

    def stop() -> None:
        global listeners
        listeners = [other for other in listeners if other is not fn]

    return stop


def emit(
    name: str, measurements: Mapping[str, float], metadata: Mapping[str, Json] | None = None
) -> None:
    """Tell every listener."""
    if not listeners:
        return
    signal = Signal(name, dict(measurements), dict(metadata or {}))
    for listener in listeners:
        try:
            listener(signal)
        except Exception:
            logger.exception("a telemetry listener failed on %s", name)


class Span:
    """The measurements and metadata of something under way."""

    def __init__(self, metadata: Mapping[str, Json]) -> None:
        self.measurements: dict[str, float] = {}
        self.metadata: dict[str, Json] = dict(metadata)


@contextmanager
def span(name: str, **metadata: Json) -> Iterator[Span]:
    """Measure a block: one signal at its end, with its duration, failed or not."""
    doing = Span(metadata)
    began = time.perf_counter()
    try:
        yield doing
    except BaseException as error:
        doing.metadata["error"] = type(error).__name__
        doing.metadata["message"] = str(error)
        raise
    finally:
        doing.measurements["duration"] = time.perf_counter() - began
        emit(name, doing.measurements, doing.metadata)
