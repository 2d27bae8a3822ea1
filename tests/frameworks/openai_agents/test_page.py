"""The page about this adapter runs as it stands."""

from __future__ import annotations

from pathlib import Path

from ..pages import run_pages


def test_the_page_runs(tmp_path: Path) -> None:
    """A reader who types it gets what it says."""
    assert run_pages("openai_agents", tmp_path) == ["openai-agents.md"]
