"""Where an event of Gemini CLI stands in its own record of the chat, and what it did to that.

Its conversation comes from hooks, which say nothing of `/rewind` and `/restore`. The record does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ...events import Json, NewEvent
    from ...stores.base import Store


def source(native_id: str, chat: Path | None) -> dict[str, Json]:
    """What an event says of the record; nothing where there is none."""
    try:
        size = os.stat(chat).st_size if chat is not None else 0  # noqa: PTH116 - a hook's path
    except OSError:
        return {}
    return {"source": {"file": native_id, "at": size}} if size else {}


def turns_of_chat(
    store: Store, session_id: str, native_id: str, chat: Path | None
) -> Iterator[NewEvent]:
    """The rewinds and summaries that Gemini CLI made by itself since the last event.

    Each is to be appended before the next is asked for.
    """
    from .format import BACK, STAMPED, stamp_of

    last = next(store.read(session_id, kinds=STAMPED, reverse=True, limit=1), None)
    stamp = stamp_of(last) if last is not None else None
    if chat is None or stamp is None or stamp.file != native_id:
        return
    try:
        with chat.open("rb") as file:
            file.seek(stamp.end)
            new = file.read()
    except OSError:
        return
    if any(mark in new for mark in BACK):
        from .sessions import turns_of_chat

        size = stamp.end + len(new)
        yield from turns_of_chat(store, session_id, native_id, chat, stamp.end, size)
