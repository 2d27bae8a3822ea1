"""The tray of the blob store: killed, refused and full at every call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.calls import REAL, Calls
from tests.faults.groups import named
from tests.faults.kill import Violation, forked
from tests.faults.trays import AtEveryCall, kept_in_memory
from tests.faults.variants import Broken

from backtrail.errors import StoreFailed
from backtrail.files.contents import content_tray
from backtrail.files.contents.blobs import Reference
from backtrail.files.contents.sqlite import SQLiteBlobs

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

STEPS = 26
"""Contents that are laid, one after another; with them a tray is filled twice."""


def little(n: int) -> bytes:
    return b"%d " % n + random.Random(n).randbytes(7_000 if n % 3 else 200)


def lay_all(blobs: SQLiteBlobs, tell: Callable[[int], None]) -> None:
    """Lay contents, each with a reference; now and then a transaction comes between."""
    for n in range(STEPS):
        content = little(n)
        with suppress(StoreFailed):
            blobs.write([(named(content), content)], [Reference("s", str(n), named(content))])
            tell(n)
        if n % 10 == 9:
            with suppress(StoreFailed):
                blobs.drop_references("nobody")


def check(path: Path, acknowledged: set[int], where: str) -> None:
    """All that was acknowledged is there, now and after it was moved; the store works."""
    with SQLiteBlobs(path) as blobs:
        for _ in range(2):
            held = {reference.log for reference in blobs.references()}
            there = blobs.has([named(little(n)) for n in acknowledged])
            for n in acknowledged:
                if str(n) not in held or named(little(n)) not in there:
                    raise Violation(f"{where}: {n} is lost")
                if blobs.get(named(little(n))) != little(n):
                    raise Violation(f"{where}: {n} is another")
            if problems := list(blobs.verify()):
                raise Violation(f"{where}: {problems}")
            blobs.put(b"goes on")
            blobs.put(b"goes on too")
            blobs.drop_references("nobody")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tray that is soon full."""
    monkeypatch.setattr(content_tray, "SIZE", 64 << 10)


@contextmanager
def not_moving() -> Iterator[None]:
    """A tray that is emptied, and the database gets nothing."""

    def broken(self: SQLiteBlobs, writer: object) -> None:
        if self._tray.laid().contents:
            self._tray.clear()

    with patch.object(SQLiteBlobs, "_empty_tray", broken):
        yield


class TestAtEveryCall(AtEveryCall):
    """Whatever was acknowledged is there afterwards; an error takes nothing of it."""

    few = 50

    def struck(self, folder: Path, calls: Calls, where: str) -> int:
        path = folder / "blobs.db"

        def body(pipe: int) -> None:
            def tell(n: int) -> None:
                REAL["write"](pipe, b"%d\n" % n)

            with SQLiteBlobs(path) as blobs, calls:
                lay_all(blobs, tell)
                with suppress(StoreFailed):
                    blobs.close()
            REAL["write"](pipe, b"=%d\n" % calls.count)

        lines = forked(body).told.decode().split()
        told = {int(line) for line in lines if line.isdigit()}
        check(path, told, where)
        return next((int(line[1:]) for line in lines if line.startswith("=")), 0)

    @pytest.mark.parametrize("broken", [not_moving, kept_in_memory])
    def test_broken_trays_are_found(self, fast: Path, broken: Broken) -> None:
        self.find(fast, broken)
