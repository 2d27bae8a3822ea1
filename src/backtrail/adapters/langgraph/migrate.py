"""From another checkpointer to ours: every thread, namespace, checkpoint and pending write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import needs
from .saver import BacktrailSaver

with needs("langgraph"):
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple


def import_threads(
    source: BaseCheckpointSaver[Any],
    target: BacktrailSaver,
    thread_ids: Iterable[str] | None = None,
) -> list[str]:
    """Copy threads of a saver, such as SqliteSaver; all of them, unless some are named.

    A thread that the target has already is left alone. Returns the threads that were copied.
    """
    configs: list[Any] = [None]
    if thread_ids is not None:
        configs = [{"configurable": {"thread_id": id}} for id in thread_ids]
    there = set(target.threads())
    copied: dict[str, None] = {}
    for config in configs:
        # The oldest first, so that each finds its parent.
        for found in reversed(list(source.list(config))):
            thread_id = str(found.config["configurable"]["thread_id"])
            if thread_id not in there:
                _copy(found, target)
                copied[thread_id] = None
    return list(copied)


def _copy(found: CheckpointTuple, target: BacktrailSaver) -> None:
    given = found.config["configurable"]
    parent = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    config: Any = {
        "configurable": {
            "thread_id": given["thread_id"],
            "checkpoint_ns": given.get("checkpoint_ns", ""),
        }
    }
    if parent is not None:
        config["configurable"]["checkpoint_id"] = parent
    versions = found.checkpoint["channel_versions"]
    before = target.get_tuple(config) if parent is not None else None
    known = before.checkpoint["channel_versions"] if before is not None else {}
    new = {name: version for name, version in versions.items() if known.get(name) != version}
    stored = target.put(config, found.checkpoint, found.metadata, new)
    tasks: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in found.pending_writes or ():
        tasks.setdefault(task_id, []).append((channel, value))
    for task_id, writes in tasks.items():
        target.put_writes(stored, writes, task_id)
