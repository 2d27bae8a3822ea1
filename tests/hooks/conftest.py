"""A world for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from .calling import Agent, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A project, a store and a home."""
    return World(tmp_path)


@pytest.fixture
def agent(world: World) -> Agent:
    """Claude Code in that project."""
    return Agent(world)
