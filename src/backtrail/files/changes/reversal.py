"""Files that went back: by rewinds, undos and redos of ours, or by an agent itself. Reads only.

Each of ours says in its event, in whichever session it ran, which trees it found and left. So an
agent that goes on learns which files are other than it thinks, and nothing of it is taken for
the agent's own doing.

An agent with a rewind of its own, such as Claude Code's "restore code", reports no restore of
files. What is seen is that paths which the session changed are again as they were at
an earlier prompt of it. What the agent could not have done is a person's: `Means`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, NotFound
from ...events import Event, SessionInfo
from ...events.history import NOTED, REPEATS, noted_in, tree_of
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
