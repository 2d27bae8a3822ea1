"""`BacktrailStore`: LangGraph's long-term memory as a log of what was put and deleted.

Everything is in one session of the store. What was read is remembered, and each call first
reads what was appended since, so that several processes see what the others put.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ...errors import AlreadyExists, InvalidData, Unsupported
from ...events import Event, NewEvent, SessionInfo, new_id
from ...session import threads
from ...stores.base import Store
from .. import Place, needs
from .codec import fresh, is_plain

with needs("langgraph"):
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
    )

PUT = "langgraph.item"
KEY = "langgraph-store"

_Name = tuple[tuple[str, ...], str]


class BacktrailStore(BaseStore):
    """Items by namespace and key. Search by meaning is `Unsupported`; filters are not."""

    def __init__(self, store: Store | str | None = None) -> None:
        self._place = Place(store)
        self.store = self._place.store
        self._lock = threading.RLock()
        self._head = 0
        self._items: dict[_Name, Item] = {}
        self._session_id = ""

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._place.close()

    # --- the log -----------------------------------------------------------------------------

    def _session(self) -> str:
        if not self._session_id:
            found = self.store.sessions(key=KEY, limit=1)
            if not found:
                try:
                    info = SessionInfo(id=new_id(), key=KEY, title="LangGraph's memory")
                    self.store.create(info)
                except AlreadyExists:
                    pass
                found = self.store.sessions(key=KEY, limit=1)
            self._session_id = found[0].id
        return self._session_id

    def _refresh(self) -> None:
        for event in self.store.read(self._session(), after=self._head):
            self._note(event)

    def _note(self, event: Event) -> None:
        self._head = event.seq
        data = event.data
        if event.kind != PUT or "key" not in data:
            return
        name = tuple(data["namespace"]), data["key"]
        before = self._items.pop(name, None)
        if data["value"] is not None:
            at = datetime.fromisoformat(event.ts)
            made = at if before is None else before.created_at
            self._items[name] = Item(
                namespace=name[0], key=name[1], value=data["value"], created_at=made, updated_at=at
            )

    # --- operations --------------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations: first those that look, then all that put, as one batch."""
        operations = list(ops)
        puts: dict[_Name, NewEvent] = {}
        with self._lock:
            self._refresh()
            results: list[Result] = [self._look(op) for op in operations]
            for op in operations:
                if isinstance(op, PutOp):
                    puts[op.namespace, op.key] = _put(op)
            if puts:
                for event in self.store.append(self._session(), [*puts.values()]):
                    if event.seq == self._head + 1:
                        self._note(event)
                self._refresh()
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch`, in a worker thread."""
        return await threads.run(self.batch, list(ops))

    def _look(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            item = self._items.get((op.namespace, op.key))
            return None if item is None else _copied(item)
        if isinstance(op, SearchOp):
            if op.query:
                raise Unsupported("this store searches by namespace and filter, not by meaning")
            found = [item for item in self._within(op.namespace_prefix) if _fits(item, op.filter)]
            return [_found(item) for item in found[op.offset : op.offset + op.limit]]
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        return None

    def _within(self, prefix: tuple[str, ...]) -> Iterator[Item]:
        count = len(prefix)
        return (item for (space, _), item in self._items.items() if space[:count] == prefix)

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        spaces = {space for space, _ in self._items if all(_matches(c, space) for c in conditions)}
        if op.max_depth is not None:
            spaces = {space[: op.max_depth] for space in spaces}
        return sorted(spaces)[op.offset : op.offset + op.limit]


def _put(op: PutOp) -> NewEvent:
    value = None if op.value is None else dict(op.value)
    if not is_plain(value):
        raise InvalidData(f"the value of `{op.key}` is no JSON: an item holds what JSON can say")
    data = {"namespace": [*op.namespace], "key": op.key, "value": value}
    return NewEvent(PUT, data)


def _copied(item: Item) -> Item:
    return Item(
        namespace=item.namespace, key=item.key, value=fresh(item.value),
        created_at=item.created_at, updated_at=item.updated_at,
    )  # fmt: skip


def _found(item: Item) -> SearchItem:
    return SearchItem(
        namespace=item.namespace, key=item.key, value=fresh(item.value),
        created_at=item.created_at, updated_at=item.updated_at,
    )  # fmt: skip


def _matches(condition: MatchCondition, space: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    part = space[: len(path)] if condition.match_type == "prefix" else space[-len(path) :]
    return len(part) == len(path) and all(
        one in ("*", other) for one, other in zip(path, part, strict=True)
    )


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda a, b: bool(a == b),
    "$ne": lambda a, b: bool(a != b),
    "$gt": lambda a, b: float(a) > float(b),
    "$gte": lambda a, b: float(a) >= float(b),
    "$lt": lambda a, b: float(a) < float(b),
    "$lte": lambda a, b: float(a) <= float(b),
}


def _fits(item: Item, filter: Mapping[str, Any] | None) -> bool:
    return all(_is_so(item.value.get(key), wanted) for key, wanted in (filter or {}).items())


def _is_so(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and any(key.startswith("$") for key in wanted):
        for name, other in wanted.items():
            if name not in _COMPARISONS:
                raise ValueError(f"{name} is no comparison: use {', '.join(_COMPARISONS)}")
            if value is None and name not in ("$eq", "$ne"):
                return False
            if not _COMPARISONS[name](value, other):
                return False
        return True
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(_is_so(value.get(k), w) for k, w in wanted.items())
    return bool(value == wanted)
