"""Copying sessions from one store to another, which is also how one is rebuilt.

Contents of files come with them. As everywhere, contents and the references to them are
stored before the events that name them: a copy that is killed can be repeated, and leaves
nothing that a collection would take from under an event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from ..errors import Conflict, Damaged, NotFound
from ..events import AsDict, Event, NewEvent
from ..files.contents.blobs import Reference
from ..files.contents.collect import trees_of
from ..files.contents.garbage import check_floor, erased_in, note_erased, reach
from ..files.depot import Depot, has_contents, opened
from ..files.trees import EMPTY, EMPTY_DIGEST
from ..stores.base import Store
from ..stores.copies import copy_logs
from ..stores.memory import MemoryStore
from ..stores.opening import store_at
from ..stores.wrapper import store_name, unwrapped

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Copied(AsDict):
    """What a copy did: sessions looked at, events written, numbers filled with `lost`.

    `contents` of files were written. `missing` counts those that events refer to and that
    could not be had, or have no place in the other store.
    """

    sessions: int
    events: int
    lost: int
    contents: int = 0
    missing: int = 0


def copy_sessions(
    src: Store | str, dst: Store | str, *, ids: Collection[str] | None = None
) -> Copied:
    """Copy sessions with their logs, contents of files and project notes; all, or `ids`.

    `seq`, `id`, `ts` and `follows` stay. A number that damage took in `src` becomes a
    `lost` event. A fork whose parent is in `dst` shares its events where the store can.
    Stores that share a place for contents go on sharing it.

    Repeating the copy adds only what is new, and never takes what `dst` has: a title, key,
    tag, value of metadata or note is copied where `dst` has none, and stays where it has
    another. A session of the same id that holds something else is a `Conflict`, one whose
    key another session has `AlreadyExists`; both are left alone. The notes are those of
    the directories that the sessions name.
    """
    with ExitStack() as stack:
        here = stack.enter_context(store_at(src, create=False))
        there = stack.enter_context(store_at(dst))
        contents = _Contents(here, there, stack)
        done = copy_logs(here, there, contents.rely, ids=ids)
        contents.bury()
    missing = len(contents.missing)
    return Copied(done.sessions, done.events, done.lost, len(contents.written), missing)


class _Contents:
    """The contents that copied events name, on their way from one store to the other."""

    def __init__(self, src: Store, dst: Store, stack: ExitStack) -> None:
        self._src, self._dst, self._stack = src, dst, stack
        self._from: Depot | None = None
        self._to: Depot | None = None
        self._ready = False
        self._epoch = 0
        self._walked: set[bytes] = set()
        self._purged: set[bytes] = set()
        self._purged_there: set[bytes] = set()
        self.missing: set[bytes] = set()
        self.written: set[bytes] = set()

    def rely(self, session_id: str, events: Iterable[Event | NewEvent]) -> None:
        """Before a session gets these events: what they name is there, and relied on."""
        roots = list(dict.fromkeys(root for event in events for root in trees_of(event)))
        if not roots:
            return
        self._open()
        if self._to is None:
            self.missing.update(roots)
            return
        for attempt in range(_TRIES):
            try:
                self._bring(self._to, session_id, roots)
                return
            except Conflict:
                # Something was removed there since the walk began: nothing is known any more.
                self._walked.clear()
                if attempt == _TRIES - 1:
                    raise

    def bury(self) -> None:
        """What was erased on purpose, in either store, is no loss."""
        gone = self.missing & (self._purged | self._purged_there)
        if gone and self._to is not None:
            note_erased(self._to.folder, gone)
        self.missing -= gone

    def _open(self) -> None:
        """Open both depots, if the stores have any. Most copies of conversations need none."""
        if self._ready:
            return
        self._ready = True
        if has_contents(self._src):
            self._from = self._stack.enter_context(opened(self._src))
            self._purged = erased_in(self._from.folder)
        # A store in memory keeps contents only as long as a process works there.
        there = unwrapped(self._dst)
        if there.contents is not None or not isinstance(there, MemoryStore):
            self._to = self._stack.enter_context(opened(self._dst))
            self._purged_there = erased_in(self._to.folder)

    def _bring(self, to: Depot, session_id: str, roots: list[bytes]) -> None:
        fresh = not self._walked
        if fresh:
            self._epoch = to.blobs.epoch()
        found = set(reach(self._get, roots, self._miss, self._walked))
        new = found - to.blobs.has(found) - self.missing
        if new:
            check_floor(to.folder)
        name = store_name(self._dst)
        references = [Reference(name, session_id, r) for r in roots if r not in self.missing]
        relies = found - self.missing if fresh else ()
        to.blobs.write(self._contents(new), references, epoch=self._epoch, relies=relies)

    def _contents(self, digests: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        for digest in digests:
            if digest in self._purged_there:
                self.missing.add(digest)
                continue
            try:
                content = self._get(digest)
            except (NotFound, Damaged) as error:
                self._miss(digest, error)
                continue
            self.written.add(digest)
            yield digest, content

    def _get(self, digest: bytes) -> bytes:
        """Get a content from the store that still has it."""
        if digest == EMPTY_DIGEST:
            return EMPTY
        for depot in (self._from, self._to):
            try:
                if depot is not None:
                    return depot.blobs.get(digest)
            except (NotFound, Damaged):
                continue
        raise NotFound(f"no blob `{digest.hex()}` in either store")

    def _miss(self, digest: bytes, error: Exception) -> None:
        self.missing.add(digest)
