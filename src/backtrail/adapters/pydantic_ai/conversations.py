"""pydantic-ai's conversation store on a store of ours."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage

from ...errors import AlreadyExists, Conflict, NotFound
from ...events import Event, Json, NewEvent, SessionInfo, timestamp
from ...session.points import head_of
from ...session.session import Session
from ...session.threads import run
from ...stores.base import Store
from .._bridge import Bridge
from .records import (
    ALIASED,
    ALIASES,
    ENTRY,
    RECORD,
    entry_of,
    message_event,
    message_of,
    record_event,
    record_of,
)

if TYPE_CHECKING:
    from pydantic_ai.toolsets import AbstractToolset

    from .toolset import BacktrailToolset

_TAG = "pydantic-ai"
_TRIES = 50
_MOVES = ("rewound", "undone", "redone")


class _Now(NamedTuple):
    """Where a conversation stands: its head, its newest record, and what came behind that."""

    head: int
    record: ConversationRecord | None
    at: int
    aliased: bool
    drafts: list[Event]


class _Aliases:
    """The drafts of a session that are entries: by number, and by entry."""

    def __init__(self) -> None:
        self.read = 0
        self.by_seq: dict[int, tuple[str, str | None]] = {}
        self.seqs: dict[str, int] = {}


class BacktrailConversationStore(ConversationStore):
    """Conversations of pydantic-ai, durable, searchable, rewindable.

    Deleting a conversation erases what no fork of it shares. With a `cwd`, files are captured: wrap
    the toolsets whose calls are to be bracketed. A store passed in stays open.
    """

    def __init__(
        self, store: Store | str | None = None, *, cwd: str | os.PathLike[str] | None = None
    ) -> None:
        self._bridge = Bridge(store, "pydantic-ai", cwd=cwd)
        self.store = self._bridge.store
        self._homes: dict[str, str] = {}
        self._aliases: dict[str, _Aliases] = {}
        self._mutex = threading.RLock()

    def wrap(self, toolset: AbstractToolset[Any]) -> BacktrailToolset:
        """A toolset whose calls are bracketed, for runs with a `conversation`."""
        from .toolset import BacktrailToolset

        return BacktrailToolset(toolset, self)

    def open(self, conversation_id: str) -> Session:
        """The Backtrail session of a conversation: undo, checkpoints, diff, blame, events."""
        return self._bridge.session(self._bridge.ensure(conversation_id, own=True))

    def close(self) -> None:
        """Let go of sessions, and of the store where it was opened here."""
        self._bridge.close()

    # --- the contract --------------------------------------------------------------------

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record as the history has it, or None."""
        return await run(self._record, conversation_id)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """The records, those last saved first."""
        return await run(self._records, scope, limit)

    async def write_record(
        self, record: ConversationRecord, *, new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:  # fmt: skip
        """Store a record and its new entries in one batch, if nothing was saved meanwhile."""
        await run(self._write, record, list(new_entries), expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation; forks keep what they share with it."""
        await run(self._delete, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """The entry with this id; `KeyError` if there is none."""
        return (await run(self._history, entry_id, 1))[-1]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """The entries up to `head_id`, in order, or the last `limit` of them."""
        if head_id is None or limit == 0:
            return []
        return await run(self._history, head_id, limit)

    # --- reading -------------------------------------------------------------------------

    def _record(self, conversation_id: str) -> ConversationRecord | None:
        id = self._bridge.find(conversation_id, own=True)
        if id is None:
            return None
        try:
            return self._now(id, conversation_id).record
        except NotFound:
            self._bridge.forget(conversation_id)
            return None

    def _now(self, id: str, name: str) -> _Now:
        """Where a conversation stands; a rewind makes another revision of its record."""
        head = head_of(self.store, id)
        behind: list[Event] = []
        moved = 0
        for event in self.store.walk(id, until=head):
            if event.kind == RECORD:
                record = self._own(id, name, record_of(event))
                drafts = [one for one in behind if "message" in one.data]
                entries = [one for one in drafts if ENTRY in one.data]
                if record is None:
                    return _Now(head, None, event.seq, bool(event.data.get(ALIASED)), drafts[::-1])
                if entries:
                    record = replace(record, head_id=entries[0].id)
                if entries or moved:
                    revision = f"{record.revision}.{max(moved, *(e.seq for e in entries), 0)}"
                    record = replace(record, revision=revision)
                for tip in (record.head_id, *record.branches):
                    if tip is not None:
                        self._homes[tip] = id
                aliased = bool(event.data.get(ALIASED))
                return _Now(head, record, event.seq, aliased, drafts[::-1])
            behind.append(event)
            moved = max(moved, event.seq if event.kind in _MOVES else 0)
        drafts = [one for one in behind if "message" in one.data]
        return _Now(head, None, 0, False, drafts[::-1])

    def _own(self, id: str, name: str, record: ConversationRecord) -> ConversationRecord | None:
        """The record of this conversation; what a fork has of its parent's is none yet.

        One that was forked in Backtrail goes on with it, under the id of its session.
        """
        if record.conversation_id == name:
            return record
        if self.store.record(id).key is not None:
            return None
        return replace(record, conversation_id=name, forked_from=record.conversation_id)

    def _records(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        found: list[ConversationRecord] = []
        for info in self.store.sessions(tag=_TAG):
            enough = limit is not None and len(found) >= limit
            if enough and info.updated_at < min(timestamp(one.updated_at) for one in found):
                break
            try:
                name = _name_of(info)
                record = None if name is None else self._now(info.id, name).record
            except NotFound:
                continue
            if record is not None and scope in (None, record.scope):
                found.append(record)
        found.sort(key=lambda one: one.updated_at, reverse=True)
        return found[:limit]

    def _history(self, head_id: str, limit: int | None) -> list[ConversationEntry]:
        id = self._home(head_id)
        if id is None:
            raise KeyError(head_id)
        seq = self._seq(id, head_id)
        aliases = self._aliases_of(id).by_seq
        found: list[ConversationEntry] = []
        for event in self.store.walk(id, until=seq):
            if ENTRY in event.data or event.seq in aliases:
                found.append(entry_of(event, aliases.get(event.seq)))
                self._homes[found[-1].id] = id
                if len(found) == limit:
                    break
        return found[::-1]

    def _home(self, entry_id: str) -> str | None:
        """The session that has an entry, wherever it is."""
        known = self._homes.get(entry_id)
        if known is not None and self._has(known, entry_id):
            return known
        for info in self.store.sessions(tag=_TAG):
            if self._has(info.id, entry_id):
                self._homes[entry_id] = info.id
                return info.id
        return None

    def _has(self, id: str, entry_id: str) -> bool:
        try:
            self._seq(id, entry_id)
        except NotFound:
            return False
        return True

    def _seq(self, id: str, entry_id: str) -> int:
        """The number of an entry in a session."""
        found = self._aliases_of(id).seqs.get(entry_id)
        return self.store.find(id, entry_id).seq if found is None else found

    def _aliases_of(self, id: str) -> _Aliases:
        with self._mutex:
            known = self._aliases.setdefault(id, _Aliases())
            newest = next(self.store.read(id, kinds=(RECORD,), reverse=True, limit=1), None)
            if newest is None or newest.seq <= known.read or not newest.data.get(ALIASED):
                return known
            for event in self.store.read(id, kinds=(RECORD,), after=known.read):
                for seq, entry, parent in event.data.get(ALIASES, ()):
                    known.by_seq[seq] = entry, parent
                    known.seqs[entry] = seq
                known.read = event.seq
            return known

    # --- writing -------------------------------------------------------------------------

    def _write(
        self, record: ConversationRecord, entries: list[ConversationEntry], expected: str | None
    ) -> None:
        name = record.conversation_id
        for _ in range(_TRIES):
            id = self._bridge.find(name, own=True)
            now = None if id is None else self._now(id, name)
            current = now.record if now is not None else None
            if (current.revision if current is not None else None) != expected:
                raise ConversationConflict(name)
            try:
                if id is None:
                    id = self._made(record, entries)
                    now = self._now(id, name)
                assert now is not None
                batch = self._batch(id, now, record, entries)
                self._bridge.append(id, batch, expected=now.head)
            except (Conflict, AlreadyExists):
                continue
            except NotFound as error:
                self._bridge.forget(name)
                raise ConversationConflict(name) from error
            for entry in entries:
                self._homes[entry.id] = id
            return
        raise ConversationConflict(name)

    def _made(self, record: ConversationRecord, entries: list[ConversationEntry]) -> str:
        """A new session for a conversation; a fork, where its history begins in another."""
        name = record.conversation_id
        about: dict[str, Json] = {"conversation_id": name, "scope": record.scope}
        root = entries[0].parent_id if entries else record.head_id
        if root is None:
            return self._bridge.make(name, tags=[_TAG], metadata=about)
        home = self._home(root)
        if home is None:
            raise ConversationConflict(name)
        base = home, self._seq(home, root)
        return self._bridge.make(name, tags=[_TAG], metadata=about, base=base)

    def _batch(
        self, id: str, now: _Now, record: ConversationRecord, entries: list[ConversationEntry]
    ) -> list[NewEvent]:
        """What a save appends: new messages where they belong, and the record."""
        root = entries[0].parent_id if entries else record.head_id
        current = now.record.head_id if now.record is not None else None
        drafts = [event for event in now.drafts if ENTRY not in event.data]
        aliases: list[Json] = []
        follows: int | None = None
        # Drafts count where the save goes on from the record that they came behind.
        if root == current and (now.record is not None or not _is_fork(self.store, id)):
            for draft, entry in zip(drafts, entries, strict=False):
                if not _is_same(draft, entry.message):
                    break
                aliases.append([draft.seq, entry.id, entry.parent_id])
            if len(aliases) < len(drafts):
                follows = drafts[len(aliases)].previous
        elif root is None:
            follows = 0
        else:
            home = self._home_in(id, root)
            if home is None:
                raise ConversationConflict(record.conversation_id)
            follows = home if home != now.head else None
        rest = entries[len(aliases) :]
        batch = [message_event(e.message, e.id, [e.parent_id]) for e in rest]
        batch.append(record_event(record, aliases, aliased=now.aliased))
        if follows is not None:
            first = batch[0]
            batch[0] = NewEvent(first.kind, first.data, first.id, follows, first.ts)
        return batch

    def _home_in(self, id: str, entry_id: str) -> int | None:
        """The number of an entry in this session, None if another has it."""
        try:
            return self._seq(id, entry_id)
        except NotFound:
            return None

    def _delete(self, conversation_id: str, expected: str) -> None:
        id = self._bridge.find(conversation_id, own=True)
        record = None if id is None else self._now(id, conversation_id).record
        if record is None or record.revision != expected:
            raise ConversationConflict(conversation_id)
        if not self._bridge.delete(conversation_id):
            raise ConversationConflict(conversation_id)

    # --- while a run is under way --------------------------------------------------------

    def draft(self, conversation_id: str, run_id: str, messages: list[ModelMessage]) -> Session:
        """Keep what a run said so far, once, and give the session to bracket its calls in."""
        id = self._bridge.find(conversation_id, own=True)
        if id is None:
            try:
                about: dict[str, Json] = {"conversation_id": conversation_id}
                id = self._bridge.make(conversation_id, tags=[_TAG], metadata=about)
            except AlreadyExists:
                id = self._bridge.ensure(conversation_id, own=True)
        batch = [message_event(one, f"{run_id}:{n}", None) for n, one in enumerate(messages)]
        with self._mutex:
            self._bridge.append(id, batch)
        return self._bridge.session(id)


def _name_of(info: SessionInfo) -> str | None:
    """What a session is called here; None for one that is no conversation's own."""
    name = info.metadata.get("conversation_id")
    return name if isinstance(name, str) and info.key is not None else None


def _is_same(draft: Event, message: ModelMessage) -> bool:
    return message_of(draft) == message


def _is_fork(store: Store, id: str) -> bool:
    return store.record(id).relation == "fork"
