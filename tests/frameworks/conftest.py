"""Collect the folder of the framework that this environment has."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Whether a folder is of a framework that is not there."""
    if collection_path.parent != HERE or not collection_path.is_dir():
        return None
    return collection_path.name != os.environ.get("BACKTRAIL_TEST_FRAMEWORK") or None
