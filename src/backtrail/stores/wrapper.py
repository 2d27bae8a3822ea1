"""A store around a store: buffering, broadcasting and redaction are wrappers, not flags."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ..events import MAIN_LOG, Checkpoint, Event, Hit, Json, NewEvent, Problem, SessionInfo
from ..events.history import Mark
from .base import Lease, Store
from .records import Filters, Range

if TYPE_CHECKING:
    from .adopting import Logs
    from .notes import Memory


class Wrapper(Store):
    """Hands every call to `inner`; override what should differ.

    Closing the wrapper closes the inner store.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._describe(inner)

    def _describe(self, inner: Store) -> None:
        """Say of itself what holds for the store behind."""
        self.url = inner.url
        self.scope = inner.scope
        self.environment = inner.environment
        self.contents = inner.contents
        self.durability = inner.durability
        self.places = inner.places

    @property
    def wrapped(self) -> Store:
        """The store behind, as it is: asking waits for nothing and writes nothing."""
        return self.inner

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def former_name(self) -> str:
        return self.inner.former_name

    def log_file(self, session_id: str) -> Path | None:
        return self.inner.log_file(session_id)

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        self.inner.create(info, base=base)

    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        self.inner.adopt(info, logs)

    def info(self, session_id: str) -> SessionInfo:
        return self.inner.info(session_id)

    def update(self, session_id: str, **changes: Json) -> SessionInfo:
        return self.inner.update(session_id, **changes)

    def sessions(self, **filters: Unpack[Filters]) -> list[SessionInfo]:
        return self.inner.sessions(**filters)

    def kept(self, data: Mapping[str, Json]) -> Mapping[str, Json]:
        kept: Mapping[str, Json] = self.inner.kept(data)
        return kept

    def delete(self, session_id: str, *, log: str | None = None) -> None:
        self.inner.delete(session_id, log=log)

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
    ) -> list[Event]:
        return self.inner.append(session_id, events, log=log, expected=expected)

    def read(
        self, session_id: str, *, log: str = MAIN_LOG, **events: Unpack[Range]
    ) -> Iterator[Event]:
        return self.inner.read(session_id, log=log, **events)

    def purge(self, session_id: str, seqs: Collection[int], *, log: str = MAIN_LOG) -> None:
        self.inner.purge(session_id, seqs, log=log)

    def logs(self, session_id: str) -> list[str]:
        return self.inner.logs(session_id)

    def lease(self, session_id: str, *, wait: float = 0) -> AbstractContextManager[Lease]:
        return self.inner.lease(session_id, wait=wait)

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        self.inner.close()

    # The derived verbs go to the inner store too, which may know a faster way.

    def record(self, session_id: str) -> SessionInfo:
        return self.inner.record(session_id)

    def outline(
        self, session_id: str, *, kinds: Collection[str] = (), after: int = 0,
        until: int | None = None,
    ) -> list[Mark]:  # fmt: skip
        return self.inner.outline(session_id, kinds=kinds, after=after, until=until)

    def tally(self, session_id: str, *, after: int = 0, until: int | None = None) -> dict[str, int]:
        return self.inner.tally(session_id, after=after, until=until)

    def latest(self, cwd: str | os.PathLike[str]) -> SessionInfo:
        return self.inner.latest(cwd)

    def find(self, session_id: str, id: str, *, log: str = MAIN_LOG) -> Event:
        return self.inner.find(session_id, id, log=log)

    def checkpoint(self, id: str) -> Checkpoint:
        return self.inner.checkpoint(id)

    def search(self, text: str, *, limit: int = 20) -> list[Hit]:
        return self.inner.search(text, limit=limit)

    def memory(self, cwd: str | os.PathLike[str]) -> Memory:
        return self.inner.memory(cwd)

    def verify(self) -> list[Problem]:
        return self.inner.verify()

    def seal(self, *, dry_run: bool = False) -> int:
        return self.inner.seal(dry_run=dry_run)


def unwrapped(store: Store) -> Store:
    """The store itself, behind all that is around it."""
    while isinstance(store, Wrapper):
        store = store.wrapped
    return store


def store_name(store: Store) -> str:
    """The name under which sessions of a store rely on contents: by its id, else its URL."""
    id = unwrapped(store).id or store.url
    return f"{id}#{store.scope}" if store.scope else id


def store_names(store: Store) -> tuple[str, ...]:
    """The same, and the name that it had before it had an id, if it did."""
    former = unwrapped(store).former_name
    if not former:
        return (store_name(store),)
    return store_name(store), f"{former}#{store.scope}" if store.scope else former
