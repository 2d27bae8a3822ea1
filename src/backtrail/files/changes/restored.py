"""What rewinds, undos and redos did to the files of a folder, in whichever session they ran.

Each says in its event which trees it found and left. So an agent that goes on can be told which
files are other than it thinks, and nothing of it is taken for the agent's own doing. Pure but
for reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, NotFound
from ...events import Event, SessionInfo
from ...events.history import NOTED, tree_of
from ...stores.base import Store
from ..trees import Difference, Entry, Get, alike, diff_trees, look_up
from .effects import changes_of

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
            noted = event.data.get(NOTED)
            return walked, Since(noted if isinstance(noted, int) else event.seq, event.ts)
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
