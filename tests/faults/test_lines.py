"""The tray of the catalogue: killed, refused and full at every call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.calls import REAL, Calls
from tests.faults.kill import Violation, forked
from tests.faults.trays import AtEveryCall, kept_in_memory
from tests.faults.variants import Broken

from backtrail.errors import StoreFailed
from backtrail.files.changes import timeline
from backtrail.files.changes.brackets import Bracket
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.changes.lines import Lines
from backtrail.files.workspace.roots import Identity

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

ROUNDS = 6

State = tuple[str, dict[str, bool]]
"""A tree, and the calls by name, each with whether it ended."""


def seen(catalogue: Catalogue, place: int) -> State:
    calls = {call.name: call.ended for call in catalogue.brackets(place)}
    return (catalogue.tree(place) or b"").hex(), calls


def end(catalogue: Catalogue, place: int, bracket: Bracket, tree: bytes) -> None:
    """End a call. What changed in it leads from its first tree to this one, step by step."""
    spans, _ = catalogue.end_bracket(place, bracket, tree, told=False)
    at = bracket.tree
    for span in spans:
        if span.before != at:
            raise Violation(f"{bracket.name}: from {at.hex()} to {span.before.hex()}")
        at = span.after
    if at != tree:
        raise Violation(f"{bracket.name}: {at.hex()}, not {tree.hex()}")


class Work:
    """Calls that begin, change files, end and are told; it says what will be, and what is."""

    def __init__(
        self, catalogue: Catalogue, place: int, calls: Calls, tell: Callable[[str, State], None]
    ) -> None:
        self._catalogue = catalogue
        self._place = place
        self._calls = calls
        self._tell = tell
        self._step = 0
        self._open: dict[str, Bracket] = {}

    def run(self) -> None:
        catalogue, place = self._catalogue, self._place
        for n in range(ROUNDS):
            there = [name for name in (f"one {n}", f"two {n}") if self._begin(name)]
            self._do(lambda tree: catalogue.record(place, tree), lambda now, tree: (tree, now[1]))
            for name in there:
                if self._end(name):
                    self._close(name)
            if n % 3 == 2:
                self._do(lambda _: catalogue.drop_journal(place), lambda now, _: now)

    def _begin(self, name: str) -> bool:
        def act(tree: bytes) -> None:
            bracket, _ = self._catalogue.open_bracket(self._place, "s", tree, None, name, None)
            self._open[name] = bracket

        return self._do(act, lambda now, tree: (tree, {**now[1], name: False}))

    def _end(self, name: str) -> bool:
        def act(tree: bytes) -> None:
            end(self._catalogue, self._place, self._open[name], tree)

        return self._do(act, lambda now, tree: (tree, {**now[1], name: True}))

    def _close(self, name: str) -> None:
        def gone(now: State, _: str) -> State:
            return now[0], {other: ended for other, ended in now[1].items() if other != name}

        self._do(lambda _: self._catalogue.close_bracket(self._place, self._open[name]), gone)

    def _do(self, act: Callable[[bytes], object], after: Callable[[State, str], State]) -> bool:
        """One step; whether it was done. One that is refused is not."""
        self._step += 1
        tree = self._step.to_bytes(32)
        before = self._seen()
        wanted = after(before, tree.hex())
        self._tell("?", wanted)
        try:
            act(tree)
            done = True
        except StoreFailed:
            done = False
        now = self._seen()
        if now != (wanted if done else before):
            raise Violation(f"step {self._step}: {now}, not {wanted if done else before}")
        self._tell("=", now)
        return done

    def _seen(self) -> State:
        """What is there, looked at without being struck."""
        self._calls.__exit__()
        try:
            return seen(self._catalogue, self._place)
        finally:
            self._calls.__enter__()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tray that is soon full."""
    monkeypatch.setattr(timeline, "_SIZE", 4 << 10)


@contextmanager
def not_moving() -> Iterator[None]:
    """A tray that is emptied, and the rows get nothing."""

    def broken(self: Lines, writer: object, newest: object = None) -> None:
        if self._tray.lines():
            self._tray.clear()

    with patch.object(Lines, "_empty_tray", broken):
        yield


class TestAtEveryCall(AtEveryCall):
    """Each change is there, or not at all: afterwards all is as it was said last."""

    few = 30

    def struck(self, folder: Path, calls: Calls, where: str) -> int:
        path = folder / "catalogue.db"

        def body(pipe: int) -> None:
            def tell(what: str, state: State) -> None:
                REAL["write"](pipe, f"{what}{json.dumps(state)}\n".encode())

            catalogue = Catalogue(path)
            place = catalogue.place(Identity(1, 2, 3), b"/work").n
            with calls:
                Work(catalogue, place, calls, tell).run()
            REAL["write"](pipe, b"#%d\n" % calls.count)
            catalogue.close()

        lines = forked(body).told.decode().splitlines()
        known = [n for n, line in enumerate(lines) if line.startswith("=")]
        candidates = lines[known[-1] if known else 0 :]
        may = [tuple(json.loads(line[1:])) for line in candidates if line[0] in "=?"] or [("", {})]
        if not known:
            may.append(("", {}))
        catalogue = Catalogue(path)
        place = catalogue.place(Identity(1, 2, 3), b"/work").n
        for _ in range(2):
            now = seen(catalogue, place)
            if now not in may:
                raise Violation(f"{where}: {now}, not one of {may}")
            catalogue.drop_journal(place)
        for bracket in catalogue.brackets(place):
            if not bracket.ended:
                end(catalogue, place, bracket, b"\xff" * 32)
        catalogue.close()
        return next((int(line[1:]) for line in lines if line.startswith("#")), 0)

    @pytest.mark.parametrize("broken", [not_moving, kept_in_memory])
    def test_broken_trays_are_found(self, fast: Path, broken: Broken) -> None:
        self.find(fast, broken)
