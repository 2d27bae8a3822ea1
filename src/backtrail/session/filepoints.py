"""The files at points of a session, as its log has them: trees, and each change's author.

Pure reading.

A user's message and a checkpoint carry the `tree` of that moment; whatever changed files
carries `files`, with the trees `before` and `after`. Files have one line of time, so all of
this goes by `seq` over the whole log and not along the history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from .._startup.frozen import dataclass, field
from ..errors import Damaged, NotFound
from ..events import AsDict, Event, Json
from ..events.history import (
    BACK,
    digest_of,
    newest_look,
    root_of,
    tree_of,
)
from ..events.messages import speech_of
from ..files.changes.effects import Change, changes_of
from ..files.differences import (
    Diff,
    FileDiff,
    described,
    paths_of,
    total,
)
from ..files.restore.plan import standing
from ..files.trees import Difference, Get, diff_trees
from ..stores.base import Store
from ..stores.records import checkpoint_of, is_deleted
from .points import Target, Turns, find_event

_LAST = 100

_MANY = 500
"""Files above which a turn ends without a count of their lines."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where files go back to: changes after `cut` are undone; `tree` is the state itself.

    `tree` is None where no state is known, `head` is what git had checked out, `root` the id of
    the folder that was in that state, empty where it is not known.
    """

    cut: int
    tree: bytes | None
    head: str | None = None
    root: str = ""


@dataclass(frozen=True, slots=True)
class CallChanges(AsDict):
    """What one call, or others in between, did to the files."""

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


def point_at(
    store: Store, session_id: str, target: Target, *, before: bool = False, state: bool = True
) -> Point:
    """The files at a target; with `before`, as they were when it came in.

    Without `state` only where that is: a log that has no files is searched as a whole for one.
    """
    if target == 0 and type(target) is int:
        first = _first_look(store, session_id) if state else None
        return Point(0, None) if first is None else Point(0, first[0], root=root_of(first[1]))
    event = find_event(store, session_id, target)
    mark = checkpoint_of(event, session_id) if event.kind == "checkpoint" else None
    if mark is not None and not before:
        cut, tree = mark.seq, digest_of(mark.tree)
    else:
        event = event if mark is None else find_event(store, session_id, mark.seq)
        cut, tree = event.seq - before, tree_before(event) if before else tree_of(event)
    root = root_of(event)
    if tree is None and state:
        found = _last_look(store, session_id, cut)
        if found is None and event.kind != "checkpoint":
            found = _first_look(store, session_id)
        if found is not None:
            tree, root = found[0], root_of(found[1])
    return Point(cut, tree, event.data.get("git"), root)


def last_tree(store: Store, session_id: str) -> bytes | None:
    """The newest state known."""
    found = _last_look(store, session_id, None)
    return None if found is None else found[0]


def _last_look(store: Store, session_id: str, until: int | None) -> tuple[bytes, Event] | None:
    """The newest state known up to an event, and the event that says so."""
    while until != 0:
        event = newest_look(store.read(session_id, until=until, reverse=True))
        tree = None if event is None else tree_of(event)
        if event is None or tree is None:
            return None
        if not _is_deleted(store, session_id, event):
            return tree, event
        until = event.seq - 1
    return None


def _first_look(store: Store, session_id: str) -> tuple[bytes, Event] | None:
    """The oldest state known, and the event that says so."""
    for event in store.read(session_id):
        tree = tree_before(event) or tree_of(event)
        if tree is not None and not _is_deleted(store, session_id, event):
            return tree, event
    return None


def _is_deleted(store: Store, session_id: str, event: Event) -> bool:
    """Whether an event is a checkpoint that counts no more: its state may be gone."""
    return event.kind == "checkpoint" and is_deleted(store, session_id, event.id)


# --- changes -----------------------------------------------------------------------------

BACK_KINDS = ("rewound", "undone", "redone")


def own_changes(store: Store, session_id: str, first: int, until: int) -> list[Change]:
    """What the session itself changed from one event to another, in order."""
    found: list[Change] = []
    for event in store.read(session_id, after=first - 1, until=until) if until else ():
        found.extend(changes_by(event))
    return found


def changes_by(event: Event) -> list[Change]:
    """What an event of the session changed; nothing if that was others, or it does not say."""
    files = event.data.get("files")
    by = author_of(event)
    if not isinstance(files, dict) or "after" not in files or by == "others":
        return []
    goes_back = event.kind in BACK_KINDS or by == "going back"
    return changes_of(event.seq, files, goes_back=goes_back, took=event.data.get("took_back"))


def changes_by_turn(store: Store, session_id: str, get: Get) -> list[TurnChanges]:
    """What happened to the files, turn by turn, in the order of the log."""
    turns, said, calls = Turns(), {0: ""}, list[CallChanges]()
    for event in store.read(session_id):
        turns.note(event)
        if event.kind == "user_message":
            said[event.seq] = speech_of(event.data.get("message"))
        files = event.data.get("files")
        if isinstance(files, dict) and "after" in files:
            diff = event_diff(get, event)
            calls.append(CallChanges(event.seq, author_of(event), diff.files))
    found = {seq: TurnChanges(seq, text) for seq, text in said.items() if turns.of(seq) == seq}
    for call in calls:
        found[turns.of(call.seq)].calls.append(call)
    return [turn for turn in found.values() if turn.seq or turn.calls]


def last_turn(store: Store, session_id: str) -> tuple[Event | None, list[Event]]:
    """The last message of the user in the history, and what follows it there, in order.

    Where there was no prompt, as when a command was recorded, all of the history does.
    """
    found: list[Event] = []
    for event in store.walk(session_id):
        if event.kind == "user_message":
            return event, found[::-1]
        found.append(event)
    return None, found[::-1]


class Effects:
    """What of a session's changes is in effect, read once for any number of its turns.

    `events` are those of a turn, also ones that are not stored yet; the log is read from `after`.
    """

    def __init__(
        self, store: Store, session_id: str, get: Get, events: Sequence[Event], after: int = 0
    ) -> None:
        found = [*store.read(session_id, after=after, kinds=_FILE_KINDS)]
        last = found[-1].seq if found else 0
        found += [event for event in events if event.seq > last]
        self.head = found[-1].seq if found else 0
        self._get = get
        self._changes = [change for event in found for change in changes_by(event)]
        is_back = any(event.kind in BACK_KINDS or BACK in event.data for event in found)
        self._standing = standing(get, self._changes) if is_back else None

    def diff(
        self, events: Iterable[Event], paths: Collection[bytes] | None = None,
        *, texts: bool = True,
    ) -> Diff:  # fmt: skip
        """What the calls of a turn changed that nothing took back; of what is no more, nothing.

        Without `texts`, lines are only counted.
        """
        # An undo or redo that brought something back over what others wrote stands for it.
        seqs = {event.seq for event in events if event.kind != "rewound"}
        own = [change for change in self._changes if change.seq in seqs]
        if self._standing is None:
            own = [change for change in own if not change.goes_back]
        return total(self._get, own, paths, self._standing, texts=texts)


_FILE_KINDS = ("tool_result", "action", "files_changed", *BACK_KINDS)


NET = "net"
"""In a `turn_end`: what the turn did to the files in all, as `Counts`."""


@dataclass(frozen=True, slots=True)
class Counts(AsDict):
    """How many files a turn changed in all, and lines added and removed."""

    files: int
    insertions: int
    deletions: int


def counts_in(event: Event) -> Counts | None:
    """What a `turn_end` says of its turn; None if it does not, as those of earlier versions."""
    found = event.data.get(NET)
    names = ("files", "insertions", "deletions")
    numbers = [found.get(name) for name in names] if isinstance(found, dict) else []
    known = [one for one in numbers if type(one) is int and one >= 0]
    return Counts(*known) if len(known) == len(names) else None


def counts_of(store: Store, session_id: str, get: Get, events: Sequence[Event]) -> Counts:
    """What the calls of a turn changed that nothing took back, counted."""
    after = events[0].seq - 1 if events else 0
    found = Effects(store, session_id, get, events, after).diff(events, texts=False)
    return Counts(len(found.files), found.insertions, found.deletions)


def net_of(store: Store, session_id: str, get: Get, events: Sequence[Event]) -> dict[str, Json]:
    """The same, as a `turn_end` says it; nothing where it cannot be read, or is too much work."""
    try:
        changes = [change for event in events for change in changes_by(event)]
        paths = {one.path for change in changes for one in _readable(get, change)}
        if len(paths) > _MANY:
            return {}
        return {NET: counts_of(store, session_id, get, events).to_dict()}
    except (NotFound, Damaged):
        return {}


def others_since(
    store: Store, session_id: str, get: Get, prompt: Event | None, now: bytes, root: str
) -> Diff:  # fmt: skip
    """What others changed since the session's last call, or since the last prompt of its history.

    `now` is the present tree, `root` the id of its folder. What its rewinds, undos and redos did
    since is not theirs, nor what its agent put back by itself.
    """
    backs: list[Event] = []
    tree, place = None, ""
    for event in store.read(session_id, reverse=True):
        files = event.data.get("files")
        own = isinstance(files, dict) and "after" in files and event.kind != "files_changed"
        if (own and event.kind in BACK_KINDS) or author_of(event) == "going back":
            backs.append(event)
        elif own or (prompt is not None and event.seq == prompt.seq):
            tree, place = tree_of(event), root_of(event)
            break
    if tree is None:
        first = _first_look(store, session_id)
        tree, place = (None, "") if first is None else (first[0], root_of(first[1]))

    def since(seq: int, then: bytes, later: bytes, where: str) -> Change:
        left = left_elsewhere(get, then, later) if where != place else frozenset[bytes]()
        return Change(seq, then, later, left)

    spans: list[Change] = []
    for event in reversed(backs):
        for change in changes_by(event):
            then = tree or change.before
            spans.append(since(event.seq, then, change.before, root_of(event)))
            if change.foreign:
                own_paths = {found.path for found in _own_differences_of(get, change)}
                spans.append(Change(event.seq, change.before, change.after, frozenset(own_paths)))
            tree, place = change.after, root_of(event)
    return total(get, [*spans, since(0, tree or now, now, root)])


def left_elsewhere(get: Get, then: bytes, now: bytes) -> frozenset[bytes]:
    """What was not captured in another folder and never came to this one: no change of files."""
    try:
        found = list(diff_trees(get, then, now))
    except NotFound:
        return frozenset()
    return frozenset(path for path, old, new in found if new is None and old and not old.kept)


def events_behind(store: Store, session_id: str, turn: int) -> Iterator[Event]:
    """What was appended behind a turn's message, the abandoned too."""
    # Mostly it is the last turn: from the end, a log is not searched for where it begins.
    last = list(store.read(session_id, after=turn, reverse=True, limit=_LAST))
    return reversed(last) if len(last) < _LAST else store.read(session_id, after=turn)


def paths_changed(get: Get, events: Iterable[Event]) -> set[str]:
    """The paths that calls changed, as `events` say up to the next user's message."""
    found: set[str] = set()
    for event in events:
        if event.kind == "user_message":
            break
        files = event.data.get("files")
        if isinstance(files, dict) and "after" in files and event.kind != "files_changed":
            found |= paths_of(_own_differences(get, event.seq, files))
    return found


def author_of(event: Event) -> str:
    """The author of an event's changes: a call by its name, others, or the agent going back."""
    if event.kind == "files_changed":
        return "going back" if BACK in event.data else "others"
    name = event.data.get("name")
    return name if isinstance(name, str) else event.kind


def own_paths(get: Get, event: Event) -> Iterator[bytes]:
    """The paths that a call changed; none where others changed files, or the session went back."""
    for change in changes_by(event):
        if not change.goes_back:
            yield from (found.path for found in _own_differences_of(get, change))


def event_diff(get: Get, event: Event) -> Diff:
    """What one event that has `files` changed, without what is not its own."""
    return described(get, _own_differences(get, event.seq, event.data["files"]))


def _own_differences(get: Get, seq: int, files: Json) -> Iterator[Difference]:
    """What an event changed, without what is not its own."""
    for change in changes_of(seq, files):
        yield from _own_differences_of(get, change)


def _own_differences_of(get: Get, change: Change) -> Iterator[Difference]:
    return (found for found in _readable(get, change) if found.path not in change.foreign)


def _readable(get: Get, change: Change) -> Iterator[Difference]:
    """A change's differences; none where collected contents took the trees away."""
    try:
        yield from diff_trees(get, change.before, change.after)
    except NotFound:
        return
