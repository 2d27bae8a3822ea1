"""Files that an agent put back by itself, told from what others changed. Pure but for reads.

An agent with a rewind of its own, such as Claude Code's "restore code", tells nobody when it
restores files. What is seen is that paths which the session changed are again as they were at
an earlier prompt of it. What the agent could not have done is a person's: `Means`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..._startup.frozen import NamedTuple
from ...errors import NotFound
from ...events import Event
from ...events.history import tree_of
from ..trees import Entry, Get, diff_trees, look_up
from .restored import changed, is_at

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
        is_whole = all(is_at(get, tree, path, _at(get, now, path)) for path in all_or_none)
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


def _at(get: Get, tree: bytes, path: bytes) -> Entry | None:
    try:
        return look_up(get, tree, path)
    except NotFound:
        return None
