"""Files that went back: by rewinds, undos and redos of ours, or by an agent itself. Reads only.

Each of ours says in its event, in whichever session it ran, which trees it found and left. So an
agent that goes on learns which files are other than it thinks, and nothing of it is taken for
the agent's own doing.

An agent with a rewind of its own, such as Claude Code's "restore code", reports no restore of
files. What is seen is that paths which the session changed are again as they were at
an earlier prompt of it. What the agent could not have done is a person's: `Means`.

`Foresight` says what going back would find of all this, and of calls; none ends by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, NotFound
from ...events import Event, SessionInfo
from ...events.history import NOTED, REPEATS, newest_look, noted_in, tree_of
from ...stores.base import Store
from ..trees import Difference, Entry, Get, alike, diff_trees, look_up
from .brackets import as_event, call_event, is_recorded, others_events
from .effects import changes_of

if TYPE_CHECKING:
    from ...events import NewEvent
    from ..workspace.workspace import Workspace
    from .recorder import Recorder

_KINDS = ("rewound", "undone", "redone")


class Since(NamedTuple):
    """A moment: an event of a session's own log, and the time for those of others."""

    seq: int
    ts: str


def restores(store: Store, session: SessionInfo, since: Since) -> list[Event]:
    """The events behind a moment by which files of the session's folder went back, in order.

    Logs of several sessions have only the clock in common.
    """
    found = {event.id: event for event in _newest(store, session.id, since, own=True)}
    root = session.root or session.cwd
    for other in store.sessions(cwd=root, after=since.ts) if root is not None else ():
        if other.id != session.id and (other.root or other.cwd) == root:
            for event in _newest(store, other.id, since, own=False):
                found.setdefault(event.id, event)
    return sorted(found.values(), key=lambda event: event.ts)


def _newest(store: Store, session_id: str, since: Since, *, own: bool) -> Iterator[Event]:
    after = since.seq if own else 0
    try:
        for event in store.read(session_id, after=after, kinds=_KINDS, reverse=True):
            if not own and event.ts < since.ts:
                return
            if isinstance(event.data.get("files"), dict):
                yield event
    except NotFound:
        # It was deleted just now.
        return


def left_so(get: Get, events: Iterable[Event], now: bytes) -> frozenset[bytes]:
    """The paths that `events` changed, and that are `now` as the last of these left them."""
    left = {found.path: found.after for event in events for found in changed(get, event)}
    return frozenset(path for path, entry in left.items() if is_at(get, now, path, entry))


def unknown(get: Get, walked: Iterable[Event], events: Iterable[Event], now: bytes) -> list[bytes]:
    """The paths that `events` changed, and that are `now` other than the agent thinks.

    It knows a path as its last call left it, else as it was at its last prompt; `walked` is its
    history from the newest event back to that prompt. Where nothing is known of that moment,
    it is what the first of the `events` found.
    """
    found: dict[bytes, Entry | None] = {}
    for event in events:
        for one in changed(get, event):
            found.setdefault(one.path, one.before)
    thought: dict[bytes, Entry | None] = {}
    for event in walked:
        if event.kind == "user_message":
            for path in found.keys() - thought.keys():
                thought[path] = _at(get, tree_of(event), path, found[path])
        elif event.kind not in (*_KINDS, "files_changed"):
            for one in changed(get, event):
                thought.setdefault(one.path, one.after)
    return sorted(
        path for path, entry in found.items() if not is_at(get, now, path, thought.get(path, entry))
    )


def last_prompt(walk: Iterable[Event]) -> tuple[list[Event], Since] | None:
    """A history, newest first, back to its last prompt, and the moment of that; None if none is."""
    walked: list[Event] = []
    for event in walk:
        walked.append(event)
        if event.kind == "user_message":
            noted = noted_in(event, REPEATS) or noted_in(event, NOTED)
            return walked, Since(noted or event.seq, event.ts)
    return None


def changed(get: Get, event: Event) -> list[Difference]:
    """What an event's own doing changed; nothing where its contents are gone."""
    files = event.data.get("files")
    if not isinstance(files, dict) or "after" not in files:
        return []
    try:
        return [
            found
            for change in changes_of(event.seq, files)
            for found in diff_trees(get, change.before, change.after)
            if found.path not in change.foreign
        ]
    except (NotFound, Damaged):
        # Its contents were collected, or its event says something else.
        return []


def _at(get: Get, tree: bytes | None, path: bytes, unknown: Entry | None) -> Entry | None:
    try:
        return look_up(get, tree, path) if tree is not None else unknown
    except NotFound:
        return unknown


def is_at(get: Get, tree: bytes, path: bytes, entry: Entry | None) -> bool:
    """Whether an entry is what a path of a tree is; False where that cannot be read."""
    try:
        return alike(look_up(get, tree, path), entry)
    except NotFound:
        return False


_PROMPTS = 100
"""How far back agents go themselves, in prompts."""


class Means(NamedTuple):
    """How an agent restores files.

    `editors` are the tools whose changes it keeps copies of: it restores those and no others,
    and all of them at once. None: it restores whatever changed.
    """

    editors: frozenset[str] | None = None


MEANS: dict[str, Means] = {
    "claude-code": Means(frozenset({"Write", "Edit", "MultiEdit", "NotebookEdit"})),
    "gemini": Means(),
}
"""By the agent's name; all others restore nothing."""


class Reversal(NamedTuple):
    """Paths that are as they were at an earlier event of the session, and all the others."""

    to: int
    back: frozenset[bytes]
    others: frozenset[bytes]


def reversal(
    get: Get, newest_first: Iterable[Event], known: bytes, now: bytes, means: Means,
    besides: Collection[bytes] = (),
) -> Reversal | None:  # fmt: skip
    """The earlier state of a session that changes since its last one lead to, if there is one.

    Of several, it is the one that most paths agree with, and of these the newest. Only paths
    count that the session itself changed since, by tools whose changes its agent restores. If
    one of these is not as it was, a person put the others back. The paths `besides` are so by a
    rewind of ours.
    """
    try:
        there = {found.path: found.after for found in diff_trees(get, known, now)}
    except NotFound:
        return None
    theirs = {path: entry for path, entry in there.items() if path not in besides}
    best: Reversal | None = None
    own: set[bytes] = set()
    all_or_none: set[bytes] = set()
    later: list[Event] = []
    seen = {known}
    for event in _recent(newest_first):
        tree = tree_of(event) if event.kind == "user_message" else None
        later.append(event)
        if tree is None or tree in seen:
            continue
        seen.add(tree)
        same = {path for path, entry in theirs.items() if is_at(get, tree, path, entry)}
        if len(same) <= (len(best.back) if best is not None else 0):
            continue
        for one in later:
            kept = changed(get, one) if _is_kept(one, means) else []
            paths = {found.path for found in kept}
            own |= paths
            # Of what subagents edit, an agent may keep no copies.
            all_or_none |= paths if means.editors and not one.data.get("agent") else set()
        later.clear()
        is_whole = all(is_at(get, tree, path, _at(get, now, path, None)) for path in all_or_none)
        if is_whole and len(same & own) > (len(best.back) if best is not None else 0):
            back = frozenset(same & own)
            best = Reversal(event.seq, back, frozenset(there) - back)
        if best is not None and not best.others:
            break
    return best


def _recent(newest_first: Iterable[Event]) -> Iterator[Event]:
    prompts = 0
    for event in newest_first:
        prompts += event.kind == "user_message"
        if prompts > _PROMPTS:
            return
        yield event


def _is_kept(event: Event, means: Means) -> bool:
    """Whether an agent keeps copies of what an event of its session changes."""
    if event.kind == "files_changed":
        return False
    # In a transcript that was imported, only such changes have files.
    return (
        means.editors is None or event.kind != "action" or event.data.get("name") in means.editors
    )


_LIFE = ("session_end", "session_resume", "user_message")
"""Kinds that say whether an agent is at a session."""


class Reversals:
    """What the agent of one session put back by itself, as the session's log says."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        self._id = session_id

    def agent(self) -> str | None:
        """The agent with a record, and a rewind, of its own that the session is of."""
        native = self._store.record(self._id).metadata.get("native")
        return str(native.get("agent")) if isinstance(native, dict) else None

    def is_over(self) -> bool:
        """Whether the agent has left the session: what changes then is not its doing."""
        for event in self._store.read(self._id, reverse=True, kinds=_LIFE):
            # A session that a person opens here is not thereby open in the agent.
            if event.kind != "session_resume" or "by" in event.data:
                return event.kind == "session_end"
        return False

    def find(
        self, get: Get, known: bytes, tree: bytes, owed: Iterable[Event] = ()
    ) -> Reversal | None:
        """What it put back between two states. Events that are `owed` come first, newest first."""
        means = MEANS.get(self.agent() or "")
        if means is None or self.is_over():
            return None
        newest_first = chain(owed, self._store.read(self._id, reverse=True))
        return reversal(get, newest_first, known, tree, means, self._restored(get, tree))

    def _restored(self, get: Get, tree: bytes) -> Collection[bytes]:
        """The paths that are as rewinds left them which the session has not seen yet."""
        last = newest_look(self._store.read(self._id, reverse=True))
        if last is None:
            return ()
        info = self._store.record(self._id)
        return left_so(get, restores(self._store, info, Since(last.seq, last.ts)), tree)


# --- foreseen --------------------------------------------------------------------------


class Foresight:
    """What a recorder would owe if the session went back now."""

    def __init__(self, recorder: Recorder, workspace: Workspace) -> None:
        self._recorder = recorder
        self._workspace = workspace
        self._store, self._id = recorder.folder.store, recorder.folder.id

    def owed(self, *, force: bool) -> list[NewEvent]:
        """What would be owed, by `force` or not.

        In the order in which `end_orphans`, `look` and `catch_up_elsewhere` owe it.
        """
        recorder, workspace = self._recorder, self._workspace
        with recorder.lock:
            tree = workspace.glance(recorder.log, self._store)
            over = workspace.orphans(self._id, recorder.unseen, self._store)
            on = [bracket for _, bracket in recorder.going(workspace)]
            if force:
                known = {bracket.id for bracket in on}
                on += [b for b in recorder.mine(workspace) if b.id not in known and not b.ended]
            passed = {bracket.id for bracket in over}
            seen: set[str] = set()
            found = [one.event for one in recorder.queue.waiting]
            for bracket in [*over, *(one for one in on if one.id not in passed)]:
                if bracket.ended and is_recorded(bracket, self._store.read(self._id, reverse=True)):
                    continue
                files = bracket.files
                if files is None:
                    late = bracket.id in passed
                    done = workspace.foreseen(bracket, tree, self._store, seen, late=late)
                    files = done.to_dict() if done is not None else None
                seen.add(bracket.id)
                if files is not None:
                    how = "interrupted" if bracket.id in passed else "so_far"
                    id = bracket.id if recorder.shared else None
                    found.append(call_event(bracket, how, files, workspace, id))
            return found

    def put_back(self, tree: bytes, owed: Sequence[NewEvent] = ()) -> Reversal | None:
        """What the session's agent put back by itself since the last look.

        The events that are `owed` count as recorded. While a call of the session is open, whatever
        changes is perhaps the call's.
        """
        recorder, known = self._recorder, self._known_behind(owed)
        reversals = Reversals(self._store, self._id)
        if known is None or known == tree or reversals.agent() is None:
            return None
        over = {b.id for b in self._workspace.orphans(self._id, recorder.unseen, self._store)}
        if any(not b.ended and b.id not in over for b in recorder.mine(self._workspace)):
            return None
        newest_first = [as_event(one) for one in reversed(owed)]
        return reversals.find(self._workspace.blobs.get, known, tree, newest_first)

    def _known_behind(self, owed: Sequence[NewEvent]) -> bytes | None:
        """The state that is known once `owed` is recorded. A preview keeps it nowhere: until the
        deed others may append.
        """
        trees = (tree_of(as_event(one)) for one in reversed(owed))
        newest = next((tree for tree in trees if tree is not None), None)
        return newest or self._recorder.tree or self._recorder.folder.host.known()

    def back(self, tree: bytes, owed: list[NewEvent]) -> list[NewEvent]:
        """What would be recorded of the agent's own, behind what is `owed` already."""
        known, back = self._known_behind(owed), self.put_back(tree, owed)
        if known is None or back is None:
            return []
        return others_events(known, tree, back, self._workspace)
