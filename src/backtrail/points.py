"""Points in a session: what a caller may name one by, and what going there means.

Planning reads and changes nothing; `Session` acts on the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import NotFound
from .events import MESSAGE_KINDS, Checkpoint, Event, Json, NewEvent
from .history import BOOKKEEPING, INHERITED, OPERATION_KINDS, WORK_KINDS, Operations, operations
from .stores.base import Store, checkpoint_of
from .views import is_pinned

Target = Checkpoint | Event | int | str
"""A checkpoint, an event, a `seq`, an event's id, or a checkpoint's id or label."""


@dataclass(frozen=True, slots=True)
class Move:
    """A conversation's way to `anchor`: what leaves the history, what is left of it.

    `prompt` is the pinned system prompt, where the way would lose it.
    """

    anchor: int
    events_dropped: int
    messages_dropped: int
    message_count: int
    changes: bool
    prompt: Event | None

    def reprompt(self) -> NewEvent | None:
        """The event that pins the lost system prompt again."""
        return NewEvent("system_message", self.prompt.data) if self.prompt else None


def find_event(store: Store, session_id: str, target: Target) -> Event:
    """The event a target names; `NotFound` if this session has no such."""
    if isinstance(target, bool) or not isinstance(target, (Checkpoint, Event, int, str)):
        raise NotFound(f"{target!r} names no point: use a checkpoint, event, seq, id or label")
    if isinstance(target, int):
        return _at(store, session_id, target)
    if isinstance(target, Event):
        if target.seq == 0:
            # It was not stored yet when it was returned: only its id tells which it is.
            return store.find(session_id, target.id)
        event = _at(store, session_id, target.seq)
        if event.id != target.id:
            raise NotFound(f"event `{target.id}` is not of session `{session_id}`")
        return event
    name = target.id if isinstance(target, Checkpoint) else target
    try:
        return store.find(session_id, name)
    except NotFound:
        found = _inherited(store, session_id, lambda event: event.id == name)
        if found is None and isinstance(target, str):
            found = _inherited(store, session_id, lambda event: event.data.get("label") == name)
        if found is None:
            raise NotFound(f"session `{session_id}` has no event or checkpoint `{name}`") from None
        return found


def _inherited(store: Store, session_id: str, wanted: Callable[[Event], bool]) -> Event | None:
    """The newest checkpoint of a session that is wanted, else of one it was forked from.

    A parent's checkpoint may be noted behind the fork point and still mark an event that
    is shared.
    """
    place: str | None = session_id
    passed: set[str] = set()
    while place is not None and place not in passed:
        passed.add(place)
        try:
            for event in store.read(place, reverse=True, kinds=("checkpoint",)):
                if wanted(event) and _shares(store, place, session_id, event):
                    return event
            info = store.info(place)
        except NotFound:
            return None
        place = info.parent_id if info.relation == "fork" else None
    return None


def _shares(store: Store, place: str, session_id: str, event: Event) -> bool:
    """Whether the event that a checkpoint of `place` marks is in `session_id` too."""
    if place == session_id:
        return True
    seq = checkpoint_of(event, place).seq
    return event_id(store, place, seq) == event_id(store, session_id, seq) is not None


def event_id(store: Store, session_id: str, seq: int) -> str | None:
    """The id of an event; None for the beginning, or where damage took it."""
    try:
        return _at(store, session_id, seq).id
    except NotFound:
        return None


def _at(store: Store, session_id: str, seq: int) -> Event:
    for event in store.read(session_id, after=seq - 1, until=seq) if seq > 0 else ():
        return event
    raise NotFound(f"session `{session_id}` has no event {seq}")


def anchor_of(store: Store, session_id: str, target: Target, *, before: bool = False) -> int:
    """The `seq` a target stands for: a checkpoint's event, not its own note in the log.

    With `before`, the one that event continued from. The number 0 is the beginning.
    """
    if target == 0 and type(target) is int and not before:
        return 0
    event = find_event(store, session_id, target)
    if event.kind == "checkpoint":
        seq = checkpoint_of(event, session_id).seq
        if not before:
            return seq
        event = _at(store, session_id, seq)
    return event.previous if before else event.seq


def plan_move(store: Store, session_id: str, view: int | None, anchor: int) -> Move:
    """What going from the history at `view` (None: the head) to `anchor` means."""
    live: dict[int, str] = {}
    prompts: list[Event] = []
    for event in store.walk(session_id, until=view):
        live[event.seq] = event.kind
        prompts += [event] if is_pinned(event) else []
    messages = 0
    path: set[int] = set()
    if anchor in live or anchor == 0:
        path = {seq for seq in live if seq <= anchor}
        messages = sum(live[seq] in MESSAGE_KINDS for seq in path)
        kept = [event for event in prompts if event.seq in path]
    else:
        kept = []
        for event in store.walk(session_id, until=anchor):
            path.add(event.seq)
            messages += event.kind in MESSAGE_KINDS
            kept += [event] if is_pinned(event) else []
    # The prompt is never dropped, so it does not count, and is pinned again if need be.
    notes = {event.seq for event in prompts}
    dropped = [seq for seq in live if seq not in path and seq not in notes]
    counted = sum(live[seq] not in BOOKKEEPING for seq in dropped)
    lost = None
    if prompts and (not kept or kept[0].data.get("message") != prompts[0].data.get("message")):
        lost = prompts[0]
        messages += 1
    changes = counted > 0 or not path <= live.keys()
    said = sum(live[seq] in MESSAGE_KINDS for seq in dropped)
    return Move(anchor, counted, said, messages, changes, lost)


def read_operations(store: Store, session_id: str) -> Operations:
    """What can be undone and redone now."""
    kinds = {*OPERATION_KINDS, *WORK_KINDS}
    return operations(store.read(session_id, kinds=kinds))


def same_checkpoint(
    store: Store,
    session_id: str,
    anchor: int,
    label: str | None,
    metadata: Mapping[str, Json],
    after: int = 0,
    tree: str | None = None,
) -> Checkpoint | None:
    """The checkpoint of this event, label, metadata and tree noted already, behind `after`."""
    for event in store.read(session_id, after=max(anchor, after), kinds=("checkpoint",)):
        if event.data.get(INHERITED):
            continue
        known = checkpoint_of(event, session_id)
        mark = (known.seq, known.label, known.metadata, known.tree)
        if mark == (anchor, label, dict(metadata), tree):
            return known
    return None
