"""The conversation of a turn under way, which only grows: what was read is kept.

A turn asks which calls were left without a result, a loop asks for the whole conversation
before every call of a model. Reading all of it each time costs more, the longer it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._startup.frozen import replace
from ..events import MESSAGE_KINDS, Event, Format, Json, decode_data, encode_data
from ..events.calls import repair as repaired
from ..events.messages import Page, page_of
from ..formats.messages import convert
from .log import Conversation
from .views import conversation


class Recall:
    """Reads a session's messages again and again. They are shared: nobody may change them."""

    def __init__(self, session: Conversation) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        """Keep nothing: the turn is over."""
        self._entries: list[tuple[dict[str, Json], Format]] = []
        self._head = 0
        self._compacted = False

    def messages(self, format: Format) -> list[dict[str, Json]]:
        """What `Session.messages(format)` gives."""
        if not self._is_current():
            return self._session.messages(format)
        return repaired(convert(self._entries, format))

    def stored(self) -> list[dict[str, Json]]:
        """What `Session.messages(repair=False)` gives, with what others appended just now."""
        if not self._is_current(alone=False):
            return self._session.messages(repair=False)
        return [message for message, _ in self._entries]

    def was_compacted(self) -> bool:
        """Whether a compaction is in the conversation as it was last read."""
        session = self._session
        if self._head:
            return self._compacted
        if any(event.kind == "compaction" for event in session._unsaved):
            return True
        return next(iter(session.events(kinds=("compaction",), limit=1)), None) is not None

    def _is_current(self, *, alone: bool = True) -> bool:
        """Bring what is kept up to date; False if the log alone does not tell.

        What others append right behind our own events is seen with the next of ours, if we
        may take it that we are `alone`.
        """
        session = self._session
        if session._unsaved or session._prompt or session._at is not None:
            # Not all of it is in the log, or not all of the log counts.
            self.forget()
            return False
        if not (self._head and self._grow(alone)):
            self._read()
        return True

    def _grow(self, alone: bool) -> bool:
        """Add what is new; False if it does not simply come after what is known."""
        new = (alone and self._own()) or self._others()
        if any(event.seq != at for at, event in enumerate(new, self._head + 1)):
            return False
        if not all(map(_simply_follows, new)):
            return False
        if new:
            self._entries += conversation(self._noted([page_of(new)]))
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
        self.forget()
        if last is None:
            return
        until = last.seq
        if last.kind == "rewound" and last.previous < until:
            # What was taken back lies right before: it is not even looked at.
            until = last.previous
        if until:
            self._entries = conversation(self._noted(store.pages(id, until=until)))
        self._head = last.seq

    def _noted(self, pages: Iterable[Page]) -> Iterator[Page]:
        for page in pages:
            self._compacted = self._compacted or "compaction" in page.kinds
            yield page


def _simply_follows(event: Event) -> bool:
    if event.follows is not None or event.kind in ("system_message", "lost"):
        return False
    return event.kind not in MESSAGE_KINDS or isinstance(event.data.get("message"), dict)
