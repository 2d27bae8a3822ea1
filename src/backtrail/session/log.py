"""The plain half of a session: appending to its log, and telling who listens."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from .. import telemetry
from .._startup.frozen import replace
from ..errors import BacktrailError, InvalidData, NotFound, StoreFailed
from ..events import KINDS, MAIN_LOG, Event, Format, Json, NewEvent, Problem, SessionInfo, new_id
from ..events.messages import as_message, message_event
from ..stores import live
from ..stores.base import Store
from ..stores.batches import Call, drafts
from ..stores.buffered import Buffered
from ..stores.disk import forks
from ..stores.queue import PAUSE, Job
from .listeners import Delta, Subscription
from .options import OnError, SessionOptions, agent_named, options_of_agent
from .reading import Reading
from .sidelog import SideLog
from .views import beyond, may_begin


class Conversation(Reading):
    """A session's log and its views. `Session` adds beginning, going back and forking."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, at)
        self.agent: Callable[..., Json] | str | None = agent_named(options)
        self._agent_options = options_of_agent(options)
        self.problems: list[Problem] = []
        self._owns = owns
        self._resumed = False
        self._lease_mode = options.get("lease", "turn")
        self._wait = options.get("wait", 0.0)
        self._on_error: OnError = options.get("on_error", "raise")
        self._new_locks()
        self._depth = 0
        # The last events that were appended here, for who would read them again.
        self._recent: deque[Event] = deque(maxlen=16)
        self._subscriptions: list[Subscription] = []
        self._unbegun: list[Subscription] = []
        # Appends that the store's queue has, in order: published once they are stored.
        self._queued: deque[Job[Call, list[Event]]] = deque()
        self._side: Store | None = None
        live.begin(self)
        forks.register(self)

    def _new_locks(self) -> None:
        self._mutex = threading.RLock()
        self._landing = threading.Lock()
        self._listeners = threading.Lock()
        self._side_mutex = threading.Lock()

    def after_fork(self) -> None:
        """Leave to the parent what it drives and has not saved; a turn here takes the lease.

        Blocks that the forking thread is in keep the locks they took.
        """
        self._new_locks()
        self._queued = deque()
        self._depth = 0
        self._unsaved = []
        self._copied = None
        if self._lease_mode == "session":
            self._lease_mode = "turn"

    # --- writing -------------------------------------------------------------------------

    def append(
        self,
        message: object,
        *,
        id: str | None = None,
        kind: str | None = None,
        format: Format | None = None,
        usage: Mapping[str, Json] | None = None,
        cost_usd: float | None = None,
        ts: str | None = None,
    ) -> Event:
        """Append one message: a mapping, a `Message`, or anything with `model_dump()`.

        A known `id` is not appended again; the event that has it is returned.
        """
        event = message_event(message, id, kind, format, usage, cost_usd, ts)
        return self._append([event])[0]

    def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append several messages as one batch, all or nothing.

        A list that begins with the whole present conversation, as frameworks return it,
        adds only what is new.
        """
        given = [as_message(message) for message in messages]
        if not given:
            return []
        if may_begin(given, self._pages()):
            given = beyond(self.messages(repair=False), given)
        return self._append([message_event(message) for message in given])

    def record(
        self, kind: str, data: Mapping[str, Json] | None = None, *, id: str | None = None
    ) -> Event:
        """Append an event of your own kind."""
        return self._append([own_event(kind, data, id)])[0]

    def _append(self, events: list[NewEvent], *, expected: int | None = None) -> list[Event]:
        """Append to the main log, with what a resumed session owes before its first event."""
        if not events:
            return []
        with self._mutex:
            if self._queued:
                self._await_queued()
            self._check_open()
            owed = [] if self._all_known(events) else self._owed()
            batch = [*owed, *self._unsaved, *events]
            try:
                if self._unbegun:
                    self._begin_listening()
                stored = self.store.append(self.id, batch, expected=expected)
            except StoreFailed as error:
                # A rewind that is not stored has not happened, so it is never best effort.
                if expected is not None:
                    raise
                return self._not_saved(events, error)
            self._unsaved = []
            if owed:
                self._resumed, self._at, self._prompt = False, None, None
            self._publish(stored)
            return stored[len(batch) - len(events) :]

    def _enqueue(
        self, events: list[NewEvent], job: Job[Call, list[Event]], *, spans: bool = True
    ) -> bool:
        """Have the store's queue append these; False if there is more to do, which may wait.

        Waits for nothing. `_land` publishes what was stored; until it did so for this job,
        whatever else appends to the session waits.
        """
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if not self._is_simple(events, spans):
                return False
            job.item = Call(self.id, drafts(events), since=time.monotonic())
            self.store.queue.put(job)
            self._queued.append(job)
            return True
        finally:
            self._mutex.release()

    def _is_simple(self, events: list[NewEvent], spans: bool) -> bool:
        """Whether to append these is to hand them to the store, and no more."""
        owes = self._resumed or self._prompt or self._unsaved or self._unbegun
        return self.store.groups and self._on_error == "raise" and not (owes or self._closed)

    def _land(self) -> None:
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

    def _save(self) -> None:
        """Store what a failing store did not take, before something that builds on it."""
        with self._mutex:
            if self._unsaved:
                batch = [*self._owed(), *self._unsaved]
                self._begin_listening()
                self._publish(self.store.append(self.id, batch))
                self._unsaved = []
                self._resumed, self._at, self._prompt = False, None, None

    def _owed(self) -> list[NewEvent]:
        owed: list[NewEvent] = []
        if self._resumed:
            owed.append(NewEvent("session_resume", {"pid": os.getpid()}, follows=self._at))
        if self._prompt is not None:
            owed.append(self._prompt)
        return owed

    def _all_known(self, events: list[NewEvent]) -> bool:
        """Whether this only repeats events that are there, and so resumes nothing."""
        if not (self._resumed or self._prompt) or any(event.id is None for event in events):
            return False
        return all(self._is_known(event.id or "") for event in events)

    def _is_known(self, id: str) -> bool:
        try:
            self.store.find(self.id, id)
        except NotFound:
            return False
        return True

    def _not_saved(self, events: list[NewEvent], error: StoreFailed) -> list[Event]:
        """A failing store, as the caller chose: raise, or go on and try again later."""
        if self._on_error == "raise":
            raise error
        self.problems.append(Problem(self.id, MAIN_LOG, "not saved", str(error)))
        telemetry.emit("session.problem", {"count": len(events)}, {"session_id": self.id})
        if callable(self._on_error):
            self._on_error(error)
        kept = [replace(event, id=event.id or new_id()) for event in events]
        waiting = {event.id for event in self._unsaved}
        self._unsaved.extend(event for event in kept if event.id not in waiting)
        return [Event(0, event.id or "", "", event.kind, dict(event.data)) for event in kept]

    @contextmanager
    def _leased(self, wait: float) -> Iterator[None]:
        """The lease while driving; a rewind within a turn of this session is under the turn's.

        The caller keeps others out. No thread owns this: it may be left in another one.
        """
        self._check_open()
        with ExitStack() as stack:
            if self._lease_mode == "turn" and self._depth == 0:
                stack.enter_context(self.store.lease(self.id, wait=wait))
            self._depth += 1
            try:
                yield
            finally:
                # A fork within the block began anew.
                self._depth = max(0, self._depth - 1)

    def log(self, name: str) -> SideLog:
        """A side log, such as "transcript"; its appends are buffered.

        A process that a signal ends loses what it appended in the last quarter of a second;
        `close`, `flush` and a normal exit write it.
        """
        # Not the mutex of appends: asking for a log never waits for the store.
        with self._side_mutex:
            self._check_open()
            if self._side is None:
                own = isinstance(self.store, Buffered)
                self._side = self.store if own else Buffered(self.store, owns=False, sigterm=False)
            return SideLog(self._side, self.id, name)

    def subagent(self, id: str) -> SideLog:
        """The log of a subagent."""
        return self.log(f"subagents/{id}")

    def update(self, **changes: Json) -> SessionInfo:
        """Change title, key, model, agent_name, cwd, tags or metadata."""
        self._check_open()
        return self.store.update(self.id, **changes)

    def end(self, reason: str = "end_turn") -> Event:
        """Note that the session is over, and why. It can be resumed all the same."""
        return self._append([end_event(reason)])[0]

    # --- listening -----------------------------------------------------------------------

    def subscribe(self, size: int = 256, *, after: int | None = None) -> Subscription:
        """Every event and delta of this session object from now on.

        Who comes late names the `seq` `after` which to catch up from the log. Close it, or use
        it in a `with` block. A slow listener loses deltas, never events.
        """
        self._check_open()
        subscription = self._listen(size, after)
        self._begin_listening()
        return subscription

    def _listen(self, size: int, after: int | None = None) -> Subscription:
        """A subscription, without asking the store: that is left to who may wait for it."""

        def ended(subscription: Subscription) -> None:
            with self._listeners:
                others = [s for s in self._subscriptions if s is not subscription]
                self._subscriptions = others

        new = Subscription(lambda seq: self.store.read(self.id, after=seq), ended, size, after)
        with self._listeners:
            self._subscriptions = [*self._subscriptions, new]
            if after is None:
                self._unbegun = [*self._unbegun, new]
        return new

    def _begin_listening(self) -> None:
        """Tell those who are new what is no news, before there is any."""
        with self._mutex:
            new = self._unbegun
            newest = next(self.events(reverse=True, limit=1), None)
            for subscription in new:
                subscription.begin(newest.seq if newest else 0)
            with self._listeners:
                self._unbegun = [s for s in self._unbegun if s not in new]

    def emit(self, delta: Delta) -> None:
        """Hand a delta to the subscribers; it is not stored."""
        for subscription in self._subscriptions:
            subscription.put(delta)

    def _publish(self, events: list[Event]) -> None:
        self._recent.extend(events)
        for subscription in self._subscriptions:
            for event in events:
                subscription.put(event)

    # --- ending --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the session. Writes nothing but what is still buffered or not saved."""
        with self._mutex:
            if self._closed:
                return
            if self._queued:
                self._await_queued()
            try:
                self._save()
            except BacktrailError as error:
                lost = len(self._unsaved)
                self.problems.append(Problem(self.id, MAIN_LOG, "lost", str(error), count=lost))
            self._closed = True
        live.end(self)
        for subscription in self._subscriptions:
            subscription.close()
        with self._side_mutex:
            side = self._side
        try:
            if side is not None and side is not self.store:
                side.close()
        finally:
            self._held.close()
            if self._owns:
                self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.id} on {self.store.url or type(self.store).__name__}>"


def own_event(kind: str, data: Mapping[str, Json] | None, id: str | None) -> NewEvent:
    """An event of a caller's own kind."""
    if kind in KINDS:
        raise InvalidData(f"`{kind}` is a kind the library writes: choose another name")
    return NewEvent(kind, data or {}, id=id)


def end_event(reason: str) -> NewEvent:
    """What notes that a session is over."""
    return NewEvent("session_end", {"reason": reason})


class Turn:
    """A turn under way: what was said, and what is appended to it.

    `is_new` says whether it was said just now; else another process, or this one, began with
    it. One that has `ended` needs no work any more.
    """

    def __init__(
        self, session: Conversation, event: Event, *, is_new: bool = True, ended: bool = False
    ) -> None:
        self.session = session
        self.event = event
        self.is_new = is_new
        self.ended = ended

    def append(self, message: object, **details: Json) -> Event:
        """Append one message of the turn; see `Session.append`."""
        return self.session.append(message, **details)

    def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append messages, or what is new in a whole conversation."""
        return self.session.extend(messages)

    def messages(self) -> list[dict[str, Json]]:
        """The whole conversation, this turn included."""
        return self.session.messages()
