"""Sessions for asyncio and trio; a door to `backtrail.session.aio`."""

from __future__ import annotations

from .session.aio import *  # noqa: F403 - all of it
