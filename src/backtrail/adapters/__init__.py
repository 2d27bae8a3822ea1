"""Sessions for agent frameworks: each keeps its own interface, and its sessions are ours.

    claude_sdk        Claude Agent SDK            `BacktrailSessionStore`
    langgraph         LangGraph                   `BacktrailSaver`, `BacktrailStore`
    openai_agents     OpenAI Agents SDK           `BacktrailSession`
    google_adk        Google ADK                  `BacktrailSessionService`, `…ArtifactService`
    pydantic_ai       pydantic-ai                 `BacktrailConversationStore`
    strands           Strands Agents              `BacktrailSessionRepository`, `BacktrailStorage`
    agent_framework   Microsoft Agent Framework   `…HistoryProvider`, `…CheckpointStorage`

One module and one extra a framework. A module imports its framework's interface and nothing
else of it, and nothing here imports a module: a caller that has no framework pays for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._startup.extras import install_line
from ..errors import Unsupported
from ..stores.base import Store
from ..stores.opening import open_store


class MissingFramework(Unsupported, ImportError):
    """The framework of an adapter is not installed; the message has the line that does it."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the imports of a framework: without it, the exact line that installs it."""
    try:
        yield
    except ImportError as error:
        raise MissingFramework(
            f"`backtrail.adapters.{extra.replace('-', '_')}` needs a package that is not installed "
            f"({error}): {install_line(extra)}"
        ) from error


class Place:
    """The store of an adapter: a `Store`, which stays its caller's, or a URL, or the default."""

    def __init__(self, store: Store | str | None) -> None:
        self._owns = not isinstance(store, Store)
        self.store = store if isinstance(store, Store) else open_store(store)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        if self._owns:
            self.store.close()


__all__ = ["MissingFramework", "Place", "needs"]
