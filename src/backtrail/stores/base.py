"""The store contract. This module is its specification.

A store keeps sessions: an info record each, and append-only logs of events. Twelve
methods are abstract; every other verb is derived from them here, once, and a store may
override a derived verb only to be faster. A store with just the abstract methods supports
every verb of `Session`. `backtrail.testing.StoreContract` checks an implementation.

What holds for every method:

- Ids are checked on the way in, and again when they come out of stored data (`InvalidId`).
- An unknown session is `NotFound`. A log that nothing was written to is empty.
- A closed store raises `Closed`; closing twice is fine.
- What the disk or the database refuses is `StoreFailed`; nothing was acknowledged.
- All methods may be called from many threads, and many processes may use one place.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

from .._startup.frozen import dataclass
from ..errors import InvalidData, NotFound, Owner, Unsupported
from ..events import (
    MAIN_LOG,
    AsDict,
    Checkpoint,
    Event,
    Hit,
    Json,
    NewEvent,
    Problem,
    SessionInfo,
)
from ..events.history import Mark, walk
from .records import resolved

if TYPE_CHECKING:
    from ..events.messages import Page
    from .adopting import Logs
    from .batches import Call, Outcome
    from .notes import Memory
    from .queue import Queue

Durability = Literal["written", "synced"]
"""What an acknowledged append survives: the death of the process, or also a power cut."""

KnownIds = Literal["follow", "skip", "error"]
"""What `append` makes of an event whose id is in the log already."""

OnDamage = Callable[[Problem], None]
"""Called once for each damaged place that a read or an append comes across.

An append calls it under the session's lock: it must not append to that session itself.
"""


@dataclass(frozen=True, slots=True)
class Lease(AsDict):
    """The right to drive a session, and its owner."""

    session_id: str
    owner: Owner


class Store(ABC):
    """Where sessions live. See the module for what holds everywhere."""

    url: str = ""
    """How `open_store` finds this store again; empty where it cannot."""

    scope: str = ""
    """The tenant or namespace. Session ids and keys are unique within it."""

    contents: Path | None = None
    """The folder for contents of files; where it is None, one in the user's data folder."""

    contents_url: str = ""
    """Where contents of files are by another scheme; `contents` then has what belongs to them."""

    environment: Mapping[str, str] = {}
    """What a process needs in its environment to open `url`: a password is never in that."""

    durability: Durability = "synced"
    """What an acknowledged append survives; what is stored beside it survives as much."""

    relies_on: Callable[[], None] | None = None
    """Syncs what events name that lies elsewhere; `flush` calls it first."""

    places: tuple[Path, ...] = ()
    """Files and folders of its own, which no scan of a workspace captures."""

    groups: bool = False
    """Whether `append_each` takes less than one append after another."""

    @property
    def id(self) -> str:
        """A random id kept in the store, by which references and journals name it.

        It moves with the store, and another one that comes to its place has another. Empty
        where a store has none: then its URL is the name.
        """
        return ""

    @property
    def former_name(self) -> str:
        """The URL that references named this store by before it had an id; else empty."""
        return ""

    def log_file(self, session_id: str) -> Path | None:
        """The file that the main log is, one event a line; None where there is none."""
        return None

    # --- the contract --------------------------------------------------------------------

    @abstractmethod
    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        """Make a session with an empty main log, or a fork.

        Takes the fields of `info` that cannot be folded from the log; `created_at` is now
        unless given, `scope` is the store's. An id or key in use is `AlreadyExists`.

        `base=(parent, seq)` is a fork: the new session reads the parent's main log up to
        `seq`, then its own events, numbered from `seq + 1`. Side logs start empty.
        Appending to or deleting either leaves the other whole. No such parent: `NotFound`.
        """

    @abstractmethod
    def info(self, session_id: str) -> SessionInfo:
        """The session's record, with everything folded from the log up to its head."""

    @abstractmethod
    def update(
        self, session_id: str, *, expected: int | None = None, **changes: Json
    ) -> SessionInfo:
        """Change the record, atomically, and return it.

        `expected` is the head of the main log that the caller believes in, as in `append`.

        Fields: key, title, cwd, root, model, agent_name, tags, metadata; any other is
        `InvalidData`. With another `cwd` and no `root`, the root is that `cwd`. `metadata`
        is merged, a value of None removes its key. `tags` are added; as a mapping,
        `{tag: False}` removes one.
        """

    @abstractmethod
    def sessions(
        self,
        *,
        cwd: str | os.PathLike[str] | None = None,
        parent: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        after: datetime | str | None = None,
        before: datetime | str | None = None,
        limit: int | None = None,
    ) -> list[SessionInfo]:
        """The records that match all filters, newest first by `updated_at`.

        `cwd` is compared as a resolved path, with a session's `cwd` and with its `root`; a
        record without a `root` has its `cwd` for one. `after` and `before` are exclusive bounds on
        `updated_at`; each key of `metadata` must be there with that value. A session that cannot
        be read is left out here; `verify` reports it.
        """

    @abstractmethod
    def delete(
        self, session_id: str, *, log: str | None = None, expected: int | None = None
    ) -> None:
        """Remove a session, or one of its side logs.

        `expected` is the head that the caller believes in, of the main log or of that one, as in
        `append`. Forks keep what they share. A writer that still holds the session gets `NotFound`
        on its next append.
        """

    @abstractmethod
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        """Append a batch, all or nothing, and return it as stored.

        When this returns, the batch survives what the store's durability says. `seq` is
        assigned under the store's lock: one more than the head, never used twice.

        An event whose id is in the log already is skipped and returned as it is there, so
        a retry is safe. A new event behind a skipped one follows that one; with
        `known="skip"` it follows the head, so that catching up leaves the history whole, and
        with `"error"` a known id is `AlreadyExists`, and nothing is written. `expected` is
        the head the caller believes in, `Conflict` if it is another; but if every id of
        the batch is present, they are returned whatever `expected` says.

        A value that would not come back equal is `InvalidData`, and a `follows` beyond
        the head too, before anything is written. An empty batch is fine.
        """

    @abstractmethod
    def read(
        self,
        session_id: str,
        *,
        log: str = MAIN_LOG,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        """Events with `after < seq <= until`, in order of `seq`, or newest first.

        Raises at the call, not at the first event. The cost is that of what is returned
        (with `kinds`, of what is looked at). The iterator holds no lock between pages and
        sees events appended meanwhile. Damaged places are reported and passed over.

        If the session or the log is deleted meanwhile, the iterator ends with `NotFound`,
        at the latest where its present page does: it never ends early as if that were all,
        and never goes on in a session made anew under the same id.
        """

    @abstractmethod
    def purge(self, session_id: str, seqs: Collection[int], *, log: str = MAIN_LOG) -> None:
        """Erase the bodies of events, for good: `data` becomes `{"purged": true}`.

        `seq`, `id`, `ts`, `kind` and `follows` stay. Forks and parents that share the events lose
        them too. Unknown numbers are ignored.
        """

    @abstractmethod
    def logs(self, session_id: str) -> list[str]:
        """The names of the session's logs, sorted; the main log always."""

    @abstractmethod
    def lease(self, session_id: str, *, wait: float = 0) -> AbstractContextManager[Lease]:
        """The right to drive the session, while the context lasts.

        A second holder gets `SessionBusy` with the owner's name, at once or after `wait`
        seconds. A dead owner's lease is free. Not inherited by a forked process.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when everything acknowledged before survives a power cut."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and threads; what was acknowledged stays so."""

    # --- derived -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        """Make a session with all its logs, as it was elsewhere; `AlreadyExists` as in `create`.

        Events come in order and are numbered from 1; an id that comes twice in a log is
        `InvalidData`. Logs are gone through once each, in the order given, and may raise.
        After any failure there is no such session. A store on a disk also shows nothing of
        it before it is whole, and nothing after a crash; here it grows before one's eyes.
        """
        from .adopting import adopt

        adopt(self, info, logs)

    def kept(self, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """An event's data as it would be stored; other than given only where it is masked."""
        return data

    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        """Carry out appends of several callers, in their order; the outcome of each.

        Each is as `append` has it: whole or not at all, by itself, and an error is that of
        its own call. When this returns, all survive what the store's durability says. A store
        that `groups` does it in one transaction, and with one sync.
        """
        from .batches import carried_out

        return [carried_out(self.append, call) for call in calls]

    def _append_queued(self, calls: Sequence[Call]) -> list[Outcome]:
        """`append_each` for the queue; what would hold up the others may be `Postponed`."""
        return self.append_each(calls)

    def _is_queued(self, session_id: str) -> bool:
        """Whether the queue is at work on an append to this session, perhaps one given up."""
        found = cast("Queue[Call, list[Event]] | None", self.__dict__.get("_queue"))
        return found is not None and any(call.session_id == session_id for call in found.held)

    @property
    def queue(self) -> Queue[Call, list[Event]]:
        """Where appends wait that are written together; see `Queue`."""
        found = self.__dict__.get("_queue")
        if found is None:
            from .queue import Queue

            found = self.__dict__.setdefault("_queue", Queue(self._append_queued))
        return cast("Queue[Call, list[Event]]", found)

    def tail(self, session_id: str, n: int, *, log: str = MAIN_LOG) -> list[Event]:
        """The last `n` events, oldest first."""
        if n < 1:
            raise InvalidData(f"tail takes a positive number of events, not {n}")
        return [*self.read(session_id, log=log, limit=n, reverse=True)][::-1]

    def walk(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Event]:
        """The history, newest first: from `until` or the head back along `follows`."""

        return walk(lambda bound: self.read(session_id, log=log, until=bound, reverse=True), until)

    def history(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> list[Event]:
        """The live path through a log, oldest first."""
        return list(self.walk(session_id, until=until, log=log))[::-1]

    def outline(
        self, session_id: str, *, kinds: Collection[str] = (), after: int = 0,
        until: int | None = None,
    ) -> list[Mark]:  # fmt: skip
        """The events of some kinds, and all that say what they follow, in order; no bodies."""
        from . import derived

        return derived.outline(self, session_id, kinds, after, until)

    def tally(self, session_id: str, *, after: int = 0, until: int | None = None) -> dict[str, int]:
        """How many events of each kind there are; a damaged one may count."""
        return dict(Counter(e.kind for e in self.read(session_id, after=after, until=until)))

    def record(self, session_id: str) -> SessionInfo:
        """`info`, but what is counted in the log may be of an earlier moment.

        A caller that wants to know what the session is about need not wait for a count.
        """
        return self.info(session_id)

    def pages(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Page]:
        """The history as `Session.messages` reads it: newest page first, each in order.

        The same as `walk`, without making an event of everything.
        """
        from ..events.messages import paged

        return paged(self.walk(session_id, until=until, log=log))

    def latest(self, cwd: str | os.PathLike[str]) -> SessionInfo:
        """The newest session whose `cwd` or `root` it is, forks included, subagents not."""
        for info in self.sessions(cwd=cwd):
            if info.relation != "subagent":
                return info
        raise NotFound(f"no previous session found in {os.fspath(cwd)}")

    def find(self, session_id: str, id: str, *, log: str = MAIN_LOG) -> Event:
        """The event with this id; `NotFound` if the log has none."""
        for event in self.read(session_id, log=log):
            if event.id == id:
                return event
        raise NotFound(f"no event `{id}` in session `{session_id}`")

    def checkpoint(self, id: str) -> Checkpoint:
        """The checkpoint with this id, in whatever session of this store it is.

        One that a session has deleted is `NotFound`, unless another has it too.
        """
        from . import derived

        return derived.checkpoint(self, id)

    def locate(self, id: str) -> tuple[str, str, int]:
        """Where the event with an id that a caller gave is: session, log and `seq`.

        One that several sessions have is found in the oldest. `NotFound` if there is none.
        """
        from . import derived

        return derived.locate(self, id)

    def append_many(self, batches: Mapping[str, Sequence[NewEvent]]) -> dict[str, list[Event]]:
        """Append to the main logs of several sessions, all or nothing.

        Each batch is as in `append`. `Unsupported` on a store that cannot.
        """
        raise Unsupported(f"{type(self).__name__} appends to one session at a time")

    def search(self, text: str, *, limit: int = 20) -> list[Hit]:
        """Messages that hold all words of `text`, newest session first.

        A word matches whole, whatever its case; "quoted words" match in a row. An event
        shared by forks is found once.
        """
        from .query import search

        return search(self, text, limit)

    def memory(self, cwd: str | os.PathLike[str]) -> Memory:
        """The project's note: one Markdown text for each directory, never swept."""
        from .notes import SessionMemory

        return SessionMemory(self, resolved(cwd))

    def verify(self) -> list[Problem]:
        """Read everything and report what is wrong; empty when all is well."""
        from . import derived

        return derived.verify(self)

    def seal(self, *, dry_run: bool = False) -> int:
        """Give stored events that have no check sum one; returns how many.

        Only a store of an earlier version has such events. With `dry_run` they are only
        counted. A seal says what an event is today, not that it never changed before.
        """
        return 0

    def follow(
        self,
        session_id: str,
        *,
        after: int | None = None,
        log: str = MAIN_LOG,
        poll: float = 0.05,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        """Events as they come, from this and other processes; never ends by itself.

        From `after`, or from now. `stop` is asked between looks, `poll` seconds apart.
        The session's deletion ends it with `NotFound`.
        """
        from . import derived

        return derived.follow(self, session_id, after, log, poll, stop)
