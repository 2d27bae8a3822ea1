"""Undo and redo, replayed from a log: what the next one takes back, and to which event.

Undo and redo keep no state of their own: `operations` replays the log's turns, rewinds, undos
and redos and says where the next undo or redo would go.
"""

from __future__ import annotations

from collections.abc import Iterable

from .._startup.frozen import NamedTuple
from . import Event
from .history import BEGINS, NOTED, REPEATS, WORK_KINDS, Mark, noted_in

OPERATION_KINDS = ("user_message", "rewound", "undone", "redone")
"""The kinds `operations` needs to see."""


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


TURN = "turn"
"""In a `rewound` event: the user's message of the one turn that it took out of the files."""


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
        if REPEATS in event.data:
            # Part of the rewind that it comes behind.
            continue
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
        # What a hook noted is recorded again here, where it belongs.
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
