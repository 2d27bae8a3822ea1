"""From what a caller appends to what a log stores: shared by every store.

`drafts` checks and encodes a batch before any lock is taken. `settle` decides, under the
lock, what each draft becomes: a new event with the next `seq`, or one already present.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

from .. import telemetry
from .._startup.frozen import NamedTuple
from ..errors import AlreadyExists, Conflict, InvalidData
from ..events import (
    KINDS,
    MAIN_LOG,
    MAX_SEQ,
    Event,
    Json,
    NewEvent,
    check_text,
    check_ts,
    decode_data,
    encode_data,
    make_event,
    mint,
    now,
    timestamp,
)
from .base import KnownIds, Store

PURGED: dict[str, Json] = {"purged": True}
"""What is left of a purged event's body."""


_KNOWN = frozenset(KINDS)
_KNOWN_IDS = ("follow", "skip", "error")

# A named tuple's own constructor goes through Python code.
_tuple = tuple.__new__


class Draft(NamedTuple):
    """A checked event that has no `seq` yet, and its encoded body."""

    id: str
    given: bool
    ts: str
    kind: str
    follows: int | None
    data: dict[str, Json]
    body: bytes

    @property
    def usual(self) -> bool:
        """Whether nearly all are like it: a kind of ours, and no id to be looked up."""
        return not self.given and self.follows is None and self.kind in _KNOWN


class Stored(NamedTuple):
    """A new event and its encoded body, ready to be written."""

    event: Event
    body: bytes


class Call(NamedTuple):
    """One caller's append, checked and encoded. A `quiet` one is reported to listeners elsewhere.

    `since` is when its caller began to wait, by the monotonic clock: the queue does not wait for
    a lock longer than any other writer. Without it, the queue waits for a moment. `fixed` ids are
    known to the caller already, so the store does not put numbers into them.
    """

    session_id: str
    batch: list[Draft]
    log: str = MAIN_LOG
    expected: int | None = None
    quiet: bool = False
    since: float = 0.0
    known: KnownIds = "follow"
    fixed: bool = False

    @property
    def usual(self) -> bool:
        """Whether it is what nearly every append is: one usual event, whatever the head is."""
        if len(self.batch) != 1 or self.expected is not None or type(self.session_id) is not str:
            return False
        return self.batch[0].usual


Outcome = list[Event] | BaseException
"""What came of a call: its events as stored, or why there are none."""


def carried_out(append: Callable[..., list[Event]], call: Call) -> Outcome:
    """The outcome of a call that is made by itself."""
    # An id that the caller chose is kept by every store.
    batch = [draft._replace(given=True) for draft in call.batch] if call.fixed else call.batch
    events = [Prepared(draft) for draft in batch]
    try:
        return append(
            call.session_id, events, log=call.log, expected=call.expected, known=call.known
        )
    except Exception as error:
        return error


class Prepared(NewEvent):
    """An event that was checked and encoded before; later changes of its data do not show."""

    def __init__(self, draft: Draft) -> None:
        data = decode_data(draft.body)
        super().__init__(draft.kind, data, id=draft.id, follows=draft.follows, ts=draft.ts)
        object.__setattr__(self, "draft", draft)

    draft: Draft


if TYPE_CHECKING:

    class UsualEvent(NewEvent):
        """What `is_usual` finds: its data is a dictionary."""

        data: dict[str, Json]


def is_usual(event: NewEvent) -> TypeGuard[UsualEvent]:
    """Whether an event is what nearly all are: nothing to check in it but its data."""
    return (
        event.id is None
        and event.follows is None
        and event.ts is None
        and type(event) is NewEvent
        and type(event.data) is dict
        and type(event.kind) is str
        and event.kind in _KNOWN
    )


def drafts(events: Sequence[NewEvent]) -> list[Draft]:
    """Check and encode a batch; nothing is written if one of it is refused."""
    if len(events) == 1:
        event = events[0]
        if is_usual(event):
            data = event.data
            body = encode_data(data)
            id, ts = mint()
            return [_tuple(Draft, (id, False, ts, event.kind, None, data, body))]
        return [_draft(event)]
    return [_draft(event) for event in events]


def _draft(event: NewEvent) -> Draft:
    if type(event) is Prepared:
        return event.draft
    id, ts, kind, follows, data = event.id, event.ts, event.kind, event.follows, event.data
    given = id is not None
    if id is None:
        id, moment = mint()
        ts = moment if ts is None else timestamp(check_ts(ts))
    else:
        check_text(id, "an event id")
        ts = now() if ts is None else timestamp(check_ts(ts))
    if kind not in _KNOWN:
        check_text(kind, "an event kind")
    if follows is not None and (type(follows) is not int or follows < 0):
        raise InvalidData(f"`follows` is the seq of an earlier event, not {follows!r}")
    body = encode_data(data)
    if type(data) is not dict:
        data = dict(data)
    return _tuple(Draft, (id, given, ts, kind, follows, data, body))


def settle(
    batch: list[Draft],
    head: int,
    find: Callable[[str], Event | None],
    expected: int | None,
    last: int | None = None,
    known: KnownIds = "follow",
) -> tuple[list[Event], list[Stored]]:
    """What the caller gets back, and what is to be written, in order.

    `find` looks up an id in the log; it is asked only about ids the caller chose. `known` says
    what becomes of one that is there. `last` is
    the highest number ever used, where damage took events beyond the head.
    """
    if len(batch) == 1 and not batch[0].given and batch[0].follows is None:
        # What nearly every append is.
        if expected is not None and expected != head:
            raise _conflict(expected, head)
        id, _, ts, kind, _, data, body = batch[0]
        seq = (head if last is None else last) + 1
        if seq > MAX_SEQ:
            raise full()
        event = make_event(seq, id, ts, kind, data, None)
        return [event], [_tuple(Stored, (event, body))]
    result: list[Event] = []
    fresh: list[Stored] = []
    mine: dict[str, Event] = {}
    seq = head if last is None else last
    before = head
    skipped: int | None = None
    for draft in batch:
        if draft.given:
            there = mine.get(draft.id) or find(draft.id)
            if there is not None:
                if known == "error":
                    raise AlreadyExists(f"id `{draft.id}` is that of event {there.seq} already")
                result.append(there)
                skipped = there.seq if known == "follow" else None
                continue
        follows = draft.follows if draft.follows is not None else skipped
        skipped = None
        if follows is not None:
            if follows > seq:
                raise InvalidData(f"an event cannot follow {follows}: the head is {before}")
            if follows == before:
                follows = None
        seq += 1
        if seq > MAX_SEQ:
            raise full()
        before = seq
        event = make_event(seq, draft.id, draft.ts, draft.kind, draft.data, follows)
        if draft.given:
            mine[draft.id] = event
        result.append(event)
        fresh.append(_tuple(Stored, (event, draft.body)))
    if fresh and expected is not None and expected != head:
        raise _conflict(expected, head)
    return result, fresh


def full() -> InvalidData:
    """The error for an append behind the last number there is."""
    return InvalidData(f"the log is full: {MAX_SEQ} is its last number; go on in a fork")


def check_head(expected: int | None, head: int) -> None:
    """Raise `Conflict` if a head is expected that is not the head."""
    if expected is not None and expected != head:
        raise _conflict(expected, head)


def _conflict(expected: int, head: int) -> Conflict:
    return Conflict(
        f"the head is {head}, not {expected}: read what came in between and append again",
        expected=expected,
        head=head,
    )


# --- telemetry of appends ----------------------------------------------------------------


Append = TypeVar("Append", bound=Callable[..., list[Event]])
Each = Callable[[Any, Sequence[Call]], list[Outcome]]


def observed(append: Append) -> Append:
    """Emit `store.append`, or `store.error`, while there are listeners."""

    @functools.wraps(append)
    def wrapper(
        self: Store,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        if known not in _KNOWN_IDS:
            raise InvalidData(f"`known` is one of {', '.join(_KNOWN_IDS)}, not {known!r}")
        if not telemetry.listeners:
            return append(self, session_id, events, log=log, expected=expected, known=known)
        began = time.perf_counter()
        try:
            result = append(self, session_id, events, log=log, expected=expected, known=known)
        except Exception as error:
            _emit(self, session_id, log, len(events), began, error)
            raise
        _emit(self, session_id, log, len(result), began, result)
        return result

    return cast(Append, wrapper)


def observed_each(append_each: Each) -> Each:
    """The same for each of several calls."""

    @functools.wraps(append_each)
    def wrapper(self: Store, calls: Sequence[Call]) -> list[Outcome]:
        if not telemetry.listeners:
            return append_each(self, calls)
        from .queue import Postponed

        began = time.perf_counter()
        outcomes = append_each(self, calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            if not (call.quiet or isinstance(outcome, Postponed)):
                _emit(self, call.session_id, call.log, len(call.batch), began, outcome)
        return outcomes

    return wrapper


def _emit(
    store: Store, session_id: str, log: str, count: int, began: float, outcome: Outcome
) -> None:
    numbers = {"count": count, "duration": time.perf_counter() - began}
    metadata = {"session_id": session_id, "store": type(store).__name__, "log": log}
    if isinstance(outcome, BaseException):
        failure = {"error": type(outcome).__name__, "message": str(outcome)}
        telemetry.emit("store.error", numbers, {**metadata, "operation": "append", **failure})
    else:
        telemetry.emit("store.append", numbers, metadata)
