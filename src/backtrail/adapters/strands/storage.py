"""Strands' storage of bytes on a store: a log for each key, whose newest event is its value."""

from __future__ import annotations

import base64
import builtins
from collections.abc import Callable
from typing import TypeVar

from strands.storage.storage import StorageSearchResult, _normalize_key, _normalize_prefix
from strands.types.exceptions import StorageError

from ...errors import BacktrailError
from ...events import Json, NewEvent
from ...events.lognames import log_name, log_texts
from ...session.threads import run
from ...stores.base import Store
from .._bridge import Bridge

VALUE = "strands_value"
"""The kind of an event that holds a value."""

_HOME = "storage"

T = TypeVar("T")


class BacktrailStorage:
    """Bytes under keys, such as snapshots of agents. A store passed in stays open.

    Earlier values of a key stay in its log until the key is deleted.
    """

    def __init__(self, store: Store | str | None = None) -> None:
        self._bridge = Bridge(store, "strands-storage")
        self.store = self._bridge.store

    def close(self) -> None:
        """Let go of the store where it was opened here."""
        self._bridge.close()

    async def write(self, key: str, data: bytes) -> None:
        """Keep bytes under a key, in the place of others."""
        new = NewEvent(VALUE, _held(bytes(data)))
        await self._do(lambda: self.store.append(self._home(), [new], log=_log(key)))

    async def read(self, key: str) -> bytes | None:
        """The bytes under a key, or None."""
        log = _log(key)
        found = await self._do(
            lambda: next(self.store.read(self._home(), log=log, reverse=True, limit=1), None)
        )
        return None if found is None else _bytes(found.data)

    async def delete(self, key: str) -> None:
        """Forget a key; one that is not there is fine."""
        log = _log(key)

        def act() -> None:
            home = self._home()
            if log in self.store.logs(home):
                self.store.delete(home, log=log)

        await self._do(act)

    async def list(self, query: str = "") -> builtins.list[str]:
        """The keys that begin so, sorted."""
        prefix = _normalize_prefix(query)
        names = await self._do(lambda: self.store.logs(self._home()))
        keys = ("/".join(log_texts(name)[1:]) for name in names if name.startswith("keys/"))
        return sorted(key for key in keys if key.startswith(prefix))

    async def search(self, query: str) -> builtins.list[StorageSearchResult]:
        """Values by the words in them, the best first."""
        from strands.storage.search.keyword import KeywordSearchStrategy

        return await KeywordSearchStrategy().search(self, query)

    async def _do(self, act: Callable[[], T]) -> T:
        try:
            return await run(act)
        except BacktrailError as error:
            raise StorageError(str(error)) from error

    def _home(self) -> str:
        return self._bridge.ensure(_HOME, named=False)


def _log(key: str) -> str:
    return log_name("keys", *_normalize_key(key).split("/"))


def _held(data: bytes) -> dict[str, Json]:
    """Bytes as text where they are, since that is what people read and search finds."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(data: dict[str, Json]) -> bytes:
    text = data.get("text")
    return text.encode() if isinstance(text, str) else base64.b64decode(str(data["base64"]))
