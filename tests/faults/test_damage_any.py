"""Whatever happens to the bytes of a log, what is whole is read, both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.faults import variants
from tests.faults.damage import Wrong, make_sample, pages_of
from tests.faults.raw import counted, is_damaged, main_log, numbers

from backtrail.events import Event, NewEvent, Problem
from backtrail.stores.jsonl import JSONLStore
from backtrail.stores.opening import Options

Mutation = Callable[[bytes], bytes]

PAGES = st.sampled_from([(64 * 1024, 1024 * 1024), (2000, 4000), (300, 700), (130, 130)])

PIECES = st.one_of(
    st.sampled_from([b"\n", b"\0" * 9, b"\0" * 200, b'{"seq":', b"\r\n", b'"}\n', b"\xff"]),
    st.builds(lambda seq: b'{"seq":%d,"uuid":"x","ts":"' % seq, st.integers(0, 10**20)),
    st.binary(min_size=1, max_size=40),
)


def place(data: bytes, part: float) -> int:
    """A position in `data`."""
    return int(part * len(data))


@st.composite
def byte_mutations(draw: st.DrawFn) -> Mutation:
    """Bytes put in, taken out, written over or repeated."""
    kind = draw(st.sampled_from(["insert", "delete", "overwrite", "truncate", "repeat"]))
    part = draw(st.floats(0, 1))
    piece = draw(PIECES)
    count = draw(st.integers(1, 400))

    def change(data: bytes) -> bytes:
        at = place(data, part)
        if kind == "insert":
            return data[:at] + piece + data[at:]
        if kind == "delete":
            return data[:at] + data[at + count :]
        if kind == "overwrite":
            return data[:at] + piece + data[at + len(piece) :]
        if kind == "truncate":
            return data[:at]
        return data[: at + count] + data[at:]

    return change


@st.composite
def line_mutations(draw: st.DrawFn) -> Mutation:
    """A line taken out, or written again somewhere behind itself."""
    again = draw(st.booleans())
    which, behind = draw(st.floats(0, 1)), draw(st.floats(0, 1))

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        if not lines:
            return data
        at = min(int(which * len(lines)), len(lines) - 1)
        line = lines[at]
        if not again:
            return b"".join(lines[:at] + lines[at + 1 :])
        to = at + 1 + int(behind * (len(lines) - at - 1))
        return b"".join([*lines[:to], line, *lines[to:]])

    return change


class Sample:
    """A log that is damaged over and over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events = {event.id: event for event in make_sample(root, 24, 30)}
        self.data = main_log(root, "a").read_bytes()

    def check(self, data: bytes, pages: tuple[int, int]) -> None:
        """The rules that hold for any bytes."""
        main_log(self.root, "a").write_bytes(data)
        reported: list[Problem] = []
        with pages_of(*pages), JSONLStore(self.root, Options(on_damage=reported.append)) as store:
            forward = list(store.read("a"))
            backward = list(store.read("a", reverse=True))[::-1]
            self.check_reading(data, forward, backward)
            found = list(store.pages("a"))
            if [seq for page in reversed(found) for seq in page.seqs] != [e.seq for e in forward]:
                raise Wrong("not the same in pages")
            for bound in (1, 6, 13, 20):
                above = [event for event in forward if event.seq > bound]
                if list(store.read("a", after=bound)) != above:
                    raise Wrong(f"after {bound}")
            gaps = [event.seq for event in forward] != list(range(1, len(forward) + 1))
            if (gaps or is_damaged(data)) and not store.verify():
                raise Wrong("events are missing and verify reports nothing")
            self.check_writing(store, data, forward)
            assert [event.seq for event in store.read("b")] == [1, 2, 3]

    def check_reading(self, data: bytes, forward: list[Event], backward: list[Event]) -> None:
        if forward != backward:
            raise Wrong(f"{[e.seq for e in forward]} and backward {[e.seq for e in backward]}")
        for event in forward:
            if self.events.get(event.id) != event:
                raise Wrong(f"{event} was never written")
        if [event.seq for event in forward] != sorted({event.seq for event in forward}):
            raise Wrong("not in order")
        missing = {line.seq for line in counted(data) if line.seq} - {
            event.seq for event in forward
        }
        if missing:
            raise Wrong(f"whole lines are not returned: {sorted(missing)}")

    def check_writing(self, store: JSONLStore, data: bytes, forward: list[Event]) -> None:
        new = store.append("a", [NewEvent("later", {}), NewEvent("later", {})])
        new += store.append("a", [NewEvent("later", {})])
        behind = data.rfind(b'"uuid":"%b"' % forward[-1].id.encode()) if forward else 0
        if new[0].seq <= max((n for n in numbers(data[behind:]) if n < 10_000), default=0):
            raise Wrong(f"number {new[0].seq} is used again behind {data[behind:][-900:]!r}")
        after = list(store.read("a"))
        if after[-3:] != new or [e for e in after[:-3] if e in forward] != forward:
            raise Wrong("the log does not go on")
        if list(store.read("a", reverse=True))[::-1] != after:
            raise Wrong("the log does not go on backwards")


@pytest.fixture
def sample(fast: Path) -> Sample:
    """A log to damage."""
    return Sample(fast)


def torment(sample: Sample, examples: int, *, shrink: bool = True) -> None:
    """Damage the log in so many ways."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples < 1000,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        mutations=st.lists(byte_mutations(), max_size=4),
        repeated=st.lists(line_mutations(), max_size=1),
        pages=PAGES,
    )
    def run(mutations: list[Mutation], repeated: list[Mutation], pages: tuple[int, int]) -> None:
        data = sample.data
        for mutation in repeated + mutations:
            data = mutation(data)
        sample.check(data, pages)

    run()


def test_any_damage(sample: Sample) -> None:
    """No bytes make reading or writing raise, hang, invent, repeat or hide an event."""
    torment(sample, 400)


@pytest.mark.torture
def test_any_damage_at_length(sample: Sample) -> None:
    """The same, twenty times as long, with new examples each time."""
    torment(sample, 8000)


def test_any_damage_finds_a_reader_that_stops(sample: Sample) -> None:
    """The rules fail on a reader that ends at the first bad line."""
    with variants.stopping_at_bad_line(), pytest.raises(Wrong):
        torment(sample, 200, shrink=False)


def test_any_damage_finds_a_reader_without_check_sums(sample: Sample) -> None:
    """The rules fail on a reader that believes every line it can decode."""
    with variants.not_checking_sums(), pytest.raises(Wrong):
        torment(sample, 400, shrink=False)
