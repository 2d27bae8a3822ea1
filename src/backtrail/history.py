"""The path through a log; a door to `backtrail.events.history`."""

from __future__ import annotations

from .events.history import *  # noqa: F403 - all of it
from .events.operations import *  # noqa: F403 - undo and redo
