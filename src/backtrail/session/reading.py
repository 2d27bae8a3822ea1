"""What a session shows: the reading half of a conversation.

Nothing is kept: every read asks the store, so a rewind or an append made by another process
shows at once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from weakref import finalize

import msgspec

from ..errors import Closed
from ..events import Checkpoint, Event, Format, Json, NewEvent, SessionInfo
from ..events.calls import ToolCall, pending
from ..events.calls import repair as repaired
from ..events.history import COPIED, INHERITED, Branch, branches
from ..events.messages import Page, page_of
from ..formats.messages import convert
from ..stores.base import Store, checkpoint_of, is_deleted
from .views import State, conversation, last_of, spoken


class Reading:
    """A session's log, as it is seen from the event `at`; None is its head."""

    def __init__(self, store: Store, session_id: str, at: int | None) -> None:
        self.store = store
        self.id = session_id
        self._at = at
        self._prompt: NewEvent | None = None
        self._unsaved: list[NewEvent] = []
        self._held = ExitStack()
        self._copied: Path | None = None
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"session `{self.id}` is closed")

    def info(self) -> SessionInfo:
        """The session's record."""
        self._check_open()
        return self.store.info(self.id)

    def messages(
        self, format: Format | None = None, *, repair: bool = True
    ) -> list[dict[str, Json]]:
        """The conversation as it stands, as stored or in a provider's format.

        A tool call that never got a result is answered "interrupted", unless `repair` is
        off: providers refuse an open one.
        """
        self._check_open()
        if format is None:
            return spoken(self._pages(), repair=repair)
        shown = convert(conversation(self._pages()), format)
        return repaired(shown) if repair else shown

    def _pages(self) -> Iterator[Page]:
        """The history in pages, newest first, with what is not stored yet in front."""
        waiting = [*([self._prompt] if self._prompt else ()), *self._unsaved]
        if waiting:
            yield page_of([Event(0, "", "", new.kind, dict(new.data)) for new in waiting])
        if self._at != 0:
            yield from self.store.pages(self.id, until=self._at)

    def history(self) -> list[Event]:
        """The live path through the main log, oldest first."""
        self._check_open()
        return [] if self._at == 0 else self.store.history(self.id, until=self._at)

    def events(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        """Everything in the main log, the abandoned too."""
        self._check_open()
        return self.store.read(
            self.id, after=after, until=until, limit=limit, reverse=reverse, kinds=kinds
        )

    def pending(self) -> list[ToolCall]:
        """Tool calls that have no result yet."""
        return pending(self.messages(repair=False))

    def state(self) -> State:
        """Messages, usage, turns and open calls, for a loop of your own."""
        info = self.info()
        open_calls = self.pending()
        return State(self.id, self.messages(), info.usage, info.turn_count, open_calls)

    def as_map(self) -> dict[str, Json]:
        """The conversation as `session_id`, `messages`, `last_user`, `last_assistant`."""
        messages = self.messages()
        return {
            "session_id": self.id,
            "messages": messages,
            "last_user": last_of(messages, "user"),
            "last_assistant": last_of(messages, "assistant"),
        }

    def branches(self) -> list[Branch]:
        """Ways the conversation went and was taken back from."""
        return branches(self.events())

    def checkpoints(self) -> list[Checkpoint]:
        """The session's checkpoints, oldest first.

        A fork lists its own, and its parent's if it was made with `copy_checkpoints`.
        """
        self._check_open()
        info = self.store.record(self.id)
        copied = self._lists_copies(info)
        after = 0 if copied else info.fork_seq or 0
        found = self.events(after=after, kinds=("checkpoint",))
        return [
            checkpoint_of(event, self.id)
            for event in found
            if (copied or not event.data.get(INHERITED))
            and not is_deleted(self.store, self.id, event.id)
        ]

    def _transcript_path(self) -> str:
        """A file with the main log, one event a line; written where the store has none."""
        found = self.store.log_file(self.id)
        if found is not None:
            return str(found)
        if self._copied is None:
            from tempfile import mkdtemp

            folder = mkdtemp(prefix="backtrail-")
            self._held.callback(finalize(self, _remove, folder, os.getpid()))
            self._copied = Path(folder, f"{self.id}.jsonl")
            self._copied.touch(0o600)
        lines = (msgspec.json.encode(event.to_dict()) for event in self.events())
        self._copied.write_bytes(b"".join(line + b"\n" for line in lines))
        return str(self._copied)

    def _listed_after(self) -> int:
        """The event after which this session lists checkpoints."""
        info = self.store.record(self.id)
        return 0 if self._lists_copies(info) else info.fork_seq or 0

    def _lists_copies(self, info: SessionInfo) -> bool:
        """Whether a fork lists its parent's checkpoints, as its first own event says."""
        if info.fork_seq is None:
            return False
        starts = self.events(after=info.fork_seq, kinds=("session_start",), limit=1)
        about = next((start.data for start in starts), {})
        # Forks of earlier versions noted it in their metadata.
        return bool(about[COPIED] if COPIED in about else info.metadata.get(COPIED))

    def follow(self, after: int | None = None) -> Iterator[Event]:
        """Events as they come, from any process, until the session is closed."""
        self._check_open()
        return self._until_closed(
            self.store.follow(self.id, after=after, stop=lambda: self._closed)
        )

    def _until_closed(self, events: Iterator[Event]) -> Iterator[Event]:
        try:
            yield from events
        except Closed:
            if not self._closed:
                raise


def _remove(folder: str, pid: int) -> None:
    """Remove a folder that this process made; a fork of it leaves it alone."""
    if os.getpid() == pid:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
