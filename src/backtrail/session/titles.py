"""What a session is called: its title, else what was said first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..events import SessionInfo
    from ..stores.base import Store

FORK = "⑂"
"""What stands before the title of a fork that was given none."""

LONGEST = 60
"""Characters of a title that was not given."""


def title_of(
    store: Store, info: SessionInfo, limit: int = LONGEST, masked: Callable[[str], str] = str
) -> str:
    """A session's title; without one, the beginning of what was said first, marked if it is a fork.

    Empty where nothing was said. What is `masked` is so before a cut.
    """
    if info.title:
        return shortened(masked(info.title), limit)
    # Here, so that a command line that shows its help loads neither events nor codecs.
    from ..events.history import NOTED
    from ..events.messages import speech_of

    said = list(store.read(info.id, kinds=("user_message",), limit=2))
    if len(said) == 2 and said[1].data.get(NOTED) == said[0].seq:
        # A hook noted the first, before the agent recorded what was said before it.
        del said[0]
    words = shortened(masked(speech_of(said[0].data.get("message"))), limit) if said else ""
    return f"{FORK} {words}" if words and info.relation == "fork" else words


def shortened(text: str, limit: int = 72) -> str:
    """A text on one line, cut at `limit` characters."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"
