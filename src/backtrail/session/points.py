"""Points in a session: what a caller may name one by, and what going there means.

Planning reads and changes nothing; `Session` acts on the plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest

from .._startup.frozen import dataclass
from ..errors import NotFound
from ..events import MESSAGE_KINDS, Checkpoint, Event, Json, NewEvent
from ..events.history import (
    BOOKKEEPING,
    DEEDS,
    INHERITED,
    NOTED,
    REPEATS,
    WORK_KINDS,
    Mark,
    Spans,
    among,
    noted_in,
    outside,
    spans,
)
from ..events.operations import OPERATION_KINDS, Operations, attempt_at, operations
from ..files.changes.effects import Range, Ranges
from ..stores.base import Store
from ..stores.records import checkpoint_of, is_deleted
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
    """The event a target names; `NotFound` if this session has no such, or has deleted it."""
    event = _find_event(store, session_id, target)
    if event.kind == "checkpoint" and is_deleted(store, session_id, event.id):
        raise NotFound(f"the checkpoint `{event.id}` of session `{session_id}` was deleted")
    return event


def _find_event(store: Store, session_id: str, target: Target) -> Event:
    if isinstance(target, bool) or not isinstance(target, (Checkpoint, Event, int, str)):
        raise NotFound(f"{target!r} names no point: use a checkpoint, event, seq, id or label")
    if isinstance(target, int):
        return _at(store, session_id, target)
    if isinstance(target, Event):
        if target.seq == 0:
            # It was not stored yet when it was returned: only its id finds it.
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
                if not wanted(event) or not _shares(store, place, session_id, event):
                    continue
                if not any(is_deleted(store, one, event.id) for one in {place, session_id}):
                    return event
            info = store.record(place)
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
    ways = _Ways(store, session_id, view, anchor)
    gone = outside(ways.live, ways.path)
    dropped, kept = ways.tally(gone), ways.tally(ways.path)
    # The prompt is never dropped, so it does not count, and is pinned again if need be.
    notes = sum(among(event.seq, gone) for event in ways.prompts)
    counted = sum(n for kind, n in dropped.items() if kind not in BOOKKEEPING) - notes
    said = sum(dropped[kind] for kind in MESSAGE_KINDS) - notes
    lost = ways.lost_prompt()
    messages = sum(kept[kind] for kind in MESSAGE_KINDS) + (lost is not None)
    changes = counted > 0 or bool(ways.tally(outside(ways.path, ways.live)))
    return Move(anchor, counted, said, messages, changes, lost)


def lost_prompt(store: Store, session_id: str, view: int | None, anchor: int) -> Event | None:
    """The pinned system prompt, where the way from `view` to `anchor` would lose it."""
    here = head_of(store, session_id) if view is None else view
    return None if here == anchor else _Ways(store, session_id, here, anchor).lost_prompt()


class _Ways:
    """The history at `view` and the one at `anchor`, as ranges of numbers."""

    def __init__(self, store: Store, session_id: str, view: int | None, anchor: int) -> None:
        self._store, self._id = store, session_id
        here = head_of(store, session_id) if view is None else view
        marks = store.outline(session_id, kinds=("system_message",), until=max(here, anchor))
        self.live, self.path = (spans(marks, head, self._deeds) for head in (here, anchor))
        self._pinned = self._read_pinned([m.seq for m in marks if m.kind == "system_message"])
        self.prompts = [event for event in self._pinned if among(event.seq, self.live)]

    def _deeds(self, after: int, until: int) -> list[Mark]:
        return self._store.outline(self._id, kinds=DEEDS, after=after, until=until)

    def _read_pinned(self, seqs: list[int]) -> list[Event]:
        """Every pinned prompt, newest first."""
        if not seqs:
            return []
        found = self._store.read(
            self._id, after=seqs[0] - 1, until=seqs[-1], reverse=True, kinds=("system_message",)
        )
        return [event for event in found if is_pinned(event)]

    def lost_prompt(self) -> Event | None:
        if not self.prompts:
            return None
        kept = next((event for event in self._pinned if among(event.seq, self.path)), None)
        said = kept.data.get("message") if kept else None
        return None if kept and said == self.prompts[0].data.get("message") else self.prompts[0]

    def tally(self, some: Spans) -> Counter[str]:
        """How many events of each kind the ranges hold."""
        found: Counter[str] = Counter()
        for low, high in some:
            found.update(self._store.tally(self._id, after=low, until=high))
        return found


def head_of(store: Store, session_id: str) -> int:
    """The number of the last event."""
    newest = next(store.read(session_id, reverse=True, limit=1), None)
    return newest.seq if newest else 0


# --- turns -------------------------------------------------------------------------------


class Turns:
    """The turn that each event of a log belongs to: by the number of its user's message.

    0 is what came before the first. What a hook noted is said again where it belongs, and is one
    turn with that; so is one that the agent sends to the model in another place. Where the agent
    itself went back into a turn, it may go on with that without a word.
    """

    def __init__(self) -> None:
        self._seqs = [0]
        self._turns = [0]
        self._again: dict[int, int] = {}

    def note(self, event: Event) -> None:
        """Take in the next event of the log; only user's messages and rewinds matter."""
        if event.kind == "user_message":
            again = noted_in(event, REPEATS) or noted_in(event, NOTED)
            if again and again in self._turns:
                self._again[again] = event.seq
            self._put(event.seq, event.seq)
        elif event.kind == "rewound":
            turn = self._turns[-1]
            if "source" in event.data and event.follows is not None:
                known = {self._named(one) for one in self._turns}
                turn = max((one for one in known if one <= event.follows), default=turn)
            self._put(event.seq, turn)

    def _put(self, seq: int, turn: int) -> None:
        self._seqs.append(seq)
        self._turns.append(turn)

    def _named(self, turn: int) -> int:
        while turn in self._again:
            turn = self._again[turn]
        return turn

    def of(self, seq: int) -> int:
        """The turn of an event."""
        return self._named(self._turns[bisect_right(self._seqs, seq) - 1])

    def ranges(self, turn: int) -> Ranges:
        """The events of a turn, without rewinds: an undone one may stand for its changes."""
        found: list[Range] = []
        bounds: list[int | None] = [seq - 1 for seq in self._seqs[1:]]
        for first, until, one in zip(self._seqs, [*bounds, None], self._turns, strict=True):
            # A rewind begins no turn: its own event stands before what follows it.
            start = first if first == one else first + 1
            if self._named(one) == turn and (until is None or start <= until):
                found.append(Range(start, until))
        return tuple(found)


TURN_KINDS = ("user_message", "rewound")
"""The kinds of events that `Turns` must see."""


def prompts(store: Store, session_id: str, at: int | None = None) -> list[int]:
    """The user's messages of the history, oldest first: the first is prompt 1.

    With `at`, of the history that ends there.
    """
    marks = store.outline(session_id, kinds=("user_message",), until=at)
    live = spans(marks, head_of(store, session_id) if at is None else at)
    return [mark.seq for mark in marks if mark.kind == "user_message" and among(mark.seq, live)]


def find_turn(store: Store, session_id: str, turn: Event | int | str) -> int:
    """The user's message of a turn: by the number of its prompt, or an event or id.

    -1 is the last. A number that no prompt has is that of an event, as elsewhere.
    """
    said = prompts(store, session_id)
    if type(turn) is int and 0 < abs(turn) <= len(said):
        return said[turn - (turn > 0)]
    count = "1 prompt" if len(said) == 1 else f"{len(said)} prompts"
    try:
        event = find_event(store, session_id, turn)
    except NotFound:
        raise NotFound(f"session `{session_id}` has {count}, so no turn {turn}") from None
    if event.kind != "user_message":
        raise NotFound(
            f"session `{session_id}` has {count}, and event {event.seq} is none: no turn {turn!r}"
        )
    return event.seq


def read_turns(store: Store, session_id: str) -> Turns:
    """The turns of a session's whole log."""
    found = Turns()
    for event in store.read(session_id, kinds=TURN_KINDS):
        found.note(event)
    return found


def read_operations(store: Store, session_id: str) -> Operations:
    """What can be undone and redone now; of what can be undone, the last is enough."""
    outline = store.outline(session_id, kinds=_MOVES)
    undone = [mark.seq for mark in outline if mark.kind == "undone"]
    first = undone[0] if undone else None
    later: list[Event | Mark] = []
    if first is not None:
        marks = store.outline(session_id, kinds=OPERATION_KINDS, after=first - 1)
        later += _replayed(store, session_id, marks)
    tried = [of for of in map(attempt_at, later) if of is not None]
    # As many operations as were taken back or tried again, and one more, are all that may be
    # the last now.
    n = len(undone) + len(tried) + 1
    sought = set(tried) - {event.id for event in later if isinstance(event, Event)}
    return operations([*_last_operations(store, session_id, first, n, sought), *later])


def _last_operations(
    store: Store, session_id: str, before: int | None, n: int, attempts: set[str]
) -> list[Event]:
    """The last `n` turns and rewinds in front of an event, in order, each with all attempts.

    `attempts` are the turns that were tried again later.
    """
    until = None if before is None else before - 1
    found: list[Event] = []
    noted: set[int] = set()
    for event in store.read(session_id, until=until, reverse=True, kinds=OPERATION_KINDS):
        if REPEATS in event.data:
            continue
        found.append(event)
        # What a hook noted and was said again is no turn of its own.
        noted.add(noted_in(event, NOTED))
        n -= event.kind in ("user_message", "rewound") and event.seq not in noted
        # Where a turn was tried again, its attempts count as one that begins with the first.
        first = attempt_at(event)
        n += first is not None
        attempts = (attempts | {first} if first else attempts) - {event.id}
        if n <= 0 and not attempts:
            break
    found.reverse()
    return found


def _replayed(store: Store, session_id: str, marks: list[Mark]) -> Iterator[Event | Mark]:
    """The operations among the marks, with their bodies, and the first work behind them.

    Work counts only where something was undone: there it ends what can be redone.
    """
    found = [mark for mark in marks if mark.kind in OPERATION_KINDS]
    first, last = found[0].seq - 1, found[-1].seq
    read = store.read(session_id, after=first, until=last, kinds=OPERATION_KINDS)
    bodies = {event.seq: event for event in read}
    bounds: list[int | None] = [mark.seq - 1 for mark in found[1:]]
    for mark, bound in zip_longest(found, bounds):
        if mark.kind == "user_message" or mark.seq in bodies:
            yield bodies.get(mark.seq, mark)
        if mark.kind in ("undone", "redone"):
            yield from store.read(
                session_id, after=mark.seq, until=bound, kinds=WORK_KINDS, limit=1
            )


_MOVES = tuple(kind for kind in OPERATION_KINDS if kind != "user_message")


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
        if event.data.get(INHERITED) or is_deleted(store, session_id, event.id):
            continue
        known = checkpoint_of(event, session_id)
        mark = (known.seq, known.label, known.metadata, known.tree)
        if mark == (anchor, label, dict(metadata), tree):
            return known
    return None
