"""Redaction when something is appended: what is masked here is in no log, ever.

Events, records and project notes go through `redact` on their way in. Contents of files do
not: they must come back byte for byte.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..errors import InvalidData
from ..events import MAIN_LOG, Event, Json, NewEvent, SessionInfo, encode_data
from ..events.messages import Page
from ..formats.secrets import Redact, mask_json
from .adopting import Logs
from .base import KnownIds, Store
from .disk import forks
from .notes import Memory
from .opening import open_store
from .wrapper import Wrapper

_RECORD = ("title", "metadata")


class Redacting(Wrapper):
    """Masks secrets in everything that is written through it; `masked` counts them.

    `redact` gets a JSON value and returns it without its secrets, and how many there were;
    by default well-known shapes of keys are masked. Ids, kinds, keys and directories stay
    as they are, because others look things up by them.
    """

    def __init__(self, store: Store | str, redact: Redact = mask_json) -> None:
        super().__init__(store if isinstance(store, Store) else open_store(store))
        self._redact = redact
        self._counting = threading.Lock()
        self.masked = 0
        forks.register(self)

    def after_fork(self) -> None:
        self._counting = threading.Lock()

    def _clean(self, value: Json) -> Json:
        cleaned, count = self._redact(value)
        if count:
            with self._counting:
                self.masked += count
        return cleaned

    def _event(self, event: NewEvent) -> NewEvent:
        # Refused here if it is no JSON, so that `redact` only ever sees JSON.
        encode_data(event.data)
        data = self._clean(dict(event.data))
        if not isinstance(data, dict):
            raise InvalidData(f"`redact` made {type(data).__name__} of an event's data")
        return NewEvent(event.kind, data, event.id, event.follows, event.ts)

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        cleaned = [self._event(event) for event in events]
        return self.inner.append(session_id, cleaned, log=log, expected=expected, known=known)

    def append_many(self, batches: Mapping[str, Sequence[NewEvent]]) -> dict[str, list[Event]]:
        cleaned = {id: [self._event(event) for event in new] for id, new in batches.items()}
        return self.inner.append_many(cleaned)

    def kept(self, data: Mapping[str, Json]) -> Mapping[str, Json]:
        masked, _ = self._redact(dict(data))
        kept: Mapping[str, Json] = self.inner.kept(masked)
        return kept

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        self.inner.create(self._record(info), base=base)

    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        cleaned = {log: self._events(events) for log, events in logs.items()}
        self.inner.adopt(self._record(info), cleaned)

    def _events(self, events: Iterable[NewEvent]) -> Iterator[NewEvent]:
        return (self._event(event) for event in events)

    def _record(self, info: SessionInfo) -> SessionInfo:
        encode_data({name: getattr(info, name) for name in _RECORD})
        return replace(info, **{name: self._clean(getattr(info, name)) for name in _RECORD})

    def update(
        self, session_id: str, *, expected: int | None = None, **changes: Json
    ) -> SessionInfo:
        for name in _RECORD:
            if name in changes:
                encode_data({name: changes[name]})
                changes[name] = self._clean(changes[name])
        return self.inner.update(session_id, expected=expected, **changes)

    def memory(self, cwd: str | os.PathLike[str]) -> Memory:
        return _RedactingMemory(self.inner.memory(cwd), self)

    def pages(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Page]:
        return self.inner.pages(session_id, until=until, log=log)


class _RedactingMemory(Memory):
    """A project's note, masked when it is written."""

    def __init__(self, inner: Memory, store: Redacting) -> None:
        self._inner = inner
        self._store = store

    def read(self) -> str:
        return self._inner.read()

    def write(self, text: str) -> None:
        self._inner.write(self._store._clean(text))
