"""A session as people read it: turns, and in them what was said, called and done to the files.

This is the one reader for people. `show`, `log`, `status`, the picker, HTML, Markdown and the
viewer take what they show from it; they differ in how they lay it out. A `Step` is one event, a
`Turn` one prompt with its steps, a `Document` the whole session. All are plain data.

A `Reader` reads a session, and only as much of it as it is asked for: contents of files are opened
when the first change is looked at. Of one event alone, `step_of` is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from ..._startup.frozen import dataclass, field, replace
from ...errors import NotFound
from ...events import MESSAGE_KINDS, Event, Json, SessionInfo
from ...events.calls import calls_in
from ...events.history import NOTED, REPEATS
from ...session.titles import title_of
from ...session.uncaptured import Row, row_dict, whole
from .pairs import paired
from .step import Step, Subagent, not_alone, step_kind, step_of

if TYPE_CHECKING:
    from ...files.differences import FileDiff
    from ...files.trees import Get
    from ...formats.secrets import Masking
    from ...session.filepoints import Counts, Effects
    from ...stores.base import Store

NO_CALLS = ("files_changed", "rewound", "undone", "redone")
"""Kinds of events that change files and are no calls."""

SUBAGENTS = "subagents/"
"""How the names of subagents' logs begin."""


@dataclass(frozen=True, slots=True)
class Net:
    """What a turn did to the files in all, as far as it is still so.

    `perhaps` are the paths of it that others may have changed: which sessions, None for a person.
    """

    files: list[FileDiff] = field(default_factory=list)
    perhaps: dict[str, list[str] | None] = field(default_factory=dict)

    @property
    def own(self) -> list[FileDiff]:
        """What is surely the turn's."""
        return [file for file in self.files if file.path not in self.perhaps]


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt and what followed; `number` 0 is what came before the first.

    `net` is what it did to the files in all, where a whole document is read.
    """

    number: int
    prompt: Step | None
    steps: list[Step] = field(default_factory=list)
    net: Net = field(default_factory=Net)

    @property
    def all(self) -> list[Step]:
        """The prompt and what followed."""
        return self.steps if self.prompt is None else [self.prompt, *self.steps]

    def to_dict(self, *, diffs: bool) -> dict[str, Json]:
        """The turn as JSON."""
        return {
            "turn": self.number,
            "seq": self.prompt.seq if self.prompt else 0,
            "ts": self.prompt.ts if self.prompt else None,
            "prompt": self.prompt.text if self.prompt else None,
            "steps": [step.to_dict(diffs=diffs) for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Document:
    """A session to be read. `subagents` are those that no call in it started.

    `left_out` counts the messages that were taken back.
    """

    info: SessionInfo
    turns: list[Turn] = field(default_factory=list)
    subagents: list[Subagent] = field(default_factory=list)
    left_out: int = 0
    not_captured: list[Row] = field(default_factory=list)

    def to_dict(self, *, diffs: bool = True) -> dict[str, Json]:
        """The document as JSON, with every subagent, wherever it was started."""
        steps = [step for turn in self.turns for step in turn.all]
        agents = [*_nested(steps), *self.subagents]
        agents += [inner for one in self.subagents for inner in _nested(one.steps)]
        return {
            "session": self.info.to_dict(),
            "turns": [turn.to_dict(diffs=diffs) for turn in self.turns],
            "subagents": [one.to_dict(diffs=diffs) for one in agents],
            "left_out": self.left_out,
            "not_captured": [row_dict(row) for row in self.not_captured],
        }


def _nested(steps: Iterable[Step]) -> Iterator[Subagent]:
    for step in steps:
        for call in step.calls:
            if call.subagent is not None:
                yield call.subagent
                yield from _nested(call.subagent.steps)


# --- reading -----------------------------------------------------------------------------


class Reader:
    """Reads a session for people; with a `masking`, without its secrets. Close it after use."""

    def __init__(self, store: Store, info: SessionInfo, masking: Masking | None = None) -> None:
        self._store = store
        self._id = info.id
        self._masking = masking if masking is not None and masking.on else None
        self._given = info
        self._open = ExitStack()
        self._get: Get | None = None
        self._effects: Effects | None = None
        self._has_looked = False
        self._calls: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # --- what it is and what it lacks ---

    @property
    def info(self) -> SessionInfo:
        """The session's record, with what it is called as its title."""
        if self._masking is None:
            return replace(self._given, title=self._title(str))
        import msgspec

        from ...formats.secrets import mask

        # The first prompt comes again where it is shown, and is counted there.
        title = self._title(lambda text: mask(text)[0])
        row = self._masking.json(self._given.to_dict()) | {"title": title}
        return msgspec.convert(row, SessionInfo)

    def _title(self, masked: Callable[[str], str]) -> str | None:
        given = self._given
        return masked(given.title) if given.title else title_of(self._store, given, masked=masked)

    def not_captured(self) -> list[Row]:
        """The account of what was not captured."""
        rows = whole(self._store, self._given)
        if self._masking is None:
            return rows
        masked = self._masking.json([list(row) for row in rows])
        return [(path, reason, size) for path, reason, size in masked]

    def subagents(self) -> list[str]:
        """The names of the subagents that have a log."""
        logs = self._store.logs(self._id)
        return [log.removeprefix(SUBAGENTS) for log in logs if log.startswith(SUBAGENTS)]

    # --- turns ---

    def turns(self, number: int | None = None, *, subagent: str | None = None) -> list[Turn]:
        """The turns of the history, or of a subagent's log; with a `number`, only that one.

        -1 is the last. What brings a turn back lists no file of it again.
        """
        if subagent is None:
            events = self._store.history(self._id)
        else:
            # A subagent's log is one line of time, also where a message was taken in twice.
            events = [*self._store.read(self._id, log=SUBAGENTS + subagent)]
        groups = self._wanted(_grouped(events), number)
        seen: set[str] = set()
        return [self._turn(at, group, seen, main=subagent is None) for at, group in groups]

    def _wanted(
        self, groups: list[tuple[int, list[Event]]], number: int | None
    ) -> list[tuple[int, list[Event]]]:
        if number is None:
            return groups
        count = groups[-1][0]
        at = number if number >= 0 else count + 1 + number
        if not 0 <= at <= count or (at == 0 and number < 0):
            turns = "1 turn" if count == 1 else f"{count} turns"
            raise NotFound(f"session `{self._id}` has {turns}, so no turn {number}")
        return [group for group in groups if group[0] == at]

    def _turn(
        self, number: int, events: list[Event], seen: set[str], *, main: bool = True,
        start: Callable[[str], Subagent | None] = lambda call: None,
    ) -> Turn:  # fmt: skip
        steps = []
        for event in events:
            files = self.files(event) if main else []
            if _brings_back(event):
                files = [file for file in files if file.path not in seen]
            seen |= {file.path for file in files}
            steps.append(step_of(self._masked(event), files))
        steps = paired(steps, start, self._calls, main=main)
        if steps and steps[0].kind == "user_message":
            return Turn(number, steps[0], steps[1:])
        return Turn(number, None, steps)

    def steps(self, events: Iterable[Event], *, main: bool = True) -> list[Step]:
        """Any events in order, with the answers at the calls among them; without files.

        A subagent has its place, and no steps yet.
        """
        agents = {one.call: one for one in self.agents() if one.call is not None}
        steps = [step_of(self._masked(event)) for event in events]
        return paired(steps, agents.get, self._calls, main=main)

    def _masked(self, event: Event) -> Event:
        if self._masking is None:
            return event
        return replace(event, data=self._masking.json(event.data))

    # --- files ---

    def net(self, events: Sequence[Event], paths: Collection[bytes] | None = None) -> Net:
        """What the calls among the events of a turn changed that nothing took back."""
        from ...session.filepoints import Effects

        get = self.contents() if any("files" in event.data for event in events) else None
        if get is None:
            return Net()
        newest = max(event.seq for event in events if "files" in event.data)
        if self._effects is None or newest > self._effects.head:
            # What was noted beyond the log counts for this turn alone.
            self._effects = Effects(self._store, self._id, get, events)
        files = self._effects.diff(events, paths).files
        changed = {file.path for file in files}
        found: dict[str, list[str] | None] = {}
        for event in events:
            found |= not_alone(event) if event.kind not in NO_CALLS else {}
        return Net(files, {path: whose for path, whose in found.items() if path in changed})

    def _masked_net(self, events: Sequence[Event]) -> Net:
        net = self.net(events)
        if self._masking is None:
            return net
        from ...formats.secrets import Masking

        # It is counted at the calls that did it.
        return replace(net, files=_masked_files(net.files, Masking()))

    def counts(self, events: Sequence[Event]) -> Counts:
        """How many files the events of a turn changed, and lines: as its end says, if it does."""
        from ...session.filepoints import Counts, counts_in, counts_of

        ends = (counts_in(event) for event in reversed(events) if event.kind == "turn_end")
        known = next((one for one in ends if one is not None), None)
        get = (
            self.contents() if any(isinstance(e.data.get("files"), dict) for e in events) else None
        )
        if known is not None or get is None:
            return known or Counts(0, 0, 0)
        return counts_of(self._store, self._id, get, events)

    def contents(self) -> Get | None:
        """What reads contents of files; None where the store has none."""
        if not self._has_looked:
            from ...files.depot import has_contents, opened

            self._has_looked = True
            if has_contents(self._store):
                self._get = self._open.enter_context(opened(self._store)).blobs.get
        return self._get

    def files(self, event: Event) -> list[FileDiff]:
        """What an event did to the files, as far as contents are there."""
        from ...session.filepoints import event_diff

        changed = event.data.get("files")
        if not (isinstance(changed, dict) and "after" in changed):
            return []
        get = self.contents()
        files = [] if get is None else event_diff(get, event).files
        return files if self._masking is None else _masked_files(files, self._masking)

    # --- all of it ---

    def document(self) -> Document:
        """The session as it stands, with its subagents at the calls that started them."""
        agents = {one.call or f"log {one.name}": one for one in self.agents()}

        def start(call: str) -> Subagent | None:
            found = agents.pop(call, None)
            if found is None:
                return None
            events = [*self._store.read(self._id, log=SUBAGENTS + found.name)]
            steps = self._turn(0, events, set(), main=False, start=start).all
            pairs = zip(events, steps, strict=True)
            kept = (_aside(self._masked(event), step) for event, step in pairs)
            return replace(found, steps=[step for step in kept if step is not None])

        live = self._store.history(self._id)
        self._calls = {id for event in live for id in _asked_in(event)}
        seen: set[str] = set()
        turns = [
            replace(self._turn(n, events, seen, start=start), net=self._masked_net(events))
            for n, events in _grouped(live)
        ]
        # Those that no call asked for; their calls may have been taken back. One that another of
        # them started comes after that one, which takes it.
        asked = {call for one in agents.values() for call in self._asked(one.name)}
        rest = [start(call) for call in sorted(agents, key=lambda call: call in asked)]
        known = {event.seq for event in live}
        left_out = 0
        for event in self._store.read(self._id, kinds=MESSAGE_KINDS):
            # What a hook noted is said again, and not left out; nor is what the agent repeats.
            again = NOTED in event.data or REPEATS in event.data
            left_out += (event.seq not in known) - again
        return Document(
            self.info,
            [turn for turn in turns if any(_is_shown(step) for step in turn.all)],
            [one for one in rest if one is not None],
            left_out,
            self.not_captured(),
        )

    def agents(self) -> Iterator[Subagent]:
        """Each subagent by the call that started it, still without its steps."""
        for name in self.subagents():
            events = self._store.read(self._id, log=SUBAGENTS + name, kinds=("start",), limit=1)
            first = next(events, None)
            data: Mapping[str, Json] = {} if first is None else self._masked(first).data
            title = str(data.get("description") or data.get("prompt") or name).partition("\n")[0]
            call = data.get("call")
            yield Subagent(name, title, call if isinstance(call, str) else None)

    def _asked(self, name: str) -> set[str]:
        """The ids of the calls in a subagent's log."""
        events = self._store.read(self._id, log=SUBAGENTS + name)
        return {call.id for event in events for call in step_of(event).calls}


def _masked_files(files: list[FileDiff], masking: Masking) -> list[FileDiff]:
    import msgspec

    from ...files.differences import FileDiff

    rows = (masking.json(msgspec.to_builtins(file)) for file in files)
    return [msgspec.convert(row, FileDiff) for row in rows]


def read_document(store: Store, session_id: str, masking: Masking | None = None) -> Document:
    """The session as it stands: its history, and the files of its turns."""
    with Reader(store, store.info(session_id), masking) as reader:
        return reader.document()


def _grouped(events: Iterable[Event]) -> list[tuple[int, list[Event]]]:
    """Events in order by turn, each turn with its number."""
    found: list[tuple[int, list[Event]]] = [(0, [])]
    for event in events:
        if step_kind(event) == "user_message":
            found.append((len(found), []))
        found[-1][1].append(event)
    return found


def _brings_back(event: Event) -> bool:
    """Whether an event did again what its history has: a redone turn, or a rewind taken back."""
    kinds = {"redone": "user_message", "undone": "rewound"}
    return event.kind in kinds and event.data.get("kind") == kinds[event.kind]


def _asked_in(event: Event) -> Iterator[str]:
    """The ids of the calls that an event's message asks for."""
    message = event.data.get("message")
    if event.kind == "assistant_message" and isinstance(message, dict):
        yield from (call.id for call in calls_in(message))


def _is_shown(step: Step) -> bool:
    return bool(step.at or step.files or step.doubts)


def _aside(event: Event, step: Step) -> Step | None:
    """A step of a subagent as a document shows it: what is said, and that it failed."""
    if not step.sentence:
        return step if step.stands else None
    if event.kind == "result" and event.data.get("ok") is False:
        return replace(step, sentence=f"failed: {event.data.get('error')}")
    return None
