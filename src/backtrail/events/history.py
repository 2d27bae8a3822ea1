"""Pure reasoning over a log: the live path, its branches, undo and redo, counts, repair.

A log never forgets. Each event continues from `follows`, else from the event before it,
so walking back from the head gives the *history*, and what a rewind left behind stays
as a *branch*. Undo and redo keep no state of their own: `operations` replays the log's
turns, rewinds, undos and redos and says where the next undo or redo would go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from .._startup.frozen import NamedTuple, dataclass
from .._startup.hashing import sha256
from . import MESSAGE_KINDS, Event, Json, NewEvent
from .messages import Page, normal_usage

OPERATION_KINDS = ("user_message", "rewound", "undone", "redone")
"""The kinds `operations` needs to see."""

BOOKKEEPING = frozenset(
    {"session_start", "session_resume", "session_end", "turn_end", "checkpoint", "files_changed"}
    | {"checkpoint_deleted", "rewound", "undone", "redone", "subagent_usage"}
)
"""Kinds that note something about the session and are not counted as dropped by a rewind."""

WORK_KINDS = (*(kind for kind in MESSAGE_KINDS if kind != "system_message"), "action")
"""Kinds whose arrival after an undo means that there is nothing to redo."""

DEEDS = ("action", "files_changed")
"""Kinds that tell what was done to files, in whose midst words may have a branch."""

_ANSWERS = tuple(kind for kind in MESSAGE_KINDS if kind != "user_message")

NOTED = "noted"
"""In a `user_message`: the number of the event that a hook noted it as, before the agent's own
transcript said what it comes after. That event is no message of its own."""

BEGINS = "begins"
"""In a `rewound` of an agent's own making: the first event that belongs to it. What a hook noted
before the transcript told of the rewind stands in between."""

BACK = "back"
"""In a `files_changed`: the earlier event at which the files were so. The session's agent put
them back itself."""

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
class Branch:
    """A way the conversation went and was taken back from.

    `head` is its last event, `left` the event where it parts from the live path or from a
    newer branch, `message_count` the messages beyond that.
    """

    head: int
    left: int
    message_count: int

    def to_dict(self) -> dict[str, Json]:
        """The branch as JSON."""
        return {"head": self.head, "left": self.left, "message_count": self.message_count}


def branches(events: Iterable[Event]) -> list[Branch]:
    """The abandoned ends of a whole log, oldest first; those without a message are left out."""
    previous: dict[int, int] = {}
    is_message: set[int] = set()
    tips: list[int] = []
    last = 0
    for event in events:
        before = last
        # As in `walk`: whoever follows itself, or a later one, leads nowhere.
        if event.follows is not None and event.follows < event.seq:
            before = event.follows
        if before != last:
            tips.append(previous.get(noted_in(event, BEGINS), last))
        previous[event.seq] = before
        if event.kind in MESSAGE_KINDS:
            is_message.add(event.seq)
            is_message.discard(noted_in(event, NOTED))
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


# --- undo and redo -----------------------------------------------------------------------


class Operation(NamedTuple):
    """A turn or a rewind: what it was, its event, and the `seq` to return to.

    `spans` are the events that belong to it, by number (first, last; None: up to the
    newest): its own, and what was done after it until the next operation. Of an undone
    one, they are the undos that took it back.
    """

    kind: str
    seq: int
    before: int
    spans: tuple[tuple[int, int | None], ...] = ()


class Operations(NamedTuple):
    """What can be undone, newest last, and what can be redone, next last.

    `unfinished` is the last undo, if it kept files as they were and nothing was done since:
    what it was about, with all that belongs to that, and the state it left.
    """

    done: list[Operation]
    undone: list[Operation]
    unfinished: Operation | None = None


RETRY_OF = "retry_of"
"""In a `user_message`: the id of the turn that it is another attempt at."""

FINISHES = "finishes"
"""In an `undone` event: the undo that it goes on with, by number. It takes back nothing else."""

KEPT = "kept"
"""In a `rewound`, `undone` or `redone` event: the paths that stayed as conflicts."""


MADE_ROOT = "made_root"
"""In the same: that the workspace's folder was gone, and was made again for what came into it."""


def operations(events: Iterable[Event | Mark]) -> Operations:
    """Replay `events` of `OPERATION_KINDS`, and any `WORK_KINDS` among them, in order.

    A turn or rewind can be undone to the state just before it. An undo can be redone to
    the state just before the undo, until something new is said or done. Attempts at one
    turn are one operation, where the newest is.
    """
    done: list[Operation] = []
    undone: list[Operation] = []
    # Each undone operation as it was in `done`, spans and all.
    taken: list[Operation] = []
    turns: dict[int, str] = {}
    unfinished = False
    for event in events:
        before = event.seq - 1
        if event.kind in OPERATION_KINDS and done:
            done[-1] = _ended(done[-1], before)
        if event.kind in ("user_message", "rewound"):
            done.append(_begun(done, turns, event))
            undone.clear()
            taken.clear()
            unfinished = False
        elif event.kind == "undone":
            last = undone[-1] if undone else None
            if isinstance(event.data.get(FINISHES), int):
                if last is not None:
                    undone[-1] = last._replace(spans=(*last.spans, (event.seq, event.seq)))
            elif done:
                taken.append(done.pop())
                kind, seq = taken[-1].kind, taken[-1].seq
                undone.append(Operation(kind, seq, before, ((event.seq, event.seq),)))
            unfinished = bool(event.data.get(KEPT) and undone)
        elif event.kind == "redone":
            if undone:
                again = undone.pop()
                done.append(Operation(again.kind, again.seq, before, taken.pop().spans))
            unfinished = False
        elif event.kind in WORK_KINDS:
            undone.clear()
            taken.clear()
            unfinished = False
        if event.kind in ("undone", "redone") and done:
            spans = done[-1].spans
            # What a redo wrote beside a conflict belongs to what it brought back.
            first = event.seq if event.kind == "redone" else event.seq + 1
            done[-1] = done[-1]._replace(spans=(*spans, (first, None)))
    rest = undone[-1]._replace(spans=taken[-1].spans) if unfinished else None
    return Operations(done, undone, rest)


def _begun(done: list[Operation], turns: dict[int, str], event: Event | Mark) -> Operation:
    """The operation that begins with an event, with what of `done` is part of it.

    `turns` are the requests that operations are attempts at.
    """
    first, before = event.seq, event.seq - 1
    noted = noted_in(event, NOTED if event.kind == "user_message" else BEGINS)
    if noted and done and _is_noted_as(done[-1], noted, event):
        # What a hook noted is told again here, where it belongs.
        done.pop()
        first = noted
        if done:
            done[-1] = _ended(done[-1], noted - 1)
    if noted and event.kind == "rewound":
        first, before = noted, noted - 1
    earlier = _earlier_attempt(done, turns, event) if event.kind == "user_message" else ()
    return Operation(event.kind, event.seq, before, (*earlier, (first, None)))


def _is_noted_as(last: Operation, noted: int, event: Event | Mark) -> bool:
    """Whether the last operation is the prompt that a hook noted.

    A turn that was said after the noted one is another. A rewind may begin before the prompt.
    """
    if last.kind != "user_message":
        return False
    return noted == last.seq if event.kind == "user_message" else noted <= last.seq


def noted_in(event: Event | Mark, name: str) -> int:
    """The number of an earlier event that one gives under a name; 0 if it gives none."""
    found = event.data.get(name)
    return found if type(found) is int and 0 < found < event.seq else 0


def attempt_at(event: Event | Mark) -> str | None:
    """The id of the turn that a message is another attempt at; None for all others."""
    first = event.data.get(RETRY_OF)
    return first if isinstance(first, str) and first else None


def _earlier_attempt(
    done: list[Operation], turns: dict[int, str], event: Event | Mark
) -> tuple[tuple[int, int | None], ...]:
    """The spans of an earlier attempt at the turn that begins here, which is no more in `done`.

    Its message stays in the conversation, and leaves it with the turn that came after it.
    One that was rewound since is not part of this one: the rewind took it back.
    """
    first = attempt_at(event)
    turns[event.seq] = first or (event.id if isinstance(event, Event) else "")
    for at in range(len(done) - 1, -1, -1) if first else ():
        if done[at].kind != "user_message":
            break
        if turns.get(done[at].seq) == first:
            attempt = done.pop(at)
            if at < len(done):
                done[at] = done[at]._replace(before=attempt.before)
            return attempt.spans
    return ()


def _ended(operation: Operation, last: int) -> Operation:
    """An operation whose last span ends here, or is dropped if it is empty."""
    if not operation.spans:
        return operation
    *spans, (first, _) = operation.spans
    ended = [(first, last)] if first <= last else []
    return operation._replace(spans=(*spans, *ended))


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
    """The digest a text spells; None if it is something else, since anybody may record events."""
    try:
        digest = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return None
    return digest if len(digest) == 32 else None


def newest_tree(newest_first: Iterable[Event]) -> bytes | None:
    """The newest state of the files that events tell of, wherever it stands."""
    event = newest_look(newest_first)
    return tree_of(event) if event is not None else None


def newest_look(newest_first: Iterable[Event]) -> Event | None:
    """The event that tells the newest state of the files.

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
    """The id of the root that an event's files are in; empty where it does not tell."""
    stamp = event.data.get("workspace")
    id = stamp.get("id") if isinstance(stamp, dict) else None
    return id if isinstance(id, str) else ""
