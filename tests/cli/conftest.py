"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.stage import Stage, work


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """An empty project."""
    made = Stage(tmp_path)
    made.project.mkdir()
    # Otherwise the first verb would say that it makes it.
    (tmp_path / "store").mkdir(mode=0o700)
    return made


@pytest.fixture
def worked(stage: Stage) -> Stage:
    """A project with a session `work` of two turns."""
    work(stage)
    return stage
