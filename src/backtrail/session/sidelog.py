"""Side logs of a session: raw streams for audit, the logs of subagents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import InvalidData
from ..events import MAIN_LOG, Event, Json, NewEvent
from ..stores.base import Store


class SideLog:
    """A log beside the main one: raw streams, subagents. Appends are buffered."""

    def __init__(self, store: Store, session_id: str, name: str) -> None:
        self._store = store
        self._id = session_id
        self.name = name

    def append(
        self, data: Mapping[str, Json], *, kind: str = "entry", id: str | None = None
    ) -> Event:
        """Append an entry; its `seq` is 0 until it is written.

        The main log is not for this: `Session.append` and `Session.record` write there.
        """
        if self.name == MAIN_LOG:
            raise InvalidData(
                f"`{MAIN_LOG}` is the main log: use `append` or `record` of the session"
            )
        return self._store.append(self._id, [NewEvent(kind, data, id=id)], log=self.name)[0]

    def read(self, *, after: int = 0, limit: int | None = None) -> Iterator[Event]:
        """The entries in order."""
        return self._store.read(self._id, log=self.name, after=after, limit=limit)

    def tail(self, n: int) -> list[Event]:
        """The last `n` entries, oldest first."""
        return self._store.tail(self._id, n, log=self.name)

    def flush(self) -> None:
        """Return when everything appended is on the disk."""
        self._store.flush()
