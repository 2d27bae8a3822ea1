"""Events of the library itself: what was done, how long it took, what failed.

`listen(fn)` calls `fn` with every `Signal`, in the thread that caused it, and returns a
function that ends it. Nothing is measured while there are no listeners. A listener that raises is
logged and goes on listening. `opentelemetry()` turns signals into spans and metrics.

    session.resume       message_count; session_id, source, store
    session.checkpoint   message_count; session_id, message_id, checkpoint_id (and, for callers that
                         know it by that name, snapshot_id), store, idempotent
    session.fork         message_count; session_id, parent_id, anchor_message_id, store
    session.rewind       events_dropped, messages_deleted (those of them that are messages; they
                         left the history, not the log), message_count; session_id,
                         anchor_message_id, target, store, applied
    session.undo         as session.rewind, with `redo` in place of `target`
    session.problem      count; session_id: events that a failing store did not take
    store.folder         count; folder: it was made for a store, with so many in all
    store.append         count; session_id, store, log
    store.error          count; session_id, store, log, operation
    store.retention      count; sessions (their ids), retention, store
    store.purge          events, blobs; sessions, what, store
    files.collect        blobs, bytes, calls, points, used;
                         sessions, held, over_budget, dry_run, store

All but `session.problem`, `store.folder` and `store.retention` have a `duration`. A failure has
`error` and `message`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from ._startup.extras import install_line
from ._startup.frozen import dataclass, field
from .errors import Unsupported
from .events import Json

if TYPE_CHECKING:
    from logging import Logger

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing the library did.

    `name` is such as `session.rewind`. `measurements` are numbers, `duration` (seconds)
    among them; `metadata` says of what. A failure has `error` in its metadata.
    """

    name: str
    measurements: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Json] = field(default_factory=dict)


@cache
def logger() -> Logger:
    """The library's logger, which says nothing unless the host sets one up.

    It is made when there is something to say: a hook pays for every import.
    """
    import logging

    found = logging.getLogger("backtrail")
    found.addHandler(logging.NullHandler())
    return found


Listener = Callable[[Signal], None]

listeners: list[Listener] = []
"""The listeners of now. Changed only by `listen`."""


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
    """Notify every listener."""
    if not listeners:
        return
    signal = Signal(name, dict(measurements), dict(metadata or {}))
    for listener in listeners:
        try:
            listener(signal)
        except Exception:
            # A listener must not break what it listens to.
            logger().exception("a telemetry listener failed on %s", name)


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


# --- OpenTelemetry -----------------------------------------------------------------------

_METRIC_LABELS = ("store", "log", "error")


def opentelemetry(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Callable[[], None]:
    """Turn every signal into a span and into metrics, until the returned function is called.

    Spans are named `backtrail.session.rewind` and so on, and are children of the span that
    is current in the thread. The metrics are `backtrail.operations` and `backtrail.events`,
    which count, and `backtrail.duration`, a histogram in seconds. Without providers, those
    of the process are used. Needs the extra `otel`.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise Unsupported(f"OpenTelemetry is not installed: {install_line('otel')}") from error

    tracer = trace.get_tracer("backtrail", tracer_provider=tracer_provider)
    meter = metrics.get_meter("backtrail", meter_provider=meter_provider)
    operations = meter.create_counter("backtrail.operations", "1", "What was done")
    events = meter.create_counter("backtrail.events", "1", "Events appended, or not stored")
    durations = meter.create_histogram("backtrail.duration", "s", "How long it took")

    def on_signal(signal: Signal) -> None:
        duration = signal.measurements.get("duration", 0.0)
        end = time.time_ns()
        values = {**signal.metadata, **signal.measurements}
        span = tracer.start_span(
            f"backtrail.{signal.name}",
            attributes={f"backtrail.{name}": value for name, value in _plain(values)},
            start_time=end - int(duration * 1e9),
        )
        if "error" in signal.metadata:
            message = str(signal.metadata.get("message", signal.metadata["error"]))
            span.set_status(trace.StatusCode.ERROR, message)
        span.end(end)
        # No ids here: every new value of a label is a new series.
        known = [(name, signal.metadata.get(name)) for name in _METRIC_LABELS]
        labels = {"operation": signal.name, **{name: str(value) for name, value in known if value}}
        operations.add(1, labels)
        if "count" in signal.measurements:
            events.add(signal.measurements["count"], labels)
        if "duration" in signal.measurements:
            durations.record(duration, labels)

    return listen(on_signal)


def _plain(values: Mapping[str, Json]) -> Iterator[tuple[str, str | bool | int | float]]:
    """The values that an attribute can hold; others as text, None not at all."""
    for name, value in values.items():
        if isinstance(value, (str, bool, int, float)):
            yield name, value
        elif value is not None:
            yield name, str(value)
