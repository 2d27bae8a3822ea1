"""A checkpoint as an event: what changed since another one, with a whole one now and then.

`Whole` is a checkpoint put together; `differences` says what its event holds, `resolve` puts it
together again. Items of lists are in events of their own, which a checkpoint names by number:
counted back from its own where they are of one batch, since only the store gives numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...events import Event, Json

CHECKPOINT = "langgraph.checkpoint"
WRITES = "langgraph.writes"
ITEMS = "langgraph.items"
DROPPED = "langgraph.dropped"

DEPTH = 24
"""Checkpoints that are put together out of their predecessors, at most, before a whole one."""

Ref = tuple[int, int, Json]
"""An item of a list: the number of its event, its place in that, and what is set besides."""


@dataclass(slots=True)
class Whole:
    """A checkpoint, its values encoded; lists as references to their items."""

    seq: int
    id: str
    parent: str | None
    depth: int
    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    values: dict[str, Json]
    lists: dict[str, list[Ref]]
    rest: Json
    metadata: Json
    run_id: Any = None
    spoken: list[int] = field(default_factory=list)
    early: list[int] = field(default_factory=list)


def changes(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is new or another, and what is gone."""
    absent = object()
    changed = {}
    for key, value in new.items():
        before = old.get(key, absent)
        if before != value or type(before) is not type(value):
            changed[key] = value
    return changed, [key for key in old if key not in new]


def pack(whole: Whole, base: Whole | None, kept: dict[str, int]) -> dict[str, Json]:
    """The data of a checkpoint's event. Numbers below 0 count back from its own.

    `kept` says of each list that goes on how many of the base's items it begins with.
    """
    data: dict[str, Json] = {"id": whole.id}
    if whole.parent is not None:
        data["parent"] = whole.parent
    if base is not None:
        data["base"] = base.seq
        data["depth"] = whole.depth
        versions, gone = changes(base.versions, whole.versions)
        seen, unseen = changes(base.seen, whole.seen)
        if gone:
            data["gone"] = gone
        if unseen:
            data["unseen"] = unseen
        empty = [name for name in (*base.values, *base.lists) if not _has(whole, name)]
        if empty:
            data["empty"] = empty
    else:
        versions, seen = whole.versions, whole.seen
    values = {
        name: value
        for name, value in whole.values.items()
        if base is None or base.values.get(name) is not value
    }
    lists: dict[str, Json] = {}
    for name, refs in whole.lists.items():
        before = base.lists.get(name) if base is not None else None
        if before is refs:
            continue
        keep = kept.get(name, 0) if before is not None else 0
        more = [_ref(ref) for ref in refs[keep:]]
        lists[name] = {"keep": keep, "add": more} if keep else {"add": more}
    named = {"versions": versions, "seen": seen, "values": values, "lists": lists}
    data.update((name, part) for name, part in named.items() if part)
    data["rest"], data["metadata"] = whole.rest, whole.metadata
    if whole.run_id is not None:
        data["run_id"] = whole.run_id
    if whole.spoken:
        data["spoken"] = whole.spoken
    if whole.early:
        data["early"] = whole.early
    return data


def _has(whole: Whole, name: str) -> bool:
    return name in whole.values or name in whole.lists


def _ref(ref: Ref) -> Json:
    seq, place, patch = ref
    if patch is not None:
        return [seq, place, patch]
    return seq if place < 0 else [seq, place]


def unpack(event: Event, base: Whole | None) -> Whole:
    """A checkpoint of its event and the one that this builds on."""
    data, at = event.data, event.seq

    def place(seq: int) -> int:
        return at + seq if seq < 0 else seq

    def ref(one: Json) -> Ref:
        if type(one) is int:
            return place(one), -1, None
        return place(one[0]), one[1], one[2] if len(one) > 2 else None

    versions: dict[str, Any] = dict(base.versions) if base is not None else {}
    seen: dict[str, dict[str, Any]] = dict(base.seen) if base is not None else {}
    values: dict[str, Json] = dict(base.values) if base is not None else {}
    lists: dict[str, list[Ref]] = dict(base.lists) if base is not None else {}
    for name in data.get("gone", ()):
        versions.pop(name, None)
    for name in data.get("unseen", ()):
        seen.pop(name, None)
    for name in data.get("empty", ()):
        values.pop(name, None)
        lists.pop(name, None)
    versions.update(data.get("versions", {}))
    seen.update(data.get("seen", {}))
    for name, value in data.get("values", {}).items():
        lists.pop(name, None)
        values[name] = value
    for name, one in data.get("lists", {}).items():
        values.pop(name, None)
        keep = one.get("keep", 0)
        lists[name] = [*lists.get(name, [])[:keep], *map(ref, one["add"])]
    return Whole(
        at, data["id"], data.get("parent"), data.get("depth", 0), versions, seen, values, lists,
        data.get("rest"), data.get("metadata"), data.get("run_id"),
        [place(seq) for seq in data.get("spoken", ())], list(data.get("early", ())),
    )  # fmt: skip


def settled(whole: Whole, seq: int) -> Whole:
    """A checkpoint as it is once its event has a number."""

    def place(ref: Ref) -> Ref:
        return (seq + ref[0], ref[1], ref[2]) if ref[0] < 0 else ref

    whole.seq = seq
    for name, refs in whole.lists.items():
        if any(ref[0] < 0 for ref in refs):
            whole.lists[name] = [place(ref) for ref in refs]
    whole.spoken = [seq + one if one < 0 else one for one in whole.spoken]
    return whole
