"""The conversation of a turn under way, which only grows: what was read is kept.

A loop asks for the whole conversation before every call of a model. Reading all of it each
time costs more, the longer it gets.
"""

from __future__ import annotations

from .calls import repair as repaired
from .conversation import Conversation
from .events import MESSAGE_KINDS, Event, Format, Json, decode_data, encode_data
from .formats.messages import convert
from .frozen import replace
from .messages import page_of
from .views import conversation


class Recall:
    """Reads a session's messages again and again. They are shared: nobody may change them."""

    def __init__(self, session: Conversation) -> None:
        self._session = session
        self._entries: list[tuple[dict[str, Json], Format]] = []
        self._head = 0

    def messages(self, format: Format) -> list[dict[str, Json]]:
        """What `Session.messages(format)` gives."""
        session = self._session
        if session._unsaved or session._prompt or session._at is not None:
            # Not all of it is in the log, or not all of the log counts.
            return session.messages(format)
        if not (self._head and self._grow()):
            self._read()
        return repaired(convert(self._entries, format))

    def _grow(self) -> bool:
        """Add what is new; False if it does not simply come after what is known."""
        new = self._own() or self._others()
        if any(event.seq != at for at, event in enumerate(new, self._head + 1)):
            return False
        if not all(map(_simply_follows, new)):
            return False
        if new:
            self._entries += conversation([page_of(new)])
            self._head = new[-1].seq
        return True

    def _own(self) -> list[Event]:
        """What is new, if this session appended it right behind what is known.

        What others append later shows as a gap before the next of our own.
        """
        new = [event for event in list(self._session._recent) if event.seq > self._head]
        if not new or new[0].seq != self._head + 1:
            return []
        # As a store gives them: whoever appended them may change what they hold.
        return [replace(event, data=decode_data(encode_data(event.data))) for event in new]

    def _others(self) -> list[Event]:
        # From the end: a log is not searched for where the new ones begin.
        read = self._session.store.read(self._session.id, after=self._head, reverse=True)
        return list(read)[::-1]

    def _read(self) -> None:
        store, id = self._session.store, self._session.id
        last = next(iter(store.read(id, reverse=True, limit=1)), None)
        self._head = last.seq if last is not None else 0
        self._entries = conversation(store.pages(id, until=self._head)) if self._head else []


def _simply_follows(event: Event) -> bool:
    if event.follows is not None or event.kind in ("system_message", "lost"):
        return False
    return event.kind not in MESSAGE_KINDS or isinstance(event.data.get("message"), dict)
