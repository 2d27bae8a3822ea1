"""A damaged place costs what is in it, is reported, and hides nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults import variants
from tests.faults.damage import Damaged, Wrong, make_sample, pages_of
from tests.faults.raw import main_log

from backtrail.events import Event, NewEvent
from backtrail.stores.jsonl import JSONLStore

PAGES = [(64 * 1024, 1024 * 1024), (400, 900), (150, 150)]
"""Page sizes: as they are, and so small that every place is near an edge."""


@pytest.fixture(params=PAGES, ids=["whole", "small", "tiny"])
def pages(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Bytes of a first and a later page."""
    size: tuple[int, int] = request.param
    return size


def sample(root: Path, count: int = 30, size: int = 0) -> tuple[list[Event], list[bytes]]:
    """The events of a sound log and its lines."""
    events = make_sample(root, count, size)
    return events, main_log(root, "a").read_bytes().splitlines(keepends=True)


def without(events: list[Event], *gone: int) -> list[Event]:
    """All but these numbers."""
    return [event for event in events if event.seq not in gone]


def test_sound_log(fast: Path, pages: tuple[int, int]) -> None:
    """A log without damage is read whole, and nothing is reported."""
    events, lines = sample(fast)
    with pages_of(*pages):
        assert Damaged(fast, b"".join(lines)).check(events, damaged=False) == []


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.1, 0.5, 0.9, 0.99])
def test_torn_tail(fast: Path, pages: tuple[int, int], keep: float) -> None:
    """A last line cut anywhere costs that line; its number is not used again."""
    events, lines = sample(fast)
    cut = max(1, int(len(lines[-1]) * keep))
    with pages_of(*pages):
        problems = Damaged(fast, b"".join(lines[:-1]) + lines[-1][:cut]).check(events[:-1])
    assert [(p.offset, p.length) for p in problems] == [(len(b"".join(lines[:-1])), cut)]


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 1, 30])
@pytest.mark.parametrize("more", [False, True], ids=["at the end", "in the middle"])
def test_torn_batch(fast: Path, pages: tuple[int, int], left: int, extra: int, more: bool) -> None:
    """A batch without its last line is dropped as a whole, wherever the cut is."""
    events, lines = sample(fast)
    data = b"".join(lines[: 19 + left]) + lines[19 + left][:extra]
    kept = events[:19]
    if more:
        data += b"\n" * bool(extra) + b"".join(lines[24:])
        kept += events[24:]
    with pages_of(*pages):
        problems = Damaged(fast, data).check(kept)
    torn = [problem for problem in problems if problem.what == "torn batch"]
    assert sum(problem.count for problem in torn) == left
    assert [seq for problem in torn for seq in problem.seqs] == list(range(20, 20 + left))


FOREIGN = {
    "garbage": b"what is this?\n",
    "long garbage": b"?" * 5000 + b"\n",
    "NULs": b"\0" * 700 + b"\n",
    "an empty line": b"\n",
    "empty lines": b"\n\n\n",
    "another kind of JSON": b'{"type":"user","message":{}}\n',
    "not UTF-8": b'{"seq":\xff\xfe\n',
    "half a line": b'{"seq":16,"uuid":"e16","ts":"2026-01-01T00:00:00.000Z","ev\n',
    "a huge number": b'{"seq":999999999999999999,"uuid":"e16","ts":"2026-01-01T00:00:00.000Z"\n',
    "a number with 30 digits": b'{"seq":' + b"9" * 30 + b',"uuid":"e16","ts":"2026"\n',
    "a carriage return": b"\r\n",
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=list(FOREIGN))
@pytest.mark.parametrize("at", [0, 1, 15, 20, 22, 30])
def test_foreign_line(fast: Path, pages: tuple[int, int], foreign: bytes, at: int) -> None:
    """A line that is no event costs nothing but itself, also inside a batch."""
    events, lines = sample(fast)
    data = b"".join(lines[:at]) + foreign + b"".join(lines[at:])
    with pages_of(*pages):
        problems = Damaged(fast, data).check(events)
    assert problems[0].offset == len(b"".join(lines[:at]))
    assert sum(problem.count for problem in problems) == foreign.count(b"\n")


GLUED = {
    "NULs": b"\0" * 300,
    "half a line": b'{"seq":16,"uuid":"e16","ts":"2026-01-01T00:00:00.000Z","ev',
    "garbage": b"garbage ",
}


@pytest.mark.parametrize("glue", GLUED.values(), ids=list(GLUED))
@pytest.mark.parametrize("at", [0, 1, 15, 21, 29])
def test_line_glued_to_damage(fast: Path, pages: tuple[int, int], glue: bytes, at: int) -> None:
    """A whole line behind bytes that lack a newline is found all the same."""
    events, lines = sample(fast)
    data = b"".join(lines[:at]) + glue + b"".join(lines[at:])
    with pages_of(*pages):
        problems = Damaged(fast, data).check(events)
    assert [(p.offset, p.length) for p in problems] == [(len(b"".join(lines[:at])), len(glue))]


@pytest.mark.parametrize(("line", "to"), [(15, 15), (15, 16), (3, 25), (1, 30), (30, 30), (21, 23)])
def test_duplicated_line(fast: Path, pages: tuple[int, int], line: int, to: int) -> None:
    """A line that comes again later counts once."""
    events, lines = sample(fast)
    data = b"".join([*lines[:to], lines[line - 1], *lines[to:]])
    with pages_of(*pages):
        problems = Damaged(fast, data).check(events)
    place = len(b"".join(lines[:to]))
    assert [(p.what, p.offset) for p in problems] == [("duplicate", place)]


@pytest.mark.parametrize(("block", "to"), [((10, 14), 14), ((2, 6), 27), ((24, 30), 30)])
def test_duplicated_block(fast: Path, block: tuple[int, int], to: int) -> None:
    """Several lines that come again later count once."""
    events, lines = sample(fast)
    data = b"".join([*lines[:to], *lines[block[0] : block[1]], *lines[to:]])
    problems = Damaged(fast, data).check(events)
    assert sum(problem.count for problem in problems) == block[1] - block[0]


@pytest.mark.parametrize(
    ("page", "shift"),
    [(64 * 1024, shift) for shift in (-900, -201, -1, 0, 1, 399)]
    + [(1024 * 1024, shift) for shift in (-201, 1)],
)
def test_duplicates_at_page_edges(fast: Path, page: int, shift: int) -> None:
    """A copy of an older line beside the edge of a page, from either end, counts once."""
    events, lines = sample(fast, page * 5 // 4 // 1000 + 20, 860)
    data = b"".join(lines)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for edge in (page + shift, len(data) - page + shift):
        at = next(index for index, start in enumerate(starts) if start >= edge)
        for copy in (slice(at - 1, at), slice(3, 4), slice(at - 6, at), slice(3, 10)):
            changed = b"".join([*lines[:at], *lines[copy], *lines[at:]])
            damaged = Damaged(fast, changed)
            with damaged.store:
                one_look(damaged, events)
                damaged.check_ranges(events, (copy.start, at))
                assert {p.what for p in damaged.check_reported(True)} == {"duplicate"}


@pytest.mark.parametrize("copies", [2, 3])
def test_copies_of_an_old_line_in_the_middle(fast: Path, copies: int) -> None:
    """What is read after that line is all, wherever its copies are."""
    lines = sample(fast, 24, 30)[1]
    for at in range(2, len(lines) + 1):
        Damaged(fast, b"".join([*lines[:at], *lines[:1] * copies, *lines[at:]]))
        with pages_of(600, 2000), JSONLStore(fast) as store:
            assert [event.seq for event in store.read("a", after=1)] == list(range(2, 25)), at


def test_copy_of_an_old_line_behind_a_long_one(fast: Path) -> None:
    """A stray copy at the end, all that fits into the first look, does not turn back the head."""
    events, lines = sample(fast, 30)
    with JSONLStore(fast) as store:
        long = make_long(store)
    data = main_log(fast, "a").read_bytes() + lines[4 - 1]
    Damaged(fast, data).check([*events, long])


def make_long(store: JSONLStore) -> Event:
    """An event longer than a page."""
    return store.append("a", [NewEvent("long", {"text": "x" * 100_000})])[0]


def test_torn_batch_longer_than_a_page(fast: Path) -> None:
    """The end of a log is found in front of a torn batch of any length."""
    events, lines = sample(fast, 12)
    big = make_big(fast)
    data = b"".join(lines)
    for cut in (big.rindex(b"\n", 0, -1) + 1, len(big) - 1000, 70_000, 40_000):
        Damaged(fast, data + big[:cut]).check(events)


def make_big(root: Path) -> bytes:
    """The bytes of a batch longer than two pages."""
    with JSONLStore(root) as store:
        size = main_log(root, "a").stat().st_size
        store.append("a", [NewEvent("big", {"text": "x" * 9000}) for _ in range(20)])
    return main_log(root, "a").read_bytes()[size:]


@pytest.mark.parametrize("pages", PAGES[:2], ids=["whole", "small"], indirect=True)
@pytest.mark.parametrize("mask", [0x01, 0x20])
def test_flipped_byte_anywhere(fast: Path, pages: tuple[int, int], mask: int) -> None:
    """One changed byte costs the event it is in, is reported, and no other event."""
    flip_everywhere(fast, pages, mask, step=3 if pages == PAGES[0] else 7)


@pytest.mark.torture
def test_flipped_byte_everywhere(fast: Path) -> None:
    """The same at each byte."""
    with pages_of(*PAGES[0]):
        for mask in (0x01, 0x20):
            place = fast / f"{mask}"
            place.mkdir()
            flip_everywhere(place, PAGES[0], mask, step=1)


def flip_everywhere(root: Path, pages: tuple[int, int], mask: int, step: int) -> None:
    """Change every `step`-th byte in turn, and look."""
    events, lines = sample(root)
    whole = b"".join(lines)
    position = -1
    with pages_of(*pages):
        for line, text in enumerate(lines):
            number = line + 1
            gone = {number}
            if number in (7, 12, 23):
                # The last line of a batch: without it none of the batch counts.
                gone = {7: {5, 6, 7}, 12: {11, 12}, 23: {20, 21, 22, 23}}[number]
            for _ in text:
                position += 1
                if position % step:
                    continue
                changed = bytearray(whole)
                changed[position] ^= mask
                damaged = Damaged(root, bytes(changed))
                with damaged.store:
                    right = without(events, *gone)
                    damaged.check_reads(right) if position % 11 == 0 else one_look(damaged, right)
                    if not damaged.store.verify():
                        raise Wrong(f"byte {position} changed and not reported")


def one_look(damaged: Damaged, right: list[Event]) -> None:
    """The shortest check: both directions."""
    forward = list(damaged.store.read("a"))
    if forward != right:
        raise Wrong(f"forward: {[event.seq for event in forward]}")
    if list(damaged.store.read("a", reverse=True))[::-1] != right:
        raise Wrong("backward")


def test_missing_line_behind_other_damage(fast: Path) -> None:
    """Lines that are gone without a trace are reported, also behind damage that is older."""
    events, lines = sample(fast)
    data = b"".join([*lines[:3], b"garbage\n", *lines[3:13], *lines[15:]])
    damaged = Damaged(fast, data)
    with damaged.store:
        damaged.check_reads(without(events, 14, 15))
        problems = damaged.store.verify()
    assert {problem.what for problem in problems} == {"garbage", "gap"}
    assert [problem.seqs for problem in problems if problem.what == "gap"] == [(14, 15)]


# --- controls ----------------------------------------------------------------------------


def test_damage_finds_a_reader_that_stops(fast: Path) -> None:
    """The checks fail on a reader that ends at the first bad line."""
    events, lines = sample(fast)
    data = b"".join(lines[:10]) + b"garbage\n" + b"".join(lines[10:])
    with variants.stopping_at_bad_line(), pytest.raises(Wrong, match="forward"):
        Damaged(fast, data).check(events)


def test_damage_finds_reused_numbers(fast: Path) -> None:
    """The checks fail on a writer that gives a torn line's number to the next event."""
    events, lines = sample(fast)
    data = b"".join(lines)[:-20]
    with variants.reusing_numbers(), pytest.raises(Wrong, match="used again"):
        Damaged(fast, data).check(events[:-1])


def test_damage_finds_half_batches(fast: Path) -> None:
    """The checks fail on a reader for which half a batch counts."""
    events, lines = sample(fast)
    with variants.not_dropping_torn_batches(), pytest.raises(Wrong, match="forward"):
        Damaged(fast, b"".join(lines[:21])).check(events[:19])


def test_damage_finds_glue(fast: Path) -> None:
    """The checks fail on a writer that does not seal a torn tail."""
    events, lines = sample(fast)
    with variants.not_sealing(), pytest.raises(Wrong, match="line of its own"):
        Damaged(fast, b"".join(lines)[:-20]).check(events[:-1])


def test_flips_find_a_reader_without_check_sums(fast: Path) -> None:
    """The flips fail on a reader that believes every line it can decode."""
    with variants.not_checking_sums(), pytest.raises(Wrong):
        flip_everywhere(fast, PAGES[0], 0x01, 1)
