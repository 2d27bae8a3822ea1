"""Paths that are whole, sizes in one unit, models without programs that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from .acting import Project, empty, work


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = empty(tmp_path)
    work(made, model="claude-opus-4")
    return made


def test_config_shows_each_path_whole(project: Project) -> None:
    """However narrow the window is: half of a path cannot be copied."""
    with project.terminal("config", "show", columns=40, lines=120) as terminal:
        assert terminal.end() == 0
        assert project.url in terminal.screen.text.replace("\n", "")
        assert "…" not in terminal.screen.text


def test_sizes_are_what_was_asked_for(project: Project) -> None:
    """10 GB are 10 GB, and a file that is too large is over 20 MB."""
    found = project.run("gc", "--json", "--dry-run", BACKTRAIL_BUDGET="10GB").json
    assert found["budget"] == 10_000_000_000
    with (project.root / "big").open("wb") as file:
        file.truncate(20_000_001)
    rows = project.run("status", "--json").json["not_captured"]
    assert [(row["path"], row["reason"]) for row in rows] == [("big", "over 20 MB")]


def test_stats_by_model_names_models(project: Project) -> None:
    """A command that `record` ran has none."""
    assert project.run("record", "--", "true").code == 0
    rows = project.run("stats", "--json").json["by_model"]
    assert {row["name"] for row in rows} == {"claude-opus-4", ""}
