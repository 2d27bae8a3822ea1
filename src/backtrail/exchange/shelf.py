"""How sessions are put before people: ids cut short, marks, and which are offered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..events import SessionInfo
    from ..stores.base import Store

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"

PINNED = "pinned"
"""The tag of a session that is listed first and that retention leaves alone."""

ARCHIVED = "archived"
"""The tag of a session that is not listed."""

_DEEDS = ("user_message", "assistant_message", "tool_result", "action")
"""The kinds of events without which a session is empty."""


def short(id: str) -> str:
    """An id as it is shown: of a UUID the beginning, which finds it as well.

    Ours begin with the time, so eight characters would be the same for a minute.
    """
    found = re.fullmatch(_UUID, id)
    if found is None:
        return id
    return id[:13] if found[1] == "7" else id[:8]


def is_within(info: SessionInfo, folder: Path) -> bool:
    """Whether a session belongs to a folder or to one below it."""
    return info.cwd is not None and Path(info.cwd).is_relative_to(folder)


def is_empty(store: Store, info: SessionInfo) -> bool:
    """Whether an agent was opened, and neither said nor did anything, on any branch."""
    if info.message_count or not isinstance(info.metadata.get("native"), dict):
        return False
    return next(store.read(info.id, kinds=_DEEDS, limit=1), None) is None
