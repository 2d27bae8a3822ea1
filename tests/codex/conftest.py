"""A model on loopback for the real `codex`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .running import Model


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as server:
        yield server
