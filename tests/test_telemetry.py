"""What the library says about itself, and OpenTelemetry made of it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from backtrail import Closed, NotFound, Session, Unsupported, open_store, telemetry
from backtrail.telemetry import Signal, listen, opentelemetry

from .talking import talk, user


class Heard(list[Signal]):
    """The signals heard so far."""

    def of(self, name: str) -> list[Signal]:
        """Those of one name."""
        return [signal for signal in self if signal.name == name]

    def one(self, name: str) -> Signal:
        """The only one of a name."""
        (signal,) = self.of(name)
        return signal


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Everything the library says during the test."""
    signals = Heard()
    stop = listen(signals.append)
    yield signals
    stop()


def test_listening_begins_and_ends() -> None:
    """Each listener ends for itself, and ending twice is fine."""
    one: list[Signal] = []
    two: list[Signal] = []
    stop_one, stop_two = listen(one.append), listen(two.append)
    telemetry.emit("x", {"n": 1}, {"a": "b"})
    stop_one()
    stop_one()
    telemetry.emit("y", {})
    stop_two()
    telemetry.emit("z", {})
    assert [signal.name for signal in one] == ["x"]
    assert [signal.name for signal in two] == ["x", "y"]
    assert one[0] == Signal("x", {"n": 1}, {"a": "b"})


def test_a_listener_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It breaks neither the others nor what it listens to."""

    def broken(signal: Signal) -> None:
        raise ZeroDivisionError

    good: list[Signal] = []
    stops = [listen(broken), listen(good.append)]
    with caplog.at_level(logging.ERROR, "backtrail"), Session.create("memory:") as s:
        s.append(user("one"))
    for stop in stops:
        stop()
    assert len(good) == 2
    assert "telemetry listener failed on store.append" in caplog.text


@pytest.mark.parametrize("url", ["sqlite:///{0}/one/two/x.db", "file:{0}/one/two"])
def test_a_folder_made_for_a_store_is_reported(tmp_path: Path, heard: Heard, url: str) -> None:
    """Once, when it is made: a slip of the pen leaves no folder unnoticed."""
    for _ in range(2):
        open_store(url.format(tmp_path)).close()
    signal = heard.one("store.folder")
    assert signal.metadata == {"folder": str(tmp_path / "one" / "two")}
    assert signal.measurements == {"count": 2}


def test_resume_is_reported(url: str, heard: Heard) -> None:
    """With the number of messages, the store, and where they came from."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        store = type(s.store).__name__
    assert heard.of("session.resume") == []
    with Session.open(url, "s"):
        pass
    signal = heard.one("session.resume")
    assert signal.measurements["message_count"] == 2
    assert signal.metadata == {"session_id": "s", "source": "event_log", "store": store}
    assert signal.measurements["duration"] > 0


def test_checkpoint_is_reported(url: str, heard: Heard) -> None:
    """Also whether it was there already."""
    with Session.create(url, "s") as s:
        events = talk(s, "one")
        point = s.checkpoint("a")
        s.checkpoint("a")
        first, second = heard.of("session.checkpoint")
        assert first.metadata == {
            "session_id": "s",
            "message_id": events[-1].id,
            "checkpoint_id": point.id,
            "snapshot_id": point.id,
            "store": type(s.store).__name__,
            "idempotent": False,
        }
        assert second.metadata == {**first.metadata, "idempotent": True}
        assert first.measurements["message_count"] == 2
        assert first.measurements["duration"] > 0


def test_fork_is_reported(url: str, heard: Heard) -> None:
    """Both sessions, and the event they part at."""
    with Session.create(url, "s") as s:
        events = talk(s, "one", "two")
        fork = s.fork(at=events[1])
        signal = heard.one("session.fork")
        assert signal.metadata == {
            "session_id": fork.id,
            "parent_id": "s",
            "store": type(s.store).__name__,
            "anchor_message_id": events[1].id,
        }
        assert signal.measurements["message_count"] == 2
        assert signal.measurements["duration"] > 0


def test_rewind_is_reported(url: str, heard: Heard) -> None:
    """What it dropped, what is left, and what kind of target it had."""
    with Session.create(url, "s") as s:
        events = talk(s, "one")
        point = s.checkpoint("here")
        talk(s, "two")
        s.rewind(point, dry_run=True)
        s.rewind("here")
        s.rewind(events[0])
        s.undo()
        s.redo()
        by_point, by_label, by_event = heard.of("session.rewind")
        assert by_label.metadata == {
            "session_id": "s",
            "anchor_message_id": events[1].id,
            "target": "snapshot",
            "store": type(s.store).__name__,
            "applied": True,
        }
        assert by_point.metadata == {**by_label.metadata, "applied": False}
        assert by_event.metadata["target"] == "message"
        assert by_label.measurements["events_dropped"] == 2
        assert by_label.measurements["message_count"] == 2
        assert by_label.measurements["duration"] > 0
        undo, redo = heard.of("session.undo")
        assert (undo.metadata["redo"], redo.metadata["redo"]) == (False, True)
        assert redo.measurements["events_dropped"] == 1


def test_failures_are_reported_with_their_error(url: str, heard: Heard) -> None:
    """Under the same name, with a duration, and the error goes on up."""
    with Session.create(url, "s") as s:
        for verb in (
            lambda: s.rewind("ghost"),
            lambda: s.undo(),
            lambda: s.checkpoint("x", at="ghost"),
            lambda: s.fork(at="ghost"),
        ):
            with pytest.raises(NotFound) as caught:
                verb()
            signal = heard[-1]
            assert signal.metadata["error"] == "NotFound"
            assert signal.metadata["message"] == str(caught.value)
            assert signal.measurements["duration"] > 0
    names = [signal.name for signal in heard if "error" in signal.metadata]
    assert names == ["session.rewind", "session.undo", "session.checkpoint", "session.fork"]


def test_appends_are_reported(url: str, heard: Heard) -> None:
    """Count, duration and log; a failing one is an error of the store."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        s.extend([user("one"), user("two")])
        s.log("transcript").append({"n": 1})
        list(s.log("transcript").read())
        signals = heard.of("store.append")
        assert [signal.measurements["count"] for signal in signals] == [1, 2, 1]
        assert [signal.metadata["log"] for signal in signals] == [
            *("messages", "messages", "transcript")
        ]
        assert all(signal.measurements["duration"] > 0 for signal in signals)
        store.close()
        with pytest.raises(Closed):
            store.append("s", [])
        failure = heard.one("store.error")
        assert failure.metadata["error"] == "Closed"
        assert failure.metadata["operation"] == "append"
        assert failure.metadata["session_id"] == "s"


def test_a_damaged_anchor_does_not_fail_what_was_done(heard: Heard) -> None:
    """Telemetry emits what it can: an event that is gone has no id."""
    with Session.create("memory:", "s") as s:
        talk(s, "one")
        s.rewind(0)
        assert heard.one("session.rewind").metadata["anchor_message_id"] is None


# --- OpenTelemetry -----------------------------------------------------------------------


@pytest.fixture
def spans() -> Iterator[tuple[InMemorySpanExporter, InMemoryMetricReader]]:
    """A real SDK that keeps spans and metrics in memory."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider(metric_readers=[reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    stop = opentelemetry(tracer_provider=tracers, meter_provider=meters)
    yield exporter, reader
    stop()
    tracers.shutdown()
    meters.shutdown()


Kept = tuple[InMemorySpanExporter, InMemoryMetricReader]


def test_every_signal_is_a_span(spans: Kept) -> None:
    """It lies where the work was, with what is known as attributes; failures are errors."""
    began = time.time_ns()
    with Session.create("memory:", "s") as s:
        talk(s, "one")
        s.rewind(0)
        with pytest.raises(NotFound):
            s.rewind("ghost")
    ended = time.time_ns()
    done = {span.name: span for span in spans[0].get_finished_spans()}
    assert set(done) == {"backtrail.store.append", "backtrail.session.rewind"}
    rewinds = [s for s in spans[0].get_finished_spans() if s.name == "backtrail.session.rewind"]
    good, bad = rewinds
    assert good.attributes is not None
    assert good.attributes["backtrail.session_id"] == "s"
    assert good.attributes["backtrail.events_dropped"] == 2
    assert good.attributes["backtrail.applied"] is True
    assert "backtrail.anchor_message_id" not in good.attributes
    assert good.start_time is not None
    assert good.end_time is not None
    assert began <= good.start_time < good.end_time <= ended
    assert good.status.status_code is StatusCode.UNSET
    assert bad.status.status_code is StatusCode.ERROR
    assert "ghost" in str(bad.status.description)


def test_metrics_count_and_measure(spans: Kept) -> None:
    """Without ids, which would make a series each."""
    with Session.create("memory:", "s") as s:
        s.extend([user(str(n)) for n in range(5)])
        with pytest.raises(NotFound):
            s.redo()
    data = spans[1].get_metrics_data()
    assert data is not None
    metrics = {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert set(metrics) == {"backtrail.operations", "backtrail.events", "backtrail.duration"}
    labels = {"operation": "store.append", "store": "MemoryStore", "log": "messages"}
    (events,) = metrics["backtrail.events"]
    assert dict(events.attributes or {}) == labels
    assert events.value == 6  # type: ignore[union-attr]
    failed = {"operation": "session.undo", "store": "MemoryStore", "error": "NotFound"}
    counted = {
        str(dict(point.attributes or {})): point.value  # type: ignore[union-attr]
        for point in metrics["backtrail.operations"]
    }
    assert counted == {str(labels): 2, str(failed): 1}
    for point in metrics["backtrail.duration"]:
        assert isinstance(point, HistogramDataPoint)
        assert point.count in (1, 2)
        assert point.sum > 0


def test_opentelemetry_can_be_ended(spans: Kept) -> None:
    """The returned function ends it, and others go on."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    stop = opentelemetry(tracer_provider=tracers)
    telemetry.emit("session.problem", {"count": 3}, {"odd": [1, 2]})
    stop()
    telemetry.emit("session.problem", {"count": 3})
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["backtrail.odd"] == "[1, 2]"
    assert span.start_time == span.end_time
    assert len(spans[0].get_finished_spans()) == 2
    tracers.shutdown()


def test_without_opentelemetry_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exact line to type."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(Unsupported) as caught:
        opentelemetry()
    assert "pip install 'opentelemetry-" in str(caught.value)
