"""Lines with right check sums that no writer of ours made: damage, reported, and never in the way.

The oracle is `raw.counted`, a plain reading of docs/format.md that shares no code with the
library.
"""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.faults import variants
from tests.faults.damage import Wrong, make_sample, pages_of
from tests.faults.raw import counted, is_damaged, main_log

from backtrail import BacktrailError, Session
from backtrail.events import Event, NewEvent, Problem, SessionInfo
from backtrail.stores.jsonl import JSONLStore
from backtrail.stores.opening import Options

TS = "2026-01-01T00:00:00.000Z"

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 15, 24, 25, 26, 30, 5_000, 10_024, 10_030, 2**20, 2**30),
    *(2**31 - 1, 2**31, 2**32, 2**53, 2**63, 10**18, 10**19 - 1, 10**40),
    *(None, "7", 7.0, 7.5, True, [7], {}),
)
TEXTS: tuple[Any, ...] = (
    *("x", "", " ", "\u2028", "\ud800", "x" * 256, "x" * 257, "a\nb", "é" * 200, 5, None, [], {}),
)
BODIES: tuple[Any, ...] = (
    *({}, {"n": 1}, {"purged": True}, {"message": 5}, {"message": {"content": None}}, [], 5, None),
    *({"usage": {"input_tokens": 10**30}}, {"cost_usd": "x"}, {"at": 10**30}, {"n": 10**400}),
    *({"files": 5}, {"files": {"parts": 7}}, {"info": 5}, {"summary": []}, {"until": "x"}),
)
BATCHES: tuple[Any, ...] = (
    *([1, 1], [1, 2], [2, 2], [1, 4], [0, 0], [2, 1], [-1, 3], [1, 10**6], [1, 10**9], [10**9] * 2),
    *([1], [], "x", [1, 2, 3], [1.0, 2], None, [3, 10**6 + 1]),
)


def line(row: dict[str, Any], rng: random.Random | None = None) -> bytes:
    """A line with a right check sum."""
    text = json.dumps(row, separators=(",", ":"), ensure_ascii=rng is None or rng.random() < 0.5)
    front = text.encode("utf-8", "surrogatepass")[:-1]
    return front + b',"crc":"%08x"}\n' % zlib.crc32(front)


def forged(rng: random.Random, at: int) -> bytes:
    """A line that is wrong, or not wrong enough to be reported."""
    row: dict[str, Any] = {"seq": at, "uuid": f"f{rng.random()}", "ts": TS, "event": "test"}
    if rng.random() < 0.3:
        row["follows"] = rng.choice((at, at + 1, at - 1, 0, -1, rng.choice(NUMBERS)))
    row["data"] = rng.choice(BODIES) if rng.random() < 0.3 else {"n": at}
    if rng.random() < 0.2:
        row["batch"] = rng.choice(BATCHES)
    for _ in range(rng.choice([0, 1, 1, 2])):
        name = rng.choice(["seq", "seq", "seq", "uuid", "ts", "event", "gone", "kind"])
        if name == "seq":
            row["seq"] = rng.choice(NUMBERS)
        elif name == "gone":
            row.pop(rng.choice(list(row)), None)
        elif name == "kind":
            row["event"] = rng.choice(["checkpoint", "rewound", "session_start", "user_message"])
        else:
            row[name] = rng.choice(TEXTS)
    if rng.random() < 0.05:
        depth = rng.choice([150, 400, 3000])
        text = b'{"seq":%d,"uuid":"d","ts":"%b","event":"t","data":' % (at, TS.encode())
        text += b'{"a":' * depth + b"1" + b"}" * depth
        return text + b',"crc":"%08x"}\n' % zlib.crc32(text)
    return line(row, rng)


class Sample:
    """A sound log that gets forged lines, over and over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events = make_sample(root, 24, 30)
        self.lines = main_log(root, "a").read_bytes().splitlines(keepends=True)

    def check(self, number: int) -> None:
        rng = random.Random(number)
        lines = list(self.lines)
        for _ in range(rng.choice([1, 1, 2, 4])):
            at = rng.randrange(len(lines) + 1)
            new = forged(rng, at + rng.choice([0, 1, 1, 2, 3]))
            if rng.random() < 0.2:
                first = rng.choice((at + 2, at + 5, 20, 24, 26, 30, 5_000, 10_030, 2**30))
                lines[at:at] = map(row, range(first, first + rng.choice((2, 2, 3, 10, 30))))
            elif rng.random() < 0.3 and at < len(lines):
                lines[at] = new
            else:
                lines.insert(at, new)
        data = b"".join(lines)
        main_log(self.root, "a").write_bytes(data)
        reported: list[Problem] = []
        with JSONLStore(self.root, Options(on_damage=reported.append)) as store:
            forward = self.check_reading(store, data)
            if is_damaged(data) and not store.verify():
                raise Wrong("verify reports nothing")
            if number % 5 == 0:
                check_verbs(store)
                check_fork(store, forward, 1 + number // 5 % 26)
            self.check_writing(store, forward, number)

    def check_reading(self, store: JSONLStore, data: bytes) -> list[Event]:
        forward = list(store.read("a"))
        right = [(found.seq, found.id) for found in counted(data)]
        if [(event.seq, event.id) for event in forward] != right:
            raise Wrong(f"forward {[e.seq for e in forward]}, right is {right}")
        if list(store.read("a", reverse=True))[::-1] != forward:
            raise Wrong("not the same backwards")
        for event in forward:
            if event.follows is not None and not 0 <= event.follows < event.seq:
                raise Wrong(f"{event} follows a later one")
        for count in (1, 4):
            if store.tail("a", count) != forward[-count:]:
                raise Wrong(f"the tail of {count}")
        for bound in (0, 6, 23, 24, 2**31):
            above = [event for event in forward if event.seq > bound]
            if list(store.read("a", after=bound)) != above:
                raise Wrong(f"after {bound}")
            below = [event for event in forward if event.seq <= bound]
            if list(store.read("a", until=bound, reverse=True))[::-1] != below:
                raise Wrong(f"until {bound}")
        history = [event.seq for event in store.history("a")]
        if [seq for page in reversed(list(store.pages("a"))) for seq in page.seqs] != history:
            raise Wrong("not the same in pages")
        return forward

    def check_writing(self, store: JSONLStore, forward: list[Event], number: int) -> None:
        try:
            new = store.append("a", [NewEvent("later", {}), NewEvent("later", {})])
            new += store.append("a", [NewEvent("later", {}, id=f"given {number}")])
        except BacktrailError:
            if not forward or forward[-1].seq < 2**31 - 4:
                raise
            return
        after = list(store.read("a"))
        if after[-3:] != new or [e for e in after if e in forward] != forward:
            raise Wrong(f"{[e.seq for e in new]} behind {[e.seq for e in forward]}: not read")
        if list(store.read("a", reverse=True))[::-1] != after:
            raise Wrong("not the same backwards, after an append")


class Long:
    """A log of many pages that gets forged lines, less than 32 KB of them."""

    def __init__(self, root: Path, size: int) -> None:
        self.root = root
        self.count = size // 530
        make_sample(root, self.count, 400)
        self.lines = main_log(root, "a").read_bytes().splitlines(keepends=True)

    def forge(self, rng: random.Random) -> bytes:
        lines, left = list(self.lines), 32 * 1024
        for _ in range(rng.choice([1, 1, 2, 4])):
            at = rng.randrange(len(lines) + 1)
            new = [forged(rng, at + rng.choice([0, 1, 1, 2, 3]))]
            if rng.random() < 0.4:
                near = (at + 1, at + 1, at + 1, at + 2, at + 5, self.count - 20, self.count + 1)
                first = rng.choice((*near, self.count + 2, 30, 5_000, 10_030, 2**30))
                new = [*map(row, range(first, first + rng.choice((1, 2, 3, 10, 30, 100, 300))))]
            left -= sum(map(len, new))
            if left > 0:
                lines[at : at + rng.choice((0, 0, 1))] = new
        return b"".join(lines)

    def check(self, number: int) -> None:
        rng = random.Random(number)
        main_log(self.root, "a").write_bytes(self.forge(rng))
        with JSONLStore(self.root) as store:
            forward = list(store.read("a"))
            if list(store.read("a", reverse=True))[::-1] != forward:
                raise Wrong("not the same backwards")
            for count in (1, 4, 40, 130):
                if store.tail("a", count) != forward[-count:]:
                    raise Wrong(f"the tail of {count}")
            history = [event.seq for event in store.history("a")]
            if [seq for page in reversed(list(store.pages("a"))) for seq in page.seqs] != history:
                raise Wrong("not the same in pages")
            for bound in [rng.randrange(self.count + 5) for _ in range(6)]:
                above = [event for event in forward if event.seq > bound]
                if list(store.read("a", after=bound)) != above:
                    raise Wrong(f"after {bound}")
                below = [event for event in forward if event.seq <= bound]
                if list(store.read("a", until=bound, reverse=True))[::-1] != below:
                    raise Wrong(f"until {bound}")
                check_fork(store, forward, bound + 1)
            new = [store.append("a", [NewEvent("later", {})])[0] for _ in range(3)]
            if list(store.read("a")) != forward + new:
                raise Wrong("an append changes what counts, or is not read")
            if list(store.read("a", reverse=True))[::-1] != forward + new:
                raise Wrong("not the same backwards, after an append")


def check_verbs(store: JSONLStore) -> None:
    """No verb raises what is not the library's own, or does not end."""
    head = store.info("a").head
    assert {info.id for info in store.sessions()} >= {"a", "b"}
    store.search("xxx")
    check_fork(store, list(store.read("a")), min(head, 12))
    with Session.open(store, "a") as session:
        for act in (session.messages, session.branches, session.checkpoints, session.history):
            try:
                act()
            except BacktrailError:
                continue


def check_fork(store: JSONLStore, forward: list[Event], until: int) -> None:
    """A fork has those events of its parent that count, up to where it begins."""
    if not forward or forward[-1].seq < until:
        return
    store.create(SessionInfo("fork"), base=("a", until))
    try:
        events, right = list(store.read("fork")), [e for e in forward if e.seq <= until]
        if events != right:
            raise Wrong(f"a fork has {[e.seq for e in events]}, right is {[e.seq for e in right]}")
        if list(store.read("fork", reverse=True))[::-1] != right:
            raise Wrong("a fork has other events backwards")
    finally:
        store.delete("fork")


def torment(sample: Sample | Long, first: int, count: int) -> None:
    for number in range(first, first + count):
        try:
            sample.check(number)
        except Exception as error:
            raise Wrong(f"forgery {number}: {type(error).__name__}: {error}") from error


def test_forged_lines(fast: Path) -> None:
    """Reads agree with the rules and with each other, and appends are read, whatever is there."""
    torment(Sample(fast), 0, 300)


def test_forged_lines_in_a_long_log(fast: Path) -> None:
    """Reads from the end, which look at some pages alone, agree with those from the front."""
    torment(Long(fast, 110 * 1024), 0, 40)


@pytest.mark.torture
@pytest.mark.parametrize(("size", "count"), [(110, 3000), (600, 600)])
def test_forged_lines_in_many_long_logs(fast: Path, size: int, count: int) -> None:
    """The same, thousands of times."""
    torment(Long(fast, size * 1024), 10_000, count)


@pytest.mark.parametrize("at", [30, 100, 150])
@pytest.mark.parametrize("count", [1, 30, 100, 250])
def test_forged_lines_that_bear_the_very_next_numbers(fast: Path, at: int, count: int) -> None:
    """Those that came first count, but for numbers that 32 KB of the log's own lead up to."""
    sample = Long(fast, 200 * 1024)
    forgery = [*map(row, range(at + 1, at + 1 + count))]
    data = b"".join([*sample.lines[:at], *forgery, *sample.lines[at:]])
    main_log(fast, "a").write_bytes(data)
    with JSONLStore(fast) as store:
        forward = list(store.read("a"))
        assert [event.id for event in forward] == [found.id for found in counted(data)]
        assert [event.seq for event in forward] == [*range(1, sample.count + 1)]
        assert list(store.read("a", reverse=True))[::-1] == forward
        false = {event.seq for event in forward if event.id.startswith("f")}
        assert false == set(range(at + 1, at + 1 + len(false)))
        assert len(false) == count if count < 60 else 55 < len(false) < 65
        assert len([problem for problem in store.verify() if problem.seqs]) == count


def test_forged_lines_that_go_on_beyond_the_end(fast: Path) -> None:
    """Neither the log nor a fork of it ends with numbers that its own lines do not have."""
    sample = Long(fast, 110 * 1024)
    for at in (100, 120, 140):
        forgery = map(row, range(at + 1, at + 281))
        data = b"".join([*sample.lines[:at], *forgery, *sample.lines[at:]])
        main_log(fast, "a").write_bytes(data)
        with JSONLStore(fast) as store:
            forward = list(store.read("a"))
            assert [event.id for event in forward] == [found.id for found in counted(data)]
            assert forward[-1].seq == sample.count
            assert list(store.read("a", reverse=True))[::-1] == forward
            for until in range(at + 55, min(at + 75, sample.count)):
                check_fork(store, forward, until)
            later = store.append("a", [NewEvent("later", {})])
            assert list(store.read("a")) == forward + later


def test_two_runs_of_forged_lines_decide_nothing_about_each_other(fast: Path) -> None:
    """What counts up to a number is so in a fork up to it, too, whatever is forged behind that."""
    sample = Long(fast, 160 * 1024)
    lines, counts = list(sample.lines), 0
    lines[220:220] = map(row, range(221, 241))
    lines[100:100] = map(row, range(101, 201))
    data = b"".join(lines)
    main_log(fast, "a").write_bytes(data)
    with JSONLStore(fast) as store:
        forward = list(store.read("a"))
        assert [event.id for event in forward] == [found.id for found in counted(data)]
        assert list(store.read("a", reverse=True))[::-1] == forward
        for until in (*range(98, 205), *range(215, 250)):
            check_fork(store, forward, until)
            above = [event for event in forward if event.seq > until]
            assert list(store.read("a", after=until)) == above
            counts += above[0].id.startswith("f")
    assert counts > 20


@pytest.mark.torture
def test_forged_lines_at_length(fast: Path) -> None:
    """The same, 100,000 times."""
    torment(Sample(fast), 10_000, 100_000)


def test_an_append_changes_nothing_about_older_lines(fast: Path) -> None:
    """Rows of forged numbers as long as the true ones: whichever count, they count afterwards."""
    make_sample(fast, 24)
    path = main_log(fast, "a")
    lines = path.read_bytes().splitlines(keepends=True)
    for stray in ((10_030, 26, 27, 10_031), (26, 27, 10_031), (10_030, 40, 50), (30, 31, 32)):
        for at in (20, 21, 22, 23):
            path.write_bytes(b"".join([*lines[:at], *map(row, stray), *lines[at:]]))
            with JSONLStore(fast) as store:
                before = list(store.read("a"))
                new = [store.append("a", [NewEvent("later", {})])[0] for _ in range(3)]
            with JSONLStore(fast) as store:
                assert list(store.read("a")) == before + new, (stray, at)
                assert list(store.read("a", reverse=True))[::-1] == before + new, (stray, at)


def test_forged_lines_that_an_append_makes_an_anchor(fast: Path) -> None:
    """The one append that changes older lines makes forged ones 32 KB, across those before."""
    changes = 0
    with JSONLStore(fast) as store:
        store.create(SessionInfo("a"))
        for _ in range(130):
            store.append("a", [NewEvent("test", {"pad": "x" * 500})])
        path = main_log(fast, "a")
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:50], b"lost\n", *lines[51:], *map(row, range(51, 136))]))
    with JSONLStore(fast) as store:
        for _ in range(12):
            before = list(store.read("a"))
            new = store.append("a", [NewEvent("test", {"pad": "x" * 3000})])
            after = list(store.read("a"))
            assert [e.id for e in after] == [found.id for found in counted(path.read_bytes())]
            assert list(store.read("a", reverse=True))[::-1] == after
            changes += after != before + new
    assert changes == 1


def test_forged_lines_find_a_reader_that_believes_all(fast: Path) -> None:
    """The rules fail on a reader that takes any line whose check sum is right."""
    with variants.believing_forged_lines(), pytest.raises(Wrong):
        torment(Sample(fast), 0, 200)


def test_a_line_whose_number_is_not_first_is_damage(fast: Path) -> None:
    """It is reported, and reads both ways leave it out."""
    text = line({"uuid": "late", "seq": 22, "ts": TS, "event": "test", "data": {}})
    with opened(fast, text, at=19) as store:
        assert [event.seq for event in store.read("a")] == list(range(1, 25))
        assert [event.seq for event in store.read("a", reverse=True)] == list(range(24, 0, -1))
        assert store.verify()


# --- single ones -------------------------------------------------------------------------


def opened(root: Path, *behind: bytes, at: int = 24) -> JSONLStore:
    """The sample with lines put in at a place."""
    make_sample(root, 24)
    lines = main_log(root, "a").read_bytes().splitlines(keepends=True)
    main_log(root, "a").write_bytes(b"".join([*lines[:at], *behind, *lines[at:]]))
    return JSONLStore(root)


def row(seq: int, **fields: Any) -> bytes:
    return line({"seq": seq, "uuid": f"f{seq}", "ts": TS, "event": "test", **fields, "data": {}})


@pytest.mark.parametrize("at", [0, 1, 12, 21, 24])
@pytest.mark.parametrize("seq", [9_999, 50_000, 2**30, 2**31 - 1, 2**31, 10**18, 10**19 - 1])
def test_a_number_far_away_hides_nothing(fast: Path, seq: int, at: int) -> None:
    """Neither the events behind it, which it is not, nor those appended later."""
    with opened(fast, row(seq), at=at) as store:
        if at == 24 and seq < 10_000:
            # At the end it looks like one whose neighbours are lost.
            return
        assert [event.seq for event in store.read("a")] == list(range(1, 25))
        assert store.verify()
        new = store.append("a", [NewEvent("later", {})])[0]
        assert new.seq < 10_100
        assert list(store.read("a"))[-1] == store.tail("a", 1)[0] == new


def test_an_event_that_follows_itself_or_a_later_one_is_damage(fast: Path) -> None:
    """It is reported, and the branches of the log can be drawn."""
    with opened(fast, row(25, follows=25), row(26, follows=27), row(27, follows=-1)) as store:
        assert [event.seq for event in store.read("a")] == list(range(1, 25))
        assert [problem.seqs for problem in store.verify()] == [(25,), (26,), (27,)]
        with Session.open(store, "a") as session:
            assert session.branches() == []


def test_lines_longer_than_a_look_back_hide_nothing(fast: Path) -> None:
    """Copies of long old lines, wherever they are, do not hide events from `read(after=)`."""
    with JSONLStore(fast) as store:
        store.create(SessionInfo("a"))
        for n in range(1, 61):
            text = "x" * (300_000 if n == 2 else 2_000)
            store.append("a", [NewEvent("test", {"n": n, "text": text})])
    lines = main_log(fast, "a").read_bytes().splitlines(keepends=True)
    for at in (20, 35, 58):
        for copies in (1, 2, 3):
            changed = [*lines[:at], *[lines[1]] * copies, *lines[at:]]
            main_log(fast, "a").write_bytes(b"".join(changed))
            with JSONLStore(fast) as store:
                for after in (1, 2, 3, 19, 30, 57):
                    found = [event.seq for event in store.read("a", after=after)]
                    assert found == list(range(after + 1, 61)), (at, copies, after)


@pytest.mark.parametrize("batch", [[1, 10**6], [1, 3], [2, 3]])
def test_a_fork_leaves_out_a_batch_that_never_ends(fast: Path, batch: list[int]) -> None:
    """No read counts its lines, so a fork that is cut off there has none of them."""
    make_sample(fast, 24)
    path = main_log(fast, "a")
    lines = path.read_bytes().splitlines(keepends=True)
    for at in (10, 11, 12, 18):
        path.write_bytes(b"".join([*lines[:at], row(at + 1, batch=batch), *lines[at + 1 :]]))
        with JSONLStore(fast) as store:
            right = [found.id for found in counted(path.read_bytes())]
            forward = list(store.read("a"))
            assert [event.id for event in forward] == right
            for until in range(at - 1, at + 4):
                check_fork(store, forward, until)


def test_a_lost_line_and_a_forged_row_are_reported_alike(fast: Path) -> None:
    """Behind a lost number the course decides, for `read(after=)` and for forks as for all."""
    make_sample(fast, 24)
    path = main_log(fast, "a")
    lines = path.read_bytes().splitlines(keepends=True)
    for at in (15, 20, 24):
        path.write_bytes(b"".join([*lines[:2], b"lost\n", *lines[3:at], *map(row, range(3, 60))]))
        right = [(found.seq, found.id) for found in counted(path.read_bytes())]
        with JSONLStore(fast) as store:
            forward = list(store.read("a"))
            assert [(event.seq, event.id) for event in forward] == right
            for until in range(1, 60):
                above = [event for event in forward if event.seq > until]
                assert list(store.read("a", after=until)) == above, (at, until)
                check_fork(store, forward, until)


def test_a_fork_believes_no_less_than_its_parent(fast: Path) -> None:
    """Of many lost events the bytes are left in the log, and they are what a gap is known by."""
    with JSONLStore(fast) as store:
        store.create(SessionInfo("a"))
        path = main_log(fast, "a")
        parts = [*map(row, range(1, 20)), bytes(40_000) + b"\n", *map(row, range(30_000, 30_040))]
        path.write_bytes(b"".join([*parts, row(5), *map(row, range(30_040, 30_060))]))
        forward = list(store.read("a"))
        assert [event.seq for event in forward] == [*range(1, 20), *range(30_000, 30_060)]
        for until in (19, 30_000, 30_001, 30_010, 30_039, 30_050):
            check_fork(store, forward, until)


def test_small_pages_agree_too(fast: Path) -> None:
    """Every place is near an edge, and reads both ways are the same."""
    sample = Sample(fast)
    for number in range(0, 200, 7):
        rng = random.Random(number)
        at = rng.randrange(25)
        new = [forged(rng, at + 1)]
        if number % 2:
            first = rng.choice((at + 2, at + 5, 24, 30, 5_000, 2**30))
            new = [row(seq) for seq in range(first, first + rng.choice((2, 3, 10, 30)))]
        lines = [*sample.lines[:at], *new, *sample.lines[at:]]
        main_log(fast, "a").write_bytes(b"".join(lines))
        with pages_of(300, 700), JSONLStore(fast) as store:
            forward = list(store.read("a"))
            assert list(store.read("a", reverse=True))[::-1] == forward, number
            later = store.append("a", [NewEvent("later", {})])
            if forward[-1].seq < 2**31 - 1:
                assert list(store.read("a")) == forward + later, number


@pytest.mark.parametrize("at", [0, 20, 290])
@pytest.mark.parametrize("first", [40, 150, 299, 9000, 2**30])
@pytest.mark.parametrize("count", [2, 400])
def test_forged_lines_in_a_row(fast: Path, at: int, first: int, count: int) -> None:
    """They bear each other out, and hide nothing: neither what is behind them nor what comes."""
    with JSONLStore(fast) as store:
        store.create(SessionInfo("a"))
        for _ in range(300):
            store.append("a", [NewEvent("test", {"pad": "x" * 1000})])
        events = list(store.read("a"))
    path = main_log(fast, "a")
    lines = path.read_bytes().splitlines(keepends=True)
    run = [row(seq) for seq in range(first, first + count)]
    data = b"".join([*lines[:at], *run, *lines[at:]])
    path.write_bytes(data)
    with JSONLStore(fast) as store:
        assert store.verify()
        forward = list(store.read("a"))
        assert [event.id for event in forward] == [found.id for found in counted(data)]
        if at < 270:
            assert forward == events
        assert list(store.read("a", reverse=True))[::-1] == forward
        assert store.tail("a", 5) == forward[-5:]
        new = store.append("a", [NewEvent("test", {})])
        new += store.append("a", [NewEvent("test", {}, id="given"), NewEvent("test", {})])
        assert list(store.read("a")) == forward + new
        assert list(store.read("a", reverse=True))[::-1] == forward + new
        assert list(store.read("a", after=forward[-3].seq)) == forward[-2:] + new
        assert store.info("a").head == new[-1].seq
        assert store.append("a", [NewEvent("test", {}, id="given")]) == [new[1]]
