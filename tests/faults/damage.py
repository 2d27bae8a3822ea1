"""Logs with damage in them, made by hand, and what must be true of every one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.faults.raw import main_log, numbers, raw_lines

from backtrail.events import Event, NewEvent, Problem, SessionInfo
from backtrail.stores.jsonl import JSONLStore, course, folder, reading, writing
from backtrail.stores.opening import Options

BATCHES = {5: 3, 11: 2, 20: 4}
"""In the sample log: the batch that begins at this number, and its length."""


class Wrong(AssertionError):
    """A rule about damaged logs that was broken."""


def make_sample(root: Path, count: int = 30, size: int = 0) -> list[Event]:
    """A session `a` with singles and batches, and a session `b` beside it."""
    events: list[Event] = []
    with JSONLStore(root) as store:
        for id in ("a", "b"):
            store.create(SessionInfo(id, title=f"title of {id}"))
        store.append("b", [NewEvent("other", {"n": n}) for n in range(3)])
        while len(events) < count:
            length = min(BATCHES.get(len(events) + 1, 1), count - len(events))
            batch = [
                # The number inside the data is bait for a reader that searches for lines.
                NewEvent("test", {"n": n, "in": {"seq": 1}, "text": "x" * size}, id=f"e{n}")
                for n in range(len(events) + 1, len(events) + 1 + length)
            ]
            events += store.append("a", batch)
    return events


@contextmanager
def pages_of(first: int, most: int) -> Iterator[None]:
    """Pages so small that a short log has many."""
    with ExitStack() as stack:
        for module in (reading, writing):
            stack.enter_context(patch.object(module, "FIRST", first))
        for module in (reading, writing, folder):
            stack.enter_context(patch.object(module, "MOST", most))
        stack.enter_context(patch.object(course, "ANCHOR", first // 2))
        yield


class Damaged:
    """A store whose session `a` has been given other bytes, and the checks on it."""

    def __init__(self, root: Path, data: bytes) -> None:
        self.root = root
        self.path = main_log(root, "a")
        self.path.write_bytes(data)
        self.reported: list[Problem] = []
        self.store = JSONLStore(root, Options(on_damage=self.reported.append))

    def check(self, expected: list[Event], *, damaged: bool = True) -> list[Problem]:
        """Reads give `expected` both ways; the damage is reported once; writing goes on."""
        with self.store:
            self.check_reads(expected)
            problems = self.check_reported(damaged)
            self.check_going_on(expected, problems)
        with JSONLStore(self.root) as store:
            if [event.seq for event in store.read("b")] != [1, 2, 3] or len(store.sessions()) != 2:
                raise Wrong("another session is hidden")
        return problems

    def check_reads(self, expected: list[Event]) -> None:
        """Forward, backward, the tail and every range agree."""
        store = self.store
        forward = list(store.read("a"))
        if forward != expected:
            raise Wrong(f"forward: {_seqs(forward)}, expected {_seqs(expected)}")
        backward = list(store.read("a", reverse=True))[::-1]
        if backward != expected:
            raise Wrong(f"backward: {_seqs(backward)}, expected {_seqs(expected)}")
        for count in (1, 3, 8):
            if store.tail("a", count) != expected[-count:]:
                raise Wrong(f"tail of {count}: {_seqs(store.tail('a', count))}")
        self.check_ranges(expected, (2, 5, 6, 14, 15, 21, 29, 30))

    def check_ranges(self, expected: list[Event], bounds: tuple[int, ...]) -> None:
        """Reads from and up to a number give what a whole read has there."""
        for bound in bounds:
            above = [event for event in expected if event.seq > bound]
            below = [event for event in expected if event.seq <= bound]
            for shown, right, what in (
                (list(self.store.read("a", after=bound)), above, "after"),
                (list(self.store.read("a", until=bound)), below, "until"),
                (list(self.store.read("a", after=bound, reverse=True))[::-1], above, "back after"),
                (list(self.store.read("a", until=bound, reverse=True))[::-1], below, "back until"),
            ):
                if shown != right:
                    raise Wrong(f"{what} {bound}: {_seqs(shown)}, expected {_seqs(right)}")

    def check_reported(self, damaged: bool) -> list[Problem]:
        """`verify` reports the damage with its place; `on_damage` got each place once."""
        problems = self.store.verify()
        if bool(problems) != damaged:
            raise Wrong(f"verify reports {problems}")
        size = self.path.stat().st_size
        for problem in problems:
            if problem.session_id != "a" or problem.offset is None or problem.length is None:
                raise Wrong(f"a problem without a place: {problem}")
            if not 0 <= problem.offset <= problem.offset + problem.length <= size:
                raise Wrong(f"a place outside the file: {problem}")
        list(self.store.read("a"))
        list(self.store.read("a", reverse=True))
        if len(set(self.reported)) != len(self.reported):
            raise Wrong(f"reported twice: {self.reported}")
        places = {(problem.offset, problem.what) for problem in problems}
        batches = {seq for problem in problems for seq in problem.seqs}
        for problem in self.reported:
            torn = problem.what == "torn batch" and batches.issuperset(problem.seqs)
            if not torn and (problem.offset, problem.what) not in places:
                raise Wrong(f"reported and not verified: {problem} not in {problems}")
        return problems

    def check_going_on(self, expected: list[Event], problems: list[Problem]) -> None:
        """Later events come behind, under unused numbers, and the damage does not grow."""
        data = self.path.read_bytes()
        used = numbers(data) | {line.last for line in raw_lines(data) if line.seq}
        new = self.store.append("a", [NewEvent("later", {})])
        new += self.store.append("a", [NewEvent("later", {}), NewEvent("later", {})])
        # A number that no log reaches is a number that was not given out.
        if new[0].seq <= max((seq for seq in used if seq < 1_000_000), default=0):
            raise Wrong(f"number {new[0].seq} is used again")
        self.store.append("a", [NewEvent("later", {}, id=event.id) for event in expected[-2:]])
        whole = {line.seq for line in raw_lines(self.path.read_bytes())}
        if not whole.issuperset(event.seq for event in new):
            raise Wrong("a new event has no line of its own")
        forward = list(self.store.read("a"))
        # What lacked only its newline is complete once the tail is sealed.
        mended = [event for event in forward if event in expected or event in new]
        if mended != expected + new or len(forward) - len(mended) > 4:
            raise Wrong(f"after appending: {_seqs(forward)}")
        if list(self.store.read("a", reverse=True))[::-1] != forward:
            raise Wrong("after appending: not the same backwards")
        before = {problem.offset for problem in problems}
        if not {problem.offset for problem in self.store.verify()} <= before:
            raise Wrong(f"the damage grew: {self.store.verify()}, before {problems}")


def _seqs(events: list[Event]) -> list[int]:
    return [event.seq for event in events]
