"""What a turn is made of; a door to `backtrail.session.turns`."""

from __future__ import annotations

from .session.turns import *  # noqa: F403 - all of it
