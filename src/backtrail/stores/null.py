"""The store for sessions that must leave nothing behind."""

from __future__ import annotations

from .memory import MemoryStore
from .options import Options


def open_null(address: str, options: Options) -> NullStore:
    """`null:` takes no address."""
    return NullStore(scope=options.scope)


class NullStore(MemoryStore):
    """A memory store that forgets everything at `close` and never touches the disk.

    A session on it keeps its history while it lives, so a model is sent the same as on
    any other store.
    """

    def __init__(self, *, scope: str = "") -> None:
        super().__init__(scope=scope)
        self.url = "null:"

    def close(self) -> None:
        super().close()
        self._state.sessions.clear()
