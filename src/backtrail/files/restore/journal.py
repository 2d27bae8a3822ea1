"""The journal of a restore: what it is about to do, and the events that will record it.

It is on the disk before any name in the workspace changes. The next holder of the workspace's
lock finishes what it says: the files, then the log. Twice is the same as once, since
a step knows when it is done and an event is found by its id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from ..._startup.frozen import dataclass, field
from ...errors import NotFound
from ...events import Json, NewEvent
from ...events.operations import KEPT, MADE_ROOT
from ...stores.base import Store
from ...stores.disk import checks
from ...stores.opening import open_store
from ...stores.wrapper import unwrapped
from ..names import shown
from .plan import Plan


@dataclass(frozen=True, slots=True)
class Journal:
    """One restore. `before` is the tree of the state that it takes back.

    `store` is the URL where its store was, `store_id` the store's id, which it had not always;
    `workspace` is the root and the number of its state after it, once that is known. `makes_root`
    says that the root was gone.
    """

    id: str
    plan: Plan
    before: bytes
    store: str
    scope: str
    session_id: str
    events: list[NewEvent]
    workspace: dict[str, Json] = field(default_factory=dict)
    store_id: str = ""
    makes_root: bool = False

    @property
    def log(self) -> tuple[str, str]:
        """The log that relies on the trees: the store's name and the session's id."""
        scope = f"#{self.scope}" if self.scope else ""
        return f"{self.store_id or self.store}{scope}", self.session_id

    def is_of(self, store: Store) -> bool:
        """Whether it belongs to a store, wherever that is now."""
        known = self.store_id == unwrapped(store).id if self.store_id else self.store == store.url
        return known and self.scope == store.scope

    def encoded(self) -> bytes:
        """The journal as bytes."""
        return _encode(self)

    def outcome(self, after: bytes) -> list[NewEvent]:
        """The events, the first with the trees around the restore, and whose changes went."""
        first = self.events[0]
        data = {**first.data, "files": {"before": self.before.hex(), "after": after.hex()}}
        if self.workspace:
            data["workspace"] = self.workspace
        if self.makes_root:
            data[MADE_ROOT] = True
        if self.plan.took:
            data["took_back"] = [list(span) for span in self.plan.took]
        return [kept(NewEvent(first.kind, data, first.id, first.follows), self.plan),
                *self.events[1:]]  # fmt: skip


def kept(event: NewEvent, plan: Plan) -> NewEvent:
    """The event with the paths that a plan leaves as conflicts."""
    names: list[Json] = [shown(step.path) for step in plan.conflicts]
    if not names:
        return event
    return NewEvent(event.kind, {**event.data, KEPT: names}, event.id, event.follows, event.ts)


_encode = msgspec.msgpack.Encoder().encode


def decoded(content: bytes) -> Journal:
    """The journal that `encoded` gave; `Damaged` if it is none."""
    # No decoder is kept: most processes meet no journal, and it needs all that a plan is made of.
    decode: Callable[[bytes], Journal] = partial(msgspec.msgpack.decode, type=Journal)
    return checks.decoded(decode, content, "the journal of a restore")


def record(journal: Journal, after: bytes, store: Store | None) -> bool:
    """Append the events of a restore that is finished now, to the store it belongs to.

    They are on the disk when this returns, so that the journal may go. False if that store is
    not where it was, and no log can be written.
    """
    events = journal.outcome(after)
    if store is not None and journal.is_of(store):
        _append(store, journal, events)
        return True
    try:
        other = open_store(journal.store, scope=journal.scope, create=False)
    except NotFound:
        return False
    with other:
        if not journal.is_of(other):
            return False
        _append(other, journal, events)
    return True


def _append(store: Store, journal: Journal, events: list[NewEvent]) -> None:
    try:
        store.append(journal.session_id, events)
        store.flush()
    except NotFound:
        # The session was deleted meanwhile: there is no log to write.
        return
