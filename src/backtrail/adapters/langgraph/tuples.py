"""Checkpoints as LangGraph has them, put together of what a line has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from ...errors import BacktrailError, Damaged
from .. import needs
from .codec import Codec
from .deltas import Ref, Whole
from .line import Line

with needs("langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, writes_sort_key

PAGE = 16
"""Checkpoints of a list from which on the line is gone through as a whole."""


def as_tuple(
    codec: Codec, line: Line, whole: Whole, writes: Sequence[Any], known: dict[int, Any]
) -> CheckpointTuple:
    """A checkpoint as the framework has it; nothing of it is shared with what is remembered."""
    try:
        checkpoint = {
            **codec.decode(whole.rest),
            "id": whole.id,
            "channel_values": _values(line, codec, whole, known),
            "channel_versions": dict(whole.versions),
            "versions_seen": {node: dict(seen) for node, seen in whole.seen.items()},
        }
        metadata = codec.decode(whole.metadata)
        pending = _pending(codec, writes)
    except BacktrailError as error:
        raise Damaged(f"{line.name}, checkpoint `{whole.id}`: {error}") from error
    except Exception as error:
        raise Damaged(
            f"{line.name}, checkpoint `{whole.id}`: a value cannot be read: {error}"
        ) from error
    parent = None
    if whole.parent is not None:
        parent = config_of(line.thread_id, line.ns, whole.parent)
    return CheckpointTuple(
        config=config_of(line.thread_id, line.ns, whole.id),
        checkpoint=cast(Checkpoint, checkpoint),
        metadata=metadata,
        parent_config=parent,
        pending_writes=pending,
    )


def _values(line: Line, codec: Codec, whole: Whole, known: dict[int, Any]) -> dict[str, Any]:
    values = {name: codec.decode(value) for name, value in whole.values.items()}
    if whole.lists:
        wanted: list[Ref] = [ref for refs in whole.lists.values() for ref in refs]
        found = line.items(wanted, known)
        for name, refs in whole.lists.items():
            values[name] = codec.listed(refs, found)
    return values


def _pending(codec: Codec, writes: Sequence[Any]) -> list[tuple[str, str, Any]]:
    """What tasks wrote: the first of its place, of special channels the last."""
    found: dict[tuple[str, int], tuple[str, str, Any]] = {}
    for data in writes:
        for number, channel, value in data["writes"]:
            name = (data["task"], number)
            if name not in found or data.get("replaces"):
                found[name] = (data["path"], channel, value)
    order = sorted(found, key=lambda name: writes_sort_key(found[name][0], *name))
    return [(name[0], found[name][1], codec.decode(found[name][2])) for name in order]


def listed(
    codec: Codec, wanted: Sequence[tuple[str, Line, int]], filter: dict[str, Any], limit: int | None
) -> Iterator[CheckpointTuple]:
    """Those of these checkpoints that a filter of metadata leaves; no lock is held between."""
    many = limit is None or limit > PAGE
    writes: dict[int, dict[str, Any]] = {}
    known: dict[int, dict[int, Any]] = {}
    left = len(wanted) if limit is None else limit
    for _, line, seq in wanted:
        if left <= 0:
            return
        with line.lock:
            whole = line.whole(seq)
            if filter:
                about = codec.decode(whole.metadata)
                if any(about.get(key) != value for key, value in filter.items()):
                    continue
            if many and id(line) not in writes:
                writes[id(line)] = line.all_writes()
            pending = writes[id(line)].get(whole.id, []) if many else line.writes(whole)
        left -= 1
        yield as_tuple(codec, line, whole, pending, known.setdefault(id(line), {}))


def config_of(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    """The config that names a checkpoint."""
    given = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
    return {"configurable": given}
