"""What the next prompt's hook tells the live agent: one sentence, told once.

After a rewind of files alone, the agent's idea of the files is wrong until somebody tells it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .places import append_line, folder_of

if TYPE_CHECKING:
    from pathlib import Path

    from ..stores.base import Store

_LIMIT = 4000


def leave(store: Store, session_id: str, text: str) -> None:
    """Have the next prompt of a session told `text`; several are told together."""
    path = _path(store, session_id)
    path.parent.mkdir(0o700, exist_ok=True)
    append_line(path, _plain(text).encode("utf-8", "replace"))


def take(store: Store, *session_ids: str) -> str | None:
    """What was left for a session, by any of its names, and leave nothing; None if nothing was."""
    texts = [text for id in session_ids if (text := _take(store, id))]
    lines = dict.fromkeys(line for text in texts for line in text.split("\n") if line)
    return "\n".join(lines)[:_LIMIT] or None


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


def left_name(agent: str, native_id: str) -> str:
    """The name by which something is left for a native session that is no session of ours now."""
    from ..hashing import sha256

    return f"left-{sha256(f'{agent}:{native_id}'.encode()).hexdigest()[:32]}"


def _path(store: Store, session_id: str) -> Path:
    from ..events import check_session_id

    return folder_of(store) / "notes" / check_session_id(session_id)


def _plain(text: str) -> str:
    """One line without anything a terminal or a model would take for more than words."""
    return "".join(c if c.isprintable() else " " for c in text)[:_LIMIT]
