"""The words of a workspace's line of time: its place, the calls under way, what changed.

And of what a recorder owes its session's log: how it is said, and the queue it waits in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from ..._startup.frozen import NamedTuple
from ...events import Event, Json, NewEvent, timestamp
from ...events.history import BACK
from ..names import shown
from ..workspace.roots import Identity

if TYPE_CHECKING:
    from ...errors import BacktrailError
    from ..workspace.snapshot import Log
    from ..workspace.workspace import Workspace
    from .reversal import Reversal

_RECENT = 200


class Place(NamedTuple):
    """A workspace's identity: the directory itself, and where it is.

    It is `gone` if another directory came in its place.
    """

    n: int
    identity: Identity
    path: bytes
    gone: bool = False


class Met(msgspec.Struct, frozen=True):
    """A call of another store or root that was open at the same time, as seen from this root.

    It may have changed the `paths` it declared, or without these anything below `under`.
    """

    owner: str
    under: bytes
    paths: list[bytes] | None


class Bracket(msgspec.Struct, frozen=True):
    """A call under way: whose it is, and what it said it would touch (None: anything).

    `opened` is the number of the last transition before it, `tree` the state it began with,
    `name` and `call` say what it is, `pid` and `born` which process runs it, `agent` for
    which of the session's agents; empty is the main one.
    One that `ended` claims nothing more; it stays until what it did is in the log, and its
    process is the one that records it. With `files`, that is found out already; where no process
    is left to record it, the next one that opens the session does. `named` says that the
    event names the bracket; events did not always do so.
    `store` is the name of the store that has the session, `program` the agent it belongs to
    if a hook opened it. `mark` is the call's name among the open calls of this machine, the
    same in all the brackets of a call; `met` are calls elsewhere that were open meanwhile.
    `stamp` says which state of the root `files` led to.
    `given` and `gist` are digests of the call's input and of its command or path, by which a
    call without an id is known. `question` is when a person was asked whether it may run: it
    has not run before that, and without a result perhaps never. One that is `left` was given
    up by its agent, and its process, which is the bracket's, goes on.
    """

    id: str
    owner: str
    opened: int
    tree: bytes
    paths: list[bytes] | None
    since: float
    name: str = ""
    call: str | None = None
    pid: int = 0
    born: int = 0
    agent: str = ""
    ended: bool = False
    files: dict[str, Json] | None = None
    named: bool = False
    store: str = ""
    program: str = ""
    mark: str = ""
    met: list[Met] = []
    stamp: dict[str, Json] = {}
    given: str = ""
    gist: str = ""
    question: float = 0.0
    left: bool = False


class Runner(NamedTuple):
    """The process that runs a call, where it is not this one, and of which program it is.

    `given` and `gist` are what the call is known by: see `Bracket`.
    """

    pid: int
    born: int
    agent: str = ""
    program: str = ""
    given: str = ""
    gist: str = ""


class Opening(NamedTuple):
    """A call that opens, as the machine knows it: see `Bracket`."""

    id: str
    since: float
    store: str = ""
    mark: str = ""
    met: Sequence[Met] = ()


NOBODY = Runner(0, 0)
"""The runner of a call that was left."""


class Transition(NamedTuple):
    """A change of the workspace between two scans, and the brackets open meanwhile."""

    n: int
    before: bytes
    after: bytes
    brackets: list[Bracket]


class Split(NamedTuple):
    """A call up to now: the newest state, what changed in the call, which others are still at work.

    `later` is the bracket in which it goes on, if it does.
    """

    tree: bytes
    spans: list[Transition]
    open_now: set[str]
    later: Bracket | None


def is_dead(bracket: Bracket) -> bool:
    """Whether the process that ran a call is gone."""
    return is_gone(bracket.pid, bracket.born)


def is_gone(pid: int, began: int) -> bool:
    """Whether a process is gone that had this number and began then."""
    if pid == NOBODY.pid:
        return True
    if pid == os.getpid():
        return began != own_birth(pid)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    state, born_at = _described(pid)
    # Its parent has not asked yet how it ended: it does nothing any more.
    return state in b"ZX" or began != born_at


def is_recorded(bracket: Bracket, newest_first: Iterable[Event]) -> bool:
    """Whether what a call did is in its log: its process died soon after that.

    Looks at all that came since the call began, and at some more: clocks are set, too.
    Events of earlier versions name no bracket: there, the newest with its trees counts.
    """
    before, began = bracket.tree.hex(), timestamp(bracket.since)
    for n, event in enumerate(newest_first):
        if n >= _RECENT and event.ts < began:
            break
        if event.id == bracket.id or bracket.id in named_in(event):
            return True
        files = event.data.get("files")
        if bracket.named or not isinstance(files, dict) or files.get("before") != before:
            continue
        # One that was left has surely not been recorded by its process.
        if bracket.files is None or event.ts >= began:
            return bool(event.data.get("name") == bracket.name)
    return False


def named_in(event: Event) -> list[Json]:
    """The ids of the brackets that an event names."""
    files = event.data.get("files")
    named = files.get("brackets") if isinstance(files, dict) else None
    return named if isinstance(named, list) else []


def born(pid: int) -> int:
    """When a process began, so that a number used again is not taken for the old process."""
    return _described(pid)[1]


def _described(pid: int) -> tuple[bytes, int]:
    """The state of a process and when it began; `?` and 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return b"?", 0


@cache
def own_birth(pid: int) -> int:
    """`born` of this process, asked for once; `pid` keeps a fork of it apart."""
    return born(pid)


# --- finding a call ----------------------------------------------------------------------


class Process(NamedTuple):
    """A process that runs a call, and since when, in seconds of the wall clock."""

    pid: int
    born: int
    since: float


Running = Callable[[Bracket], Process | None]
"""Finds the process that a call is still running in, if there is one."""


class Sought(NamedTuple):
    """A call as an agent's event describes it: by the id, else by what it was given.

    `given` and `gist` are digests of its whole input, and of its command or path alone.
    """

    name: str
    call: str | None
    agent: str
    given: str = ""
    gist: str = ""

    def among(self, brackets: Iterable[Bracket]) -> Bracket | None:
        """The call that is meant.

        Calls without an id may run at the same time, and of one tool: what they were given
        distinguishes them. An input that the agent changed meanwhile fits none: then the
        newest of that tool counts.
        """
        mine = [bracket for bracket in brackets if bracket.agent == self.agent]
        if self.call:
            return next((b for b in reversed(mine) if b.call == self.call), None)
        named = [b for b in mine if b.name == self.name and (not b.call or b.gist == self.gist)]
        same = [b for b in named if self.given and b.given == self.given]
        same = same or [b for b in named if self.gist and b.gist == self.gist]
        if same:
            return same[0]
        return next((b for b in reversed(named) if not b.call), None)

    def alike(self, brackets: Iterable[Bracket]) -> Bracket | None:
        """A call that has this command or path, whatever its tool is called."""
        return next((b for b in brackets if self.gist and b.gist == self.gist), None)


# --- what is owed ----------------------------------------------------------------------


_CARRIED = frozenset({"files", "tree", "git", "workspace"})
"""What an event says about files; the rest says what happened."""


class Grab(NamedTuple):
    """A call that began before the first import was done: the paths it named, as they were."""

    before: bytes
    paths: list[bytes]

    def ended(self, here: Workspace | None, log: Log) -> Ended:
        """What the call did to these paths."""
        after = here.grab(log, self.paths) if here is not None else self.before
        if after == self.before:
            return Ended(None, {})
        files = {"before": self.before.hex(), "after": after.hex(), "partial": True}
        return Ended(None, details(None, files, here))


class Ended(NamedTuple):
    """A call that is over: its last bracket, and what its event says about the files.

    With `failure`, the files could not be looked at.
    """

    bracket: Bracket | None
    details: dict[str, Json]
    failure: BacktrailError | None = None

    @property
    def files(self) -> dict[str, Json] | None:
        """What the call did to the files, if anything."""
        return self.details.get("files")


def report_missed(ended: Iterable[Ended], missed: Callable[[BacktrailError], None]) -> None:
    """Have it heard where the files could not be looked at: raise, or go on, as `missed` does."""
    for one in ended:
        if one.failure is not None:
            missed(one.failure)


class Owed(NamedTuple):
    """An event that is to be appended; then its bracket is not needed any more."""

    event: NewEvent
    bracket: Bracket | None


def details(
    bracket: Bracket | None, files: dict[str, Json] | None, here: Workspace | None,
    state: dict[str, Json] | None = None,
) -> dict[str, Json]:  # fmt: skip
    """What an event says about the files: what changed, or the `state` they are in.

    Every event that carries files gets it here.
    """
    stamp = bracket.stamp if bracket is not None else {}
    if not stamp and here is not None:
        stamp = here.stamp()
    where: dict[str, Json] = {"workspace": stamp} if stamp else {}
    if files is None:
        return {**state, **where} if state else {}
    said = files if bracket is None else {**files, "brackets": [bracket.id]}
    return {"files": said, **where}


def call_event(
    bracket: Bracket, how: str, files: dict[str, Json], here: Workspace | None,
    id: str | None = None,
) -> NewEvent:  # fmt: skip
    """What a call did that no event of its own says, or not now; `how` it ended, if it did not."""
    data: dict[str, Json] = {"name": bracket.name, **({how: True} if how else {})}
    data |= details(bracket, files, here)
    data |= {"call": bracket.call} if bracket.call else {}
    data |= {"agent": bracket.agent} if bracket.agent else {}
    return NewEvent("action", data, id=id)


def others_events(
    known: bytes, tree: bytes, back: Reversal | None, here: Workspace | None
) -> list[NewEvent]:
    """What others changed, and what the session's own agent put back."""
    found: list[NewEvent] = []
    files: dict[str, Json] = {"before": known.hex(), "after": tree.hex()}
    if back is None or back.others:
        more = {"foreign": [shown(path) for path in sorted(back.back)]} if back else {}
        found.append(NewEvent("files_changed", details(None, files | more, here)))
    if back is not None:
        more = {"foreign": [shown(path) for path in sorted(back.others)]} if back.others else {}
        data = {BACK: back.to, **details(None, files | more, here)}
        found.append(NewEvent("files_changed", data))
    return found


def as_event(event: NewEvent) -> Event:
    """An event that is not in the log yet."""
    return Event(0, "", "", event.kind, dict(event.data))


class Queue:
    """The events that are owed, in order.

    One waits until it is in the log, so no later append gets in front of it. Only a caller
    that keeps others from appending takes from the queue.
    """

    def __init__(self) -> None:
        self.waiting: list[Owed] = []
        self.lock = threading.Lock()

    def put(self, event: NewEvent, bracket: Bracket | None) -> None:
        """Have the next append take an event along."""
        with self.lock:
            self.waiting.append(Owed(event, bracket))

    def take(self, count: int | None = None) -> list[Owed]:
        """Take the first ones, or all."""
        with self.lock:
            count = len(self.waiting) if count is None else count
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def take_back(self, calls: Collection[str]) -> list[Ended]:
        """What calls did that is owed yet: their results say it after all.

        Only what is last of all, since changes are recorded in the order of time.
        """
        found: list[Ended] = []
        with self.lock:
            while self.waiting:
                event, bracket = self.waiting[-1]
                own = bracket is not None and bracket.call in calls and event.id is None
                if bracket is None or not own or "interrupted" not in event.data:
                    break
                self.waiting.pop()
                details = {name: event.data[name] for name in _CARRIED & event.data.keys()}
                found.insert(0, Ended(bracket, details))
        return found
