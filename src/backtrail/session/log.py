"""A session's log: appending to it, reading it, and notifying its listeners.

Nothing that was read is kept: every read asks the store, so a rewind or an append made by
another process shows at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from weakref import finalize

import msgspec

from .. import telemetry
from .._startup.frozen import replace
from ..errors import BacktrailError, Closed, InvalidData, NotFound, StoreFailed
from ..events import (
    MAIN_LOG,
    MESSAGE_KINDS,
    Event,
    Format,
    Json,
    NewEvent,
    Problem,
    SessionInfo,
    new_id,
)
from ..events.calls import calls_in, pending
from ..events.calls import repair as repaired
from ..events.messages import Page, page_of
from ..formats.messages import convert
from ..stores import inprocess
from ..stores.base import Store
from ..stores.batches import Call, drafts
from ..stores.buffered import Buffered
from ..stores.queue import PAUSE, Job
from .keywords import OnError
from .listeners import Listeners, Subscription
from .points import head_of
from .views import conversation, spoken


class SessionLog:
    """The main log of a session, as it is seen from the event `at`; None is its head.

    `unsaved` are events that a failing store did not take yet. `prompt` is a system prompt that
    the next append pins. `is_resumed` says that it notes first that the session goes on here.
    """

    def __init__(
        self, store: Store, session_id: str, *, at: int | None = None,
        on_error: OnError = "raise", owns: bool = False,
    ) -> None:  # fmt: skip
        self.store = store
        self.id = session_id
        self.at = at
        self.on_error: OnError = on_error
        self.prompt: NewEvent | None = None
        self.unsaved: list[NewEvent] = []
        self.is_resumed = False
        self.problems: list[Problem] = []
        self.closed = False
        self.held = ExitStack()
        """What is let go of when the log is closed."""
        self.recent: deque[Event] = deque(maxlen=16)
        """The last events that were appended here, for parts that would read them again."""
        self.listeners = Listeners(lambda seq: store.read(session_id, after=seq))
        self._owns = owns
        self._copied: Path | None = None
        # Appends that the store's queue has, in order: published once they are stored.
        self._queued: deque[Job[Call, list[Event]]] = deque()
        self._side: Store | None = None
        self._new_locks()
        inprocess.begin(self)

    def _new_locks(self) -> None:
        self.mutex = threading.RLock()
        """Held while appending."""
        self._landing = threading.Lock()
        self._side_mutex = threading.Lock()

    def after_fork(self) -> None:
        """Leave to the parent what it has not saved."""
        self._new_locks()
        self.listeners.after_fork()
        self._queued = deque()
        self.unsaved = []
        self._copied = None

    def check_open(self) -> None:
        """Raise `Closed` where the session is."""
        if self.closed:
            raise Closed(f"session `{self.id}` is closed")

    def complain(self, what: str, detail: str, log: str = "files") -> None:
        """Note something that went wrong and stopped nothing."""
        problem = Problem(self.id, log, what, detail)
        if problem not in self.problems:
            self.problems.append(problem)

    # --- reading -------------------------------------------------------------------------

    def info(self) -> SessionInfo:
        """The session's record."""
        self.check_open()
        return self.store.info(self.id)

    def messages(
        self, format: Format | None = None, *, repair: bool = True
    ) -> list[dict[str, Json]]:
        """The conversation as it stands; see `Session.messages`."""
        self.check_open()
        if format is None:
            return spoken(self.pages(), repair=repair)
        shown = convert(conversation(self.pages()), format)
        return repaired(shown) if repair else shown

    def pages(self) -> Iterator[Page]:
        """The history in pages, newest first, with what is not stored yet in front."""
        waiting = [*([self.prompt] if self.prompt else ()), *self.unsaved]
        if waiting:
            yield page_of([unstored(new) for new in waiting])
        if self.at != 0:
            yield from self.store.pages(self.id, until=self.at)

    def history(self) -> list[Event]:
        """The live path through the main log, oldest first."""
        self.check_open()
        return [] if self.at == 0 else self.store.history(self.id, until=self.at)

    def walk(self) -> Iterator[Event]:
        """The live path from its end, as far as it is taken."""
        return iter(()) if self.at == 0 else self.store.walk(self.id, until=self.at)

    def since(self, turn: Event, until: int | None = None) -> list[Event]:
        """The live events of a turn behind its user's message, those not stored yet too."""
        found: list[Event] = []
        waiting = [] if until else [unstored(event) for event in self.unsaved]
        ids = [event.id for event in waiting]
        if turn.id in ids:
            return waiting[ids.index(turn.id) + 1 :]
        for event in self.store.walk(self.id, until=until) if until else self.walk():
            if event.id == turn.id:
                return [*reversed(found), *waiting]
            found.append(event)
        # It is not in the history: taken back, or refused.
        return waiting

    def from_call(self, call_id: str) -> list[dict[str, Json]]:
        """The messages from the newest that asks for this call and has no result; else all."""
        found: deque[dict[str, Json]] = deque()
        for event in chain(map(unstored, reversed(self.unsaved)), self.walk()):
            message = event.data.get("message")
            if event.kind not in MESSAGE_KINDS or not isinstance(message, dict):
                continue
            found.appendleft(message)
            is_asking = any(call.id == call_id for call in calls_in(message))
            if is_asking and any(call.id == call_id for call in pending(found)):
                break
        return list(found)

    def events(
        self, after: int = 0, until: int | None = None, limit: int | None = None, *,
        reverse: bool = False, kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:  # fmt: skip
        """Everything in the main log, the abandoned too."""
        self.check_open()
        return self.store.read(
            self.id, after=after, until=until, limit=limit, reverse=reverse, kinds=kinds
        )

    def head(self) -> int:
        """The number of the last event."""
        self.check_open()
        return head_of(self.store, self.id)

    def view(self) -> int:
        """The number of the last event of the history that is shown."""
        return self.head() if self.at is None else self.at

    def is_known(self, events: list[NewEvent]) -> bool:
        """Whether all of this is in the log already, as when a request is tried again."""
        if any(event.id is None for event in events):
            return False
        return all(self._has(event.id or "") for event in events)

    def _has(self, id: str) -> bool:
        try:
            self.store.find(self.id, id)
        except NotFound:
            return False
        return True

    def follow(self, after: int | None = None) -> Iterator[Event]:
        """Events as they come, from any process, until the session is closed."""
        self.check_open()
        return self._until_closed(self.store.follow(self.id, after=after, stop=lambda: self.closed))

    def _until_closed(self, events: Iterator[Event]) -> Iterator[Event]:
        try:
            yield from events
        except Closed:
            if not self.closed:
                raise

    def transcript_path(self) -> str:
        """A file with the main log, one event a line; written where the store has none."""
        found = self.store.log_file(self.id)
        if found is not None:
            return str(found)
        if self._copied is None:
            from tempfile import mkdtemp

            folder = mkdtemp(prefix="backtrail-")
            self.held.callback(finalize(self, _remove, folder, os.getpid()))
            self._copied = Path(folder, f"{self.id}.jsonl")
            self._copied.touch(0o600)
        lines = (msgspec.json.encode(event.to_dict()) for event in self.events())
        self._copied.write_bytes(b"".join(line + b"\n" for line in lines))
        return str(self._copied)

    def side(self, name: str) -> SideLog:
        """A side log, whose appends are buffered; see `Session.log`."""
        # Not the mutex of appends: asking for a log never waits for the store.
        with self._side_mutex:
            self.check_open()
            if self._side is None:
                own = isinstance(self.store, Buffered)
                self._side = self.store if own else Buffered(self.store, owns=False, sigterm=False)
            return SideLog(self._side, self.id, name)

    # --- appending -----------------------------------------------------------------------

    def append(self, events: list[NewEvent], *, expected: int | None = None) -> list[Event]:
        """Append, with what a resumed session owes before its first event."""
        if not events:
            return []
        with self.mutex:
            if self._queued:
                self._await_queued()
            self.check_open()
            first = [] if self._only_repeats(events) else self._first()
            batch = [*first, *self.unsaved, *events]
            try:
                if self.listeners.unbegun:
                    self.begin_listening()
                stored = self.store.append(self.id, batch, expected=expected)
            except StoreFailed as error:
                # A rewind that is not stored has not happened, so it is never best effort.
                if expected is not None:
                    raise
                return self._not_saved(events, error)
            self.unsaved = []
            if first:
                self._go_on()
            self._publish(stored)
            return stored[len(batch) - len(events) :]

    def save(self) -> None:
        """Store what a failing store did not take, before something that builds on it."""
        with self.mutex:
            if self.unsaved:
                batch = [*self._first(), *self.unsaved]
                self.begin_listening()
                self._publish(self.store.append(self.id, batch))
                self.unsaved = []
                self._go_on()

    def _first(self) -> list[NewEvent]:
        """What comes before the first event of a resumed session."""
        found: list[NewEvent] = []
        if self.is_resumed:
            found.append(NewEvent("session_resume", {"pid": os.getpid()}, follows=self.at))
        if self.prompt is not None:
            found.append(self.prompt)
        return found

    def _go_on(self) -> None:
        """What comes first is in the log."""
        self.is_resumed, self.at, self.prompt = False, None, None

    def _only_repeats(self, events: list[NewEvent]) -> bool:
        """Whether this only repeats events that are there, and so resumes nothing."""
        return bool(self.is_resumed or self.prompt) and self.is_known(events)

    def _not_saved(self, events: list[NewEvent], error: StoreFailed) -> list[Event]:
        """A failing store, as the caller chose: raise, or go on and try again later."""
        if self.on_error == "raise":
            raise error
        self.problems.append(Problem(self.id, MAIN_LOG, "not saved", str(error)))
        telemetry.emit("session.problem", {"count": len(events)}, {"session_id": self.id})
        if callable(self.on_error):
            self.on_error(error)
        kept = [replace(event, id=event.id or new_id()) for event in events]
        waiting = {event.id for event in self.unsaved}
        self.unsaved.extend(event for event in kept if event.id not in waiting)
        return [unstored(event) for event in kept]

    # --- appending by the store's queue --------------------------------------------------

    def enqueue(self, events: list[NewEvent], job: Job[Call, list[Event]]) -> bool:
        """Have the store's queue append these; False if there is more to do, which may wait.

        Waits for nothing. `land` publishes what was stored; until it did so for this job,
        whatever else appends to the session waits. The caller holds the mutex.
        """
        owes = self.is_resumed or self.prompt or self.unsaved or self.listeners.unbegun
        if owes or self.closed or self.on_error != "raise" or not self.store.groups:
            return False
        job.item = Call(self.id, drafts(events), since=time.monotonic())
        self.store.queue.put(job)
        self._queued.append(job)
        return True

    def land(self) -> None:
        """Publish what the store's queue has stored by now, in order."""
        with self._landing:
            while self._queued and self._queued[0].outcome is not None:
                self._landed(self._queued.popleft())

    def _await_queued(self) -> None:
        """Return when the store's queue has nothing more of this session."""
        while True:
            self.store.queue.do(None)
            with self._landing:
                while self._queued and not self._queued[0].is_open:
                    self._landed(self._queued.popleft())
                if not self._queued:
                    return
            # The session's lock is not free.
            time.sleep(PAUSE)

    def _landed(self, job: Job[Call, list[Event]]) -> None:
        if isinstance(job.outcome, list):
            self._publish(job.outcome)

    # --- listening -----------------------------------------------------------------------

    def subscribe(self, size: int = 256, after: int | None = None) -> Subscription:
        """Every event and delta from now on; see `Session.subscribe`."""
        self.check_open()
        subscription = self.listeners.add(size, after)
        self.begin_listening()
        return subscription

    def begin_listening(self) -> None:
        """Set each new subscription's starting `seq` before anything is published to it."""
        with self.mutex:
            new = self.listeners.unbegun
            if new:
                self.listeners.begin(new, self.head())

    def _publish(self, events: list[Event]) -> None:
        self.recent.extend(events)
        if self.listeners.all:
            for event in events:
                self.listeners.put(event)

    # --- ending --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the log. Writes nothing but what is still buffered or not saved."""
        with self.mutex:
            if self.closed:
                return
            if self._queued:
                self._await_queued()
            try:
                self.save()
            except BacktrailError as error:
                lost = len(self.unsaved)
                self.problems.append(Problem(self.id, MAIN_LOG, "lost", str(error), count=lost))
            self.closed = True
        inprocess.end(self)
        self.listeners.close()
        with self._side_mutex:
            side = self._side
        try:
            if side is not None and side is not self.store:
                side.close()
        finally:
            self.held.close()
            if self._owns:
                self.store.close()


def unstored(new: NewEvent) -> Event:
    """An event that is not stored yet, as it is shown."""
    return Event(0, new.id or "", "", new.kind, dict(new.data))


def numbered(owed: Iterable[NewEvent], head: int) -> list[Event]:
    """Events that are not in the log yet, as they would be behind `head`."""
    return [Event(n, "", "", one.kind, dict(one.data)) for n, one in enumerate(owed, head + 1)]


def _remove(folder: str, pid: int) -> None:
    """Remove a folder that this process made; a fork of it leaves it alone."""
    if os.getpid() == pid:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


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
