"""A session's prompts, as people look for them: when, what they did to the files, what was said.

What a turn did to the files is looked up when its line is to be seen: in a long session all
of it would take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, overload

from .plan import signed
from .wording import ago, brief, things

if TYPE_CHECKING:
    from ..events import Event
    from ..files.differences import FileDiff
    from ..session.filepoints import CallChanges
    from ..session.session import Session

Look = Callable[[int, int | None], "list[CallChanges]"]
"""What the calls from one event to another did to the files."""

Total = Callable[["list[Event]"], "list[FileDiff]"]
"""What the calls among some events did to the files in all."""

BY_OTHERS = frozenset({"others", "going back", "rewound", "undone", "redone"})
"""Who changes files but is no call of a turn."""


NO_CALLS = ("files_changed", "rewound", "undone", "redone")
"""Kinds of events that change files and are no calls."""


def prompts(session: Session) -> list[Event]:
    """The prompts of the history, oldest first."""
    return [event for event in session.history() if event.kind == "user_message"]


@contextmanager
def looking(session: Session) -> Iterator[Look]:
    """A way to look up what calls did to the files."""
    from ..files.contents.collect import has_contents, opened
    from ..session.filepoints import changes_by_turn

    store, id = session.store, session.id
    if not has_contents(store):
        yield lambda first, until: []
        return
    with opened(store) as depot:

        def look(first: int, until: int | None) -> list[CallChanges]:
            turns = changes_by_turn(store, id, depot.blobs.get, first, until)
            return [call for turn in turns for call in turn.calls if call.by not in BY_OTHERS]

        yield look


def spans(session: Session) -> dict[int, int | None]:
    """The turns of the whole log: the first event of each, to its last (None: the head)."""
    firsts = [0, *(event.seq for event in session.events(kinds=("user_message",)))]
    lasts = [*(seq - 1 for seq in firsts[1:]), None]
    return dict(zip(firsts, lasts, strict=True))


@contextmanager
def adding_up(session: Session) -> Iterator[Total]:
    """A way to see what the calls of a turn came to."""
    from ..files.contents.collect import has_contents, opened
    from ..session.filepoints import turn_in_effect

    if not has_contents(session.store):
        yield lambda events: []
        return
    with opened(session.store) as depot:
        store, id = session.store, session.id
        yield lambda events: turn_in_effect(store, id, depot.blobs.get, events).files


def _turns(session: Session) -> dict[int, list[Event]]:
    """The events of each turn of the history that changed files, by the turn's message."""
    found: dict[int, list[Event]] = {}
    events: list[Event] = []
    for event in session.history():
        if event.kind == "user_message":
            events = found[event.seq] = []
        elif "files" in event.data:
            events.append(event)
    return found


def not_alone(event: Event) -> dict[str, list[str] | None]:
    """The paths of an event that others may have changed: which sessions, None for a person."""
    files = event.data.get("files")
    if not isinstance(files, dict):
        return {}
    found: dict[str, list[str] | None] = dict.fromkeys(files.get("doubtful", ()))
    for part in files.get("parts", ()):
        found |= dict.fromkeys(part.get("shared", ()), part.get("sessions", []))
    return found


class Rows(Sequence[str]):
    """Prompts as lines of a list, each made when it is first asked for."""

    def __init__(self, session: Session, found: Sequence[Event], look: Total) -> None:
        self._session = session
        self._found = found
        self._look = look
        self._ends = spans(session)
        self._turns = _turns(session)
        self._made: dict[int, str] = {}
        self._whens = [ago(event.ts) for event in found]
        self._broad = max(map(len, self._whens), default=0)

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...

    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if at not in self._made:
            self._made[at] = self._row(at)
        return self._made[at]

    def _row(self, at: int) -> str:
        from ..events.messages import speech_of

        event = self._found[at]
        text = brief(speech_of(event.data.get("message")), 300)
        return f"{self._whens[at]:>{self._broad}}  {self._changes(event):<16}  {text}"

    def _changes(self, event: Event) -> str:
        """What a turn did to the files, in a few words."""
        events = self._turns.get(event.seq, [])
        found = self._look(events)
        kept = {path for one in events if one.kind not in NO_CALLS for path in not_alone(one)}
        files = [file for file in found if file.path not in kept]
        plus, minus = sum(f.insertions for f in files), sum(f.deletions for f in files)
        count = things(file.folder for file in files)
        others = len(found) - len(files)
        perhaps = f"({others} perhaps not its own)" if others else ""
        lost = self._missing(event.seq)
        return " ".join(filter(None, (count, signed(plus, minus), perhaps, lost)))

    def _missing(self, first: int) -> str:
        """How much of a turn was not captured; empty if all was."""
        from ..session.uncaptured import KINDS, missing

        events = self._session.events(after=first - 1, until=self._ends[first], kinds=KINDS)
        count = len(missing(events))
        return f"({count} not captured)" if count else ""


def quoted(event: Event) -> str:
    """What was said, in quotes, short enough for a sentence."""
    from ..events.messages import speech_of

    return f'"{brief(speech_of(event.data.get("message")), 60)}"'
