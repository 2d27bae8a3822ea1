"""One namespace of one thread as a log: where its checkpoints are, and how to append to it.

What is remembered is checked by each append, which names the head that it relies on, so several
processes may drive a thread. A line is read from its end: the newest checkpoint, and what was
written for it, cost what they are; only lists of all checkpoints go through the log.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from ...errors import AlreadyExists, Conflict, Damaged, NotFound
from ...events import MESSAGE_KINDS, Event, Json, NewEvent
from ...stores.base import Store
from .deltas import CHECKPOINT, DROPPED, ITEMS, WRITES, Ref, Whole, unpack

_ITEM_KINDS = (*MESSAGE_KINDS, ITEMS)
_KEPT = 64
_MOVES = ("rewound", "undone", "redone")


class Line:
    """The log of one namespace of a thread. Every method is called with `lock` held."""

    def __init__(self, store: Store, session_id: str, log: str, thread_id: str, ns: str) -> None:
        self.store = store
        self.session_id = session_id
        self.log = log
        self.thread_id = thread_id
        self.ns = ns
        self.lock = threading.RLock()
        self.head = 0
        self.tip = 0
        """The number of the newest checkpoint on the live path."""
        self.top: str | None = None
        """The greatest id of a checkpoint, on the live path after a rewind."""
        self.begun = False
        self.early: dict[str, list[int]] = {}
        self.prints: OrderedDict[int, dict[str, list[object]]] = OrderedDict()
        self._seen: dict[str, int] = {}
        self._wholes: OrderedDict[int, Whole] = OrderedDict()
        self._events: OrderedDict[int, Event] = OrderedDict()

    # --- being up to date ------------------------------------------------------------------

    def refresh(self) -> None:
        """Learn what was appended since the last look."""
        if not self.begun:
            newest = next(
                self.store.read(self.session_id, log=self.log, reverse=True, limit=1), None
            )
            self.head = newest.seq if newest is not None else 0
            self._find_tip()
            self.begun = True
            return
        moved = False
        for event in self.store.read(self.session_id, log=self.log, after=self.head):
            self.head = event.seq
            if event.kind == CHECKPOINT and "id" in event.data:
                self._note(event)
            moved = moved or event.kind in _MOVES or event.kind == DROPPED
        if moved:
            self._find_tip()

    def _note(self, event: Event) -> None:
        self.tip = event.seq
        self._seen[event.data["id"]] = event.seq
        newest = str(event.data.get("top", event.data["id"]))
        self.top = newest if self.top is None else max(self.top, newest)
        self._events[event.seq] = event
        while len(self._events) > _KEPT:
            self._events.popitem(last=False)

    def _find_tip(self) -> None:
        """The newest checkpoint on the live path, which knows the greatest id by then."""
        self.tip, self.top = 0, None
        self._seen.clear()
        dropped = self.dropped()
        for event in self.store.walk(self.session_id, log=self.log):
            if event.kind == CHECKPOINT and event.data.get("id", "") not in dropped:
                if "id" not in event.data:
                    continue
                self.tip = event.seq
                newest = event.data.get("top", event.data["id"])
                self.top = event.data["id"] if newest in dropped else newest
                self._seen[event.data["id"]] = event.seq
                return

    def dropped(self) -> set[str]:
        """The ids of checkpoints that were deleted or pruned, and not put again since."""
        gone: set[str] = set()
        events = self.store.read(self.session_id, log=self.log, kinds=(DROPPED,))
        for event in events:
            gone.update(event.data.get("checkpoints", ()))
        return gone

    # --- appending -------------------------------------------------------------------------

    def append(self, make: Callable[[], Sequence[NewEvent]]) -> list[Event]:
        """Append what `make` says, once the head is as it was when it said so."""
        if not self.begun:
            self.refresh()
        while True:
            events = make()
            try:
                stored = self.store.append(
                    self.session_id, events, log=self.log, expected=self.head, known="error"
                )
            except Conflict:
                self.refresh()
                continue
            for event in stored:
                self.head = event.seq
                if event.kind == CHECKPOINT:
                    self._note(event)
            return stored

    def append_checkpoint(
        self, make: Callable[[str], Sequence[NewEvent]], checkpoint_id: str
    ) -> list[Event]:
        """The same for a checkpoint, which takes the place of one of the same id."""
        again = 0
        while True:
            id = f"again:{checkpoint_id}:{again}" if again else f"checkpoint:{checkpoint_id}"
            try:
                return self.append(partial(make, id))
            except AlreadyExists:
                again += 1

    # --- checkpoints -----------------------------------------------------------------------

    def where(self, checkpoint_id: str) -> int | None:
        """The number of a checkpoint's event; of several with one id, the newest."""
        seq = self._seen.get(checkpoint_id)
        if seq is None:
            event = self._found(f"checkpoint:{checkpoint_id}")
            again = 1
            while event is not None:
                seq = event.seq if "id" in event.data else None
                event = self._found(f"again:{checkpoint_id}:{again}")
                again += 1
            if seq is not None and checkpoint_id in self._dropped_since(checkpoint_id, seq):
                seq = None
            if seq is not None:
                self._seen[checkpoint_id] = seq
        return seq

    def _dropped_since(self, checkpoint_id: str, seq: int) -> set[str]:
        gone: set[str] = set()
        events = self.store.read(self.session_id, log=self.log, after=seq, kinds=(DROPPED,))
        for event in events:
            gone.update(event.data.get("checkpoints", ()))
        return gone

    def _found(self, id: str) -> Event | None:
        try:
            return self.store.find(self.session_id, id, log=self.log)
        except NotFound:
            return None

    def whole(self, seq: int) -> Whole:
        """The checkpoint whose event has this number, put together."""
        chain: list[Event] = []
        found = self._wholes.get(seq)
        at: int | None = seq
        while found is None and at is not None:
            event = self.event(at)
            if "id" not in event.data:
                raise Damaged(f"{self.name}: checkpoint event {at} is gone")
            chain.append(event)
            at = event.data.get("base")
            found = self._wholes.get(at) if at is not None else None
        for event in reversed(chain):
            found = unpack(event, found)
            self.keep(found)
        assert found is not None
        return found

    def keep(self, whole: Whole) -> None:
        """Remember a checkpoint that was put together."""
        self._wholes[whole.seq] = whole
        self._wholes.move_to_end(whole.seq)
        while len(self._wholes) > _KEPT:
            self._wholes.popitem(last=False)

    def event(self, seq: int) -> Event:
        """One event by its number."""
        event = self._events.get(seq)
        if event is None:
            read = self.store.read(self.session_id, log=self.log, after=seq - 1, until=seq)
            event = next(read, None)
        if event is None:
            raise Damaged(f"{self.name}: event {seq} is missing")
        return event

    @property
    def name(self) -> str:
        """The session and thread, for errors."""
        inside = f", namespace `{self.ns}`" if self.ns else ""
        return f"session `{self.session_id}` (thread `{self.thread_id}`{inside})"

    def all(self) -> dict[str, int]:
        """Every checkpoint there is: its id, and the number of its event."""
        found: dict[str, int] = {}
        events = self.store.read(self.session_id, log=self.log, kinds=(CHECKPOINT, DROPPED))
        for event in events:
            if event.kind == DROPPED:
                for id in event.data.get("checkpoints", ()):
                    found.pop(id, None)
            elif "id" in event.data:
                found[event.data["id"]] = event.seq
                self._events[event.seq] = event
        return found

    # --- what belongs to them --------------------------------------------------------------

    def writes(self, whole: Whole) -> list[Json]:
        """What tasks wrote for a checkpoint, in order; each as its event has it."""
        found = [self.event(seq) for seq in whole.early]
        first = self._first(whole)
        events = self.store.read(self.session_id, log=self.log, after=first, kinds=(WRITES,))
        found += [event for event in events if event.data.get("checkpoint") == whole.id]
        return [event.data for event in found]

    def _first(self, whole: Whole) -> int:
        """The number of the first event with a checkpoint's id."""
        if self.event(whole.seq).id.startswith("checkpoint:"):
            return whole.seq
        event = self._found(f"checkpoint:{whole.id}")
        return min(event.seq, whole.seq) if event is not None else whole.seq

    def all_writes(self) -> dict[str, list[Json]]:
        """The same for all checkpoints of the line."""
        found: dict[str, list[Json]] = {}
        for event in self.store.read(self.session_id, log=self.log, kinds=(WRITES,)):
            if "checkpoint" in event.data:
                found.setdefault(event.data["checkpoint"], []).append(event.data)
        return found

    def items(self, refs: Iterable[Ref], known: dict[int, Json] | None = None) -> dict[int, Json]:
        """The data of the events that hold these items."""
        wanted = {ref[0] for ref in refs}
        found = known if known is not None else {}
        missing = wanted - found.keys()
        if missing:
            low, high = min(missing), max(missing)
            events = self.store.read(
                self.session_id, log=self.log, after=low - 1, until=high, kinds=_ITEM_KINDS
            )
            for event in events:
                if event.seq in missing:
                    found[event.seq] = event.data
            if not missing <= found.keys():
                raise Damaged(f"{self.name}: event {min(missing - found.keys())} is missing")
        return found

    # --- freeing ---------------------------------------------------------------------------

    def free(self, needed: Collection[int]) -> None:
        """Erase what no checkpoint needs that is left; nothing of what a fork shares."""
        if self.store.sessions(parent=self.session_id, limit=1):
            return
        info = self.store.record(self.session_id)
        left = self.all()
        alive = set(left.values()) | set(needed)
        gone: list[int] = []
        kinds = (CHECKPOINT, WRITES, *_ITEM_KINDS)
        events = self.store.read(
            self.session_id, log=self.log, after=info.fork_seq or 0, kinds=kinds
        )
        for event in events:
            if event.kind == WRITES:
                if event.data.get("checkpoint") not in left:
                    gone.append(event.seq)
            elif event.seq not in alive:
                gone.append(event.seq)
        if gone:
            self.store.purge(self.session_id, gone, log=self.log)
