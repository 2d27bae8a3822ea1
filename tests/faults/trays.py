"""Trays that are killed, refused and full at every call."""

from __future__ import annotations

import errno
import os
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.calls import NAMES, READS, REAL, Calls, Strike, filling, killing, refusing
from tests.faults.kill import Violation
from tests.faults.variants import Broken


class AtEveryCall(ABC):
    """A run on a tray, which is soon full, struck at each of its calls."""

    few: int
    """How many calls it makes at the least."""

    @abstractmethod
    def struck(self, folder: Path, calls: Calls, where: str) -> int:
        """One run, with these calls, and looked at; how many of them it made."""

    def _everywhere(
        self, folder: Path, make: Callable[[int], Strike], *,
        lasting: bool = False, names: tuple[str, ...] = NAMES,
    ) -> None:  # fmt: skip
        (folder / "whole").mkdir()
        count = self.struck(folder / "whole", Calls(names=names), "")
        for point in range(1, count + 1):
            place = folder / str(point)
            place.mkdir()
            calls = Calls(make(point), point, names=names, lasting=lasting)
            self.struck(place, calls, f"call {point}")
            shutil.rmtree(place)
        assert count > self.few

    def test_killed(self, fast: Path) -> None:
        self._everywhere(fast, lambda point: killing(random.Random(point)))

    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
    def test_refused(self, fast: Path, code: int) -> None:
        self._everywhere(fast, lambda point: refusing(code))

    def test_unreadable(self, fast: Path) -> None:
        self._everywhere(fast, lambda point: refusing(errno.EIO), names=READS)

    def test_full(self, fast: Path) -> None:
        """A disk that fills up in the middle of a write, and stays so."""

        def make(point: int) -> Strike:
            return filling(errno.ENOSPC, random.Random(point))

        self._everywhere(fast, make, lasting=True)

    def find(self, fast: Path, broken: Broken) -> None:
        """Killing fails on a tray that breaks its promise."""
        with broken(), pytest.raises(Violation):
            self.test_killed(fast)


@contextmanager
def kept_in_memory() -> Iterator[None]:
    """A tray that writes its header, and no record."""
    real = os.pwrite

    def lazy(fd: int, data: bytes, at: int) -> int:
        return len(data) if at == 20 else real(fd, data, at)

    with patch.object(os, "pwrite", lazy), patch.dict(REAL, {"pwrite": lazy}):
        yield
