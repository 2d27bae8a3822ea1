"""Pure reasoning over a log: the live path, its branches, counts, states of the files.

A log never forgets. Each event continues from `follows`, else from the event before it,
so walking back from the head gives the *history*, and what a rewind left behind stays
as a *branch*.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from .._startup.frozen import NamedTuple, dataclass
from .._startup.hashing import sha256
from . import MESSAGE_KINDS, AsDict, Event, Json, NewEvent
from .messages import Page, normal_usage

BOOKKEEPING = frozenset(
    {"session_start", "session_resume", "session_end", "turn_end", "checkpoint", "files_changed"}
    | {"checkpoint_deleted", "rewound", "undone", "redone", "subagent_usage"}
)
"""Kinds that note something about the session and are not counted as dropped by a rewind."""

WORK_KINDS = (*(kind for kind in MESSAGE_KINDS if kind != "system_message"), "action")
"""Kinds whose arrival after an undo means that there is nothing to redo."""

DEEDS = ("action", "files_changed")
"""Kinds that say what was done to files, in whose midst words may have a branch."""

_ANSWERS = tuple(kind for kind in MESSAGE_KINDS if kind != "user_message")

NOTED = "noted"
"""In a `user_message`: the number of the event that a hook noted it as, before the agent's own
transcript said what it comes after. That event is no message of its own."""

BEGINS = "begins"
"""In a `rewound` of an agent's own making: the first event that belongs to it. What a hook noted
before the transcript had the rewind stands in between."""

BACK = "back"
"""In a `files_changed`: the earlier event at which the files were so. The session's agent put
them back itself."""

REPEATS = "repeats"
"""In an event: the number of an earlier one that it repeats in another place of the conversation.
The agent sends it to the model there. The earlier one is no message of its own any more."""

_REPEATED = "-repeated"

INHERITED = "inherited"
"""In a fork's `checkpoint` event: its parent's, kept to go back to but not listed."""

DELETED = "checkpoint_deleted"
"""The kind of an event by which a checkpoint counts no more; `checkpoint` is the id of that."""

COPIED = "copy_checkpoints"
"""In a fork's `session_start` event: whether the fork lists its parent's checkpoints."""


class Mark(NamedTuple):
    """An event without its body. `data` is there for those that were read."""

    seq: int
    kind: str
    follows: int | None = None
    data: Mapping[str, Json] = {}


def deletion(checkpoint_id: str) -> NewEvent:
    """The event that deletes a checkpoint; its id is known, so it is found at once."""
    return NewEvent(DELETED, {"checkpoint": checkpoint_id}, id=deletion_id(checkpoint_id))


def deletion_id(checkpoint_id: str) -> str:
    """The id of the event that deletes a checkpoint."""
    return f"deleted-{sha256(checkpoint_id.encode()).hexdigest()[:32]}"


def repetition_of(id: str) -> str:
    """The id of the event that repeats another."""
    return f"{id}{_REPEATED}"[-256:]


def original_of(event: Event) -> str:
    """The id of the event that one repeats; its own if it repeats none."""
    is_again = REPEATS in event.data or NOTED in event.data
    return event.id.removesuffix(_REPEATED) if is_again else event.id


# --- the live path -----------------------------------------------------------------------


def walk(read_back: Callable[[int | None], Iterator[Event]], head: int | None) -> Iterator[Event]:
    """The history, newest first, ending at `head` (None: the last event).

    `read_back(until)` gives the log backwards from `until`; it is called once for each jump,
    so the cost is that of the history and not of what was abandoned. The first call is
    made at once, so that its errors come from here and not from the first event.

    A rewind leaves all behind that came after its point. A message that answers an earlier one
    than the last, as when an agent writes late or two talk at once, leaves only words: what was
    done to files in between is the session's, whatever branch the words are on.
    """
    return _walk(read_back, read_back(head))


def _walk(
    read_back: Callable[[int | None], Iterator[Event]], events: Iterator[Event]
) -> Iterator[Event]:
    while True:
        for event in events:
            yield event
            # Damage may make an event follow itself: there is no way back from it.
            if event.follows is not None and event.follows < event.seq:
                if event.kind in _ANSWERS and event.follows < event.seq - 1:
                    yield from _done_between(read_back, event.follows, event.seq - 1)
                events = read_back(event.follows)
                break
        else:
            return


def _done_between(
    read_back: Callable[[int | None], Iterator[Event]], after: int, until: int
) -> Iterator[Event]:
    """What was done to files between two events, newest first, and not rewound since."""
    at: int | None = until
    while at is not None and at > after:
        events, at = read_back(at), None
        for event in events:
            if event.seq <= after:
                return
            if event.kind in DEEDS:
                yield event
            elif event.kind not in MESSAGE_KINDS and event.follows is not None:
                at = event.follows if event.follows < event.seq else None
                break


def walk_pages(
    read_back: Callable[[int | None], Iterator[Page]], head: int | None
) -> Iterator[Page]:
    """`walk` in pages, newest first; each is in order.

    `read_back(until)` gives such pages of the whole log. Where nothing was rewound they are
    passed on as they are.
    """
    return _walk_pages(read_back, read_back(head))


def _walk_pages(
    read_back: Callable[[int | None], Iterator[Page]], pages: Iterator[Page]
) -> Iterator[Page]:
    while True:
        for page in pages:
            if page.follows.count(None) == len(page.follows):
                yield page
                continue
            live, bound = _live(page)
            yield live
            if bound is not None:
                pages = read_back(bound)
                break
        else:
            return


def _live(page: Page) -> tuple[Page, int | None]:
    """The live part of a page whose last event is live, and where to jump from its first."""
    live: list[int] = []
    bound: int | None = None
    for at in range(len(page.seqs) - 1, -1, -1):
        seq, follows = page.seqs[at], page.follows[at]
        if bound is None or seq <= bound:
            live.append(at)
            bound = follows if follows is None or follows < seq else None
    live.reverse()
    return page.only(live), bound


def path(events: Iterable[Event], head: int | None = None) -> list[Event]:
    """The history among `events` (a whole log in order), oldest first."""
    ordered = list(events)
    seqs = [event.seq for event in ordered]

    def read_back(until: int | None) -> Iterator[Event]:
        last = len(ordered) if until is None else bisect_right(seqs, until)
        return iter(ordered[last - 1 :: -1] if last else ())

    live = list(walk(read_back, head))
    live.reverse()
    return live


Spans = list[tuple[int, int]]
"""Ranges of numbers, newest first: `low < seq <= high`."""


def spans(
    marks: Iterable[Mark], head: int, read: Callable[[int, int], list[Mark]] = lambda *_: []
) -> Spans:
    """The history that ends at `head`, by all marks that jump, given in order.

    `read(after, until)` gives the marks of what was done to files there, too, in order. It is
    asked for only where that stays in the history though the words in between do not.
    """
    jumps = [mark for mark in marks if mark.follows is not None and mark.follows < mark.seq]
    seqs = [mark.seq for mark in jumps]
    found: Spans = []
    last = len(seqs)
    while head > 0:
        last = bisect_right(seqs, head, 0, last)
        jump = jumps[last - 1] if last else None
        low, before = (jump.seq - 1, jump.follows or 0) if jump else (0, 0)
        found.append((low, head))
        if jump and jump.kind in _ANSWERS and before < low:
            found += [(seq - 1, seq) for seq in _deeds(read(before, low))]
        head = before
    return found


def _deeds(marks: list[Mark]) -> Iterator[int]:
    """`_done_between`, of marks."""
    until: int | None = None
    for mark in reversed(marks):
        if until is not None and mark.seq > until:
            continue
        if mark.kind in DEEDS:
            yield mark.seq
        elif mark.kind not in MESSAGE_KINDS and mark.follows is not None:
            if mark.follows >= mark.seq:
                return
            until = mark.follows


def outside(some: Spans, others: Spans) -> Spans:
    """What of `some` is in none of `others`."""
    left: Spans = []
    at = 0
    for low, high in some:
        while at < len(others) and others[at][0] >= high:
            at += 1
        for below, above in islice(others, at, None):
            if above <= low or high <= low:
                break
            if above < high:
                left.append((above, high))
            high = below
        if low < high:
            left.append((low, high))
    return left


def among(seq: int, some: Spans) -> bool:
    """Whether a number is in one of the ranges."""
    return any(low < seq <= high for low, high in some)


@dataclass(frozen=True, slots=True)
class Branch(AsDict):
    """A way the conversation went and was taken back from.

    `head` is its last event, `left` the event where it parts from the live path or from a
    newer branch, `message_count` the messages beyond that.
    """

    head: int
    left: int
    message_count: int


def branches(events: Iterable[Event]) -> list[Branch]:
    """The abandoned ends of a whole log, oldest first; those without a message are left out."""
    previous: dict[int, int] = {}
    is_message: set[int] = set()
    tips: list[int] = []
    last = 0
    for event in events:
        before = last
        # As in `walk`: an event that follows itself, or a later one, leads nowhere.
        if event.follows is not None and event.follows < event.seq:
            before = event.follows
        if before != last:
            tips.append(previous.get(noted_in(event, BEGINS), last))
        previous[event.seq] = before
        if event.kind in MESSAGE_KINDS:
            is_message.add(event.seq)
            is_message -= {noted_in(event, NOTED), noted_in(event, REPEATS)}
        last = event.seq
    known: set[int] = {0}
    at = last
    while at not in known:
        known.add(at)
        at = previous.get(at, 0)
    found: list[Branch] = []
    for tip in reversed(tips):
        messages, at, passed = 0, tip, []
        while at not in known:
            passed.append(at)
            messages += at in is_message
            at = previous.get(at, 0)
        if messages:
            found.append(Branch(tip, at, messages))
            known.update(passed)
    found.reverse()
    return found


def noted_in(event: Event | Mark, name: str) -> int:
    """The number of an earlier event that one gives under a name; 0 if it gives none."""
    found = event.data.get(name)
    return found if type(found) is int and 0 < found < event.seq else 0


# --- counts ------------------------------------------------------------------------------


class Fold(msgspec.Struct, frozen=True):
    """What a session's record takes from its log, as of `head`."""

    head: int = 0
    message_count: int = 0
    turn_count: int = 0
    usage: dict[str, int] = {}
    cost_usd: float | None = None
    exit_reason: str | None = None
    updated_at: str = ""


def fold(
    state: Fold,
    events: Iterable[Event],
    live: Callable[[int], Iterable[Event]],
    own_after: int = 0,
) -> Fold:
    """`state` advanced by `events`, which come right after it.

    Messages and turns are those of the history; usage and cost are all that was spent by
    this session itself, so events up to `own_after` (the fork point) do not count.
    `live(seq)` gives the history up to `seq`; it is asked for only when the path jumps.
    """
    head, updated, reason = state.head, state.updated_at, state.exit_reason
    messages, turns, cost = state.message_count, state.turn_count, state.cost_usd
    usage = dict(state.usage)
    for event in events:
        if event.follows is not None:
            messages = turns = 0
            for earlier in live(event.follows) if event.follows else ():
                messages += earlier.kind in MESSAGE_KINDS
                turns += earlier.kind == "user_message"
        head = event.seq
        # An agent's daemon may say long after the last word that a session is over.
        if event.ts > updated and event.kind != "session_end":
            updated = event.ts
        if event.kind in MESSAGE_KINDS:
            messages += 1
            turns += event.kind == "user_message"
        if event.seq > own_after:
            for name, count in spent(event.data).items():
                usage[name] = usage.get(name, 0) + count
            price = event.data.get("cost_usd")
            if isinstance(price, (int, float)) and not isinstance(price, bool):
                cost = (cost or 0.0) + price
        if event.kind in ("session_end", "turn_end") and event.seq > own_after:
            said = event.data.get("reason")
            reason = said if isinstance(said, str) else None
        elif event.kind in ("session_resume", "user_message"):
            reason = None
    return Fold(head, messages, turns, usage, cost, reason, updated)


def spent(data: Mapping[str, Json]) -> dict[str, int]:
    """The tokens an event states, beside its message or in it."""
    usage = data.get("usage")
    if usage is None:
        message = data.get("message")
        usage = message.get("usage") if isinstance(message, Mapping) else None
    return normal_usage(usage) if isinstance(usage, Mapping) else {}


# --- states of the files -----------------------------------------------------------------


def tree_of(event: Event) -> bytes | None:
    """The state an event leaves, if it says; trees of some paths alone are no state."""
    files = event.data.get("files")
    found = files.get("after") if isinstance(files, dict) and not files.get("partial") else None
    if found is None:
        found = event.data.get("tree")
    return digest_of(found)


def digest_of(text: Json) -> bytes | None:
    """The digest a text spells; None if it is something else, since callers record events."""
    try:
        digest = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return None
    return digest if len(digest) == 32 else None


def newest_tree(newest_first: Iterable[Event]) -> bytes | None:
    """The newest state of the files that events record, wherever it stands."""
    event = newest_look(newest_first)
    return tree_of(event) if event is not None else None


def newest_look(newest_first: Iterable[Event]) -> Event | None:
    """The event that records the newest state of the files.

    A checkpoint of an earlier point has the state of that point, and says nothing of now.
    """
    marks: list[Event] = []
    deleted: set[Json] = set()
    for event in newest_first:
        if event.kind == DELETED:
            deleted.add(str(event.data.get("checkpoint")))
        elif event.kind == "checkpoint":
            marks += [] if event.id in deleted else [event]
        elif event.kind != "session_resume":
            found = _marked(marks, event.seq) or (event if tree_of(event) is not None else None)
            if found is not None:
                return found
            marks = []
    return _marked(marks, 0)


def _marked(marks: Iterable[Event], last: int) -> Event | None:
    """The newest of some checkpoints that stands for the event before them, and has a state."""
    for mark in marks:
        at = mark.data.get("at")
        if tree_of(mark) is not None and (not isinstance(at, int) or at >= last):
            return mark
    return None


def root_of(event: Event) -> str:
    """The id of the root that an event's files are in; empty where it does not say."""
    stamp = event.data.get("workspace")
    id = stamp.get("id") if isinstance(stamp, dict) else None
    return id if isinstance(id, str) else ""
