"""The files at points of a session, as its log tells: trees, and who changed what. Pure reading.

A user's message and a checkpoint carry the `tree` of that moment; whatever changed files
carries `files`, with the trees `before` and `after`. Files have one line of time, so all of
this goes by `seq` over the whole log and not along the history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from .errors import InvalidData, NotFound
from .events import AsDict, Event, Json
from .files.conflicts import OnConflict
from .files.differences import Diff, FileDiff, described, paths_of, step_counts
from .files.names import shown
from .files.plan import ALREADY, Change, Plan, changes_of
from .files.trees import Difference, Get, diff_trees
from .history import digest_of, newest_tree, tree_of
from .messages import text_of
from .points import Target, find_event
from .stores.base import Store, checkpoint_of
from .views import FileChange

_LAST = 100

Scope = Literal["both", "conversation", "files"]
"""What a rewind moves."""

Mode = Literal["mine", "exact"]
"""Which files a rewind takes back: this session's changes, or all to equal a tree."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where files go back to: changes after `cut` are undone; `tree` is the state itself.

    `tree` is None where no state is known, `head` is what git had checked out.
    """

    cut: int
    tree: bytes | None
    head: str | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """Where an operation goes: the event to continue from, the files' point, its data."""

    anchor: int
    point: Point
    data: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Wish:
    """How files are to be taken back."""

    scope: Scope = "both"
    mode: Mode = "mine"
    paths: Collection[str] | None = None
    on_conflict: OnConflict = "keep"

    def __post_init__(self) -> None:
        if self.scope not in ("both", "conversation", "files"):
            raise InvalidData(f"scope is 'both', 'conversation' or 'files', not {self.scope!r}")
        if self.mode not in ("mine", "exact"):
            raise InvalidData(f"mode is 'mine' or 'exact', not {self.mode!r}")
        if self.on_conflict not in ("keep", "merge", "aside", "overwrite"):
            raise InvalidData(f"on_conflict={self.on_conflict!r} is unknown")


@dataclass(frozen=True, slots=True)
class CallChanges(AsDict):
    """What one call, or somebody else in between, did to the files."""

    seq: int
    by: str
    files: list[FileDiff]


@dataclass(frozen=True, slots=True)
class TurnChanges(AsDict):
    """What happened to the files in one turn; `seq` 0 is before the first."""

    seq: int
    prompt: str
    calls: list[CallChanges] = field(default_factory=list)


def tree_before(event: Event) -> bytes | None:
    """The state an event found, if it says."""
    files = event.data.get("files")
    found = files.get("before") if isinstance(files, dict) and not files.get("partial") else None
    if found is None and event.kind == "user_message":
        found = event.data.get("tree")
    return digest_of(found)


def point_at(store: Store, session_id: str, target: Target, *, before: bool = False) -> Point:
    """The files at a target; with `before`, as they were when it came in."""
    if target == 0 and type(target) is int:
        return Point(0, first_tree(store, session_id))
    event = find_event(store, session_id, target)
    if event.kind == "checkpoint":
        mark = checkpoint_of(event, session_id)
        if not before:
            tree = bytes.fromhex(mark.tree) if mark.tree else last_tree(store, session_id, mark.seq)
            return Point(mark.seq, tree, event.data.get("git"))
        event = find_event(store, session_id, mark.seq)
    if before:
        cut = event.seq - 1
        tree = tree_before(event) or last_tree(store, session_id, cut)
    else:
        cut = event.seq
        tree = tree_of(event) or last_tree(store, session_id, cut)
    if tree is None:
        tree = first_tree(store, session_id)
    return Point(cut, tree, event.data.get("git"))


def last_tree(store: Store, session_id: str, until: int | None = None) -> bytes | None:
    """The newest state known up to an event."""
    return newest_tree(store.read(session_id, until=until, reverse=True) if until != 0 else ())


def first_tree(store: Store, session_id: str) -> bytes | None:
    """The oldest state known."""
    for event in store.read(session_id):
        tree = tree_before(event) or tree_of(event)
        if tree is not None:
            return tree
    return None


def own_changes(store: Store, session_id: str, after: int) -> list[Change]:
    """What the session itself changed after an event, in order."""
    found: list[Change] = []
    for event in store.read(session_id, after=after):
        files = event.data.get("files")
        if isinstance(files, dict) and "after" in files and event.kind != "files_changed":
            found.extend(changes_of(event.seq, files))
    return found


def changes_by_turn(
    store: Store, session_id: str, get: Get, first: int = 0, until: int | None = None
) -> list[TurnChanges]:
    """What happened to the files, turn by turn, in the order of the log, from `first` on."""
    turns = [TurnChanges(0, "")]
    for event in store.read(session_id, after=max(0, first - 1), until=until):
        if event.kind == "user_message":
            turns.append(TurnChanges(event.seq, text_of(event.data.get("message"))))
        files = event.data.get("files")
        if isinstance(files, dict) and "after" in files:
            diff = _diff_of(get, event.seq, files)
            turns[-1].calls.append(CallChanges(event.seq, _author(event), diff.files))
    return [turn for turn in turns if turn.seq or turn.calls]


def events_behind(store: Store, session_id: str, turn: int) -> Iterator[Event]:
    """What was appended behind a turn's message, the abandoned too."""
    # Mostly it is the last turn: from the end, a log is not searched for where it begins.
    last = list(store.read(session_id, after=turn, reverse=True, limit=_LAST))
    return reversed(last) if len(last) < _LAST else store.read(session_id, after=turn)


def paths_changed(get: Get, events: Iterable[Event]) -> set[str]:
    """The paths that calls changed, as `events` tell up to the next user's message."""
    found: set[str] = set()
    for event in events:
        if event.kind == "user_message":
            break
        files = event.data.get("files")
        if isinstance(files, dict) and "after" in files and event.kind != "files_changed":
            found |= paths_of(_own_differences(get, event.seq, files))
    return found


def _author(event: Event) -> str:
    if event.kind == "files_changed":
        return "others"
    name = event.data.get("name")
    return name if isinstance(name, str) else event.kind


def _diff_of(get: Get, seq: int, files: Json) -> Diff:
    return described(get, _own_differences(get, seq, files))


def _own_differences(get: Get, seq: int, files: Json) -> Iterator[Difference]:
    """What an event changed, without what is not its own."""
    for change in changes_of(seq, files):
        for difference in _readable(get, change):
            if difference.path not in change.foreign:
                yield difference


def _readable(get: Get, change: Change) -> Iterator[Difference]:
    """A change's differences; none where collected contents took the trees away."""
    try:
        yield from diff_trees(get, change.before, change.after)
    except NotFound:
        return


def changes_in(plan: Plan, get: Get) -> list[FileChange]:
    """A plan for people: what has nothing to do is left out."""
    found = []
    for step in plan.steps:
        if step.action == "skip" and step.reason == ALREADY:
            continue
        plus, minus = step_counts(get, step)
        reason = step.reason
        if step.uncertain:
            reason = "; ".join(filter(None, (reason, "saved by a person in that time, perhaps")))
        kinds = {entry.kind for entry in (step.before, step.after) if entry is not None}
        change = FileChange(
            shown(step.path), step.action, reason, plus, minus, folder=kinds == {"directory"}
        )
        found.append(change)
    return found
