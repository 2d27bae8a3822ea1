"""What the next prompt's hook tells the live agent.

After files went back, the agent's idea of them is wrong until somebody tells it. The logs say
which files these are, but for an agent whose own conversation could not go back with ours: what
it thinks is in no log, so a note is left for it, and told once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .places import append_line, folder_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ...stores.base import Store

_LIMIT = 4000
_MANY = 30
_NAME = 100


def leave(store: Store, session_id: str, text: str) -> None:
    """Have the next prompt of a session told `text`; several are told together."""
    path = _path(store, session_id)
    path.parent.mkdir(0o700, exist_ok=True)
    append_line(path, _plain(text).encode("utf-8", "replace"))


def take(store: Store, session_id: str) -> list[str]:
    """What was left for a session, each once, and leave nothing."""
    text = _take(store, session_id) or ""
    return list(dict.fromkeys(line for line in text.split("\n") if line))


def restored(paths: Sequence[str]) -> str:
    """A sentence for an agent whose idea of these files is wrong."""
    names = ", ".join(_plain(name)[:_NAME] for name in paths[:_MANY])
    more = f" and {len(paths) - _MANY} more" if len(paths) > _MANY else ""
    return (
        "The user restored these files to an earlier state with Backtrail: "
        f"{names}{more}; read them again before you change them."
    )


def _take(store: Store, session_id: str) -> str | None:
    path = _path(store, session_id)
    taken = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A move, so that of two hooks only one tells it.
        path.rename(taken)
    except FileNotFoundError:
        return None
    try:
        return taken.read_text("utf-8", "replace")
    finally:
        taken.unlink(missing_ok=True)


def _path(store: Store, session_id: str) -> Path:
    from ...events import check_session_id

    return folder_of(store) / "notes" / check_session_id(session_id)


def _plain(text: str) -> str:
    """One line without anything a terminal or a model would take for more than words."""
    return "".join(c if c.isprintable() else " " for c in text)[:_LIMIT]
