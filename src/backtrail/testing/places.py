"""What both contracts share: a place for each test, opened as often as it wants."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pytest


class Closing(Protocol):
    """Something that is opened and closed."""

    def close(self) -> None:
        """Let go of it."""


Opened = TypeVar("Opened", bound=Closing)


class PlaceBase(Generic[Opened]):
    """The settings of a contract, and how its rules open what they are about."""

    persistent = True
    """Whether opening a place again shows what was written there."""

    shared = True
    """Whether several processes can use one place at a time."""

    def make(self, place: Path) -> Opened:
        """Open one that keeps its data in `place`."""
        raise NotImplementedError("a contract needs `make`")

    # --- tools ---------------------------------------------------------------------------

    def open(self, tmp_path: Path) -> Opened:
        """One in this test's place; closed when the test ends."""
        place = tmp_path / "place"
        place.mkdir(exist_ok=True)
        made = self.make(place)
        self.__dict__.setdefault("_opened", []).append(made)
        return made

    def reopen(self, one: Opened, tmp_path: Path) -> Opened:
        """The same place opened anew, after closing `one`."""
        self.need_persistent()
        one.close()
        return self.open(tmp_path)

    def second(self, one: Opened, tmp_path: Path) -> Opened:
        """Another object on the same place; the same one where there is no other."""
        return self.open(tmp_path) if self.persistent else one

    def teardown_method(self) -> None:
        """Close what the test opened."""
        for one in self.__dict__.pop("_opened", []):
            one.close()

    def need_persistent(self) -> None:
        """Skip the test where the data goes with the object."""
        if not self.persistent:
            pytest.skip("it is not persistent")

    def need_shared(self) -> None:
        """Skip the test where one process has a place for itself."""
        if not (self.shared and self.persistent):
            pytest.skip("it is not shared between processes")
