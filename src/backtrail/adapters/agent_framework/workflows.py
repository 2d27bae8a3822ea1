"""Agent Framework's checkpoint storage on a store: a session for each workflow."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException

from ...errors import InvalidData, NotFound
from ...events import Event, NewEvent
from ...session.session import Session
from ...session.threads import run
from ...stores.base import Store
from .._bridge import Bridge
from .._values import Typed, packed, unpacked

CHECKPOINT, DELETED = "agent_framework_checkpoint", "agent_framework_deleted"
"""Kinds of events: a checkpoint, and that one counts no more."""

_TAG = "agent-framework-workflow"


class BacktrailCheckpointStorage:
    """Checkpoints of workflows. A store passed in stays open.

    Nothing is pickled: values of the standard library and of the framework come back as they were,
    those of your own classes if you name these in `types`. Others are refused when they are saved.
    """

    def __init__(self, store: Store | str | None = None, *, types: Iterable[type] = ()) -> None:
        self._bridge = Bridge(store, _TAG)
        self.store = self._bridge.store
        self._types = {_name(one): one for one in types}
        self._homes: dict[str, str] = {}

    def open(self, workflow_name: str) -> Session:
        """The Backtrail session with a workflow's checkpoints."""
        return self._bridge.session(self._bridge.ensure(workflow_name, named=False))

    def close(self) -> None:
        """Let go of sessions, and of the store where it was opened here."""
        self._bridge.close()

    # --- the contract --------------------------------------------------------------------

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, in the place of one with its id; its id."""
        return await run(self._save, checkpoint)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """The checkpoint with this id; `WorkflowCheckpointException` if there is none."""
        return await run(self._load, checkpoint_id)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """A workflow's checkpoints, in the order they were saved in."""
        return await run(lambda: [self._made(event) for event in self._all(workflow_name)])

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """The ids of a workflow's checkpoints."""
        return await run(lambda: [event.data["of"] for event in self._all(workflow_name)])

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; False if there is none."""
        return await run(self._delete, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest checkpoint of a workflow by its time, or None."""
        return await run(self._latest, workflow_name)

    # --- inside --------------------------------------------------------------------------

    def _save(self, checkpoint: WorkflowCheckpoint) -> str:
        name = checkpoint.workflow_name
        try:
            row = packed(checkpoint.to_dict(), self._typed)
        except InvalidData as error:
            raise WorkflowCheckpointException(
                f"checkpoint {checkpoint.checkpoint_id} of workflow {name}: {error}"
            ) from error
        data = {"checkpoint": row, "of": checkpoint.checkpoint_id, "at": checkpoint.timestamp}
        self._bridge.ensure(name, metadata={"workflow": name}, named=False)
        id = self._bridge.find(name)
        assert id is not None
        try:
            self.store.append(id, [NewEvent(CHECKPOINT, data)])
        except NotFound:
            self._bridge.forget(name)
            raise
        self._homes[checkpoint.checkpoint_id] = name
        return checkpoint.checkpoint_id

    def _load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        for name in self._names(checkpoint_id):
            for event in self._all(name):
                if event.data["of"] == checkpoint_id:
                    self._homes[checkpoint_id] = name
                    return self._made(event)
        raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")

    def _names(self, checkpoint_id: str) -> Iterator[str]:
        """The workflows that may have a checkpoint, the likeliest first."""
        known = self._homes.get(checkpoint_id)
        if known is not None:
            yield known
        for info in self.store.sessions():
            if info.key is not None and info.key.startswith(f"{_TAG}:"):
                name = info.metadata.get("workflow")
                if isinstance(name, str) and name != known:
                    yield name

    def _all(self, workflow_name: str) -> list[Event]:
        """The events of a workflow's checkpoints as the history has them, oldest first."""
        id = self._bridge.find(workflow_name)
        if id is None:
            return []
        try:
            history = self.store.history(id)
        except NotFound:
            self._bridge.forget(workflow_name)
            return []
        found: dict[str, Event] = {}
        for event in history:
            if event.kind == CHECKPOINT and "of" in event.data:
                found[event.data["of"]] = event
            elif event.kind == DELETED:
                found.pop(str(event.data.get("of")), None)
        return list(found.values())

    def _delete(self, checkpoint_id: str) -> bool:
        for name in self._names(checkpoint_id):
            id = self._bridge.find(name)
            for event in self._all(name):
                if id is not None and event.data["of"] == checkpoint_id:
                    self.store.append(id, [NewEvent(DELETED, {"of": checkpoint_id})])
                    return True
        return False

    def _latest(self, workflow_name: str) -> WorkflowCheckpoint | None:
        found = self._all(workflow_name)
        if not found:
            return None
        return self._made(max(found, key=lambda event: datetime.fromisoformat(event.data["at"])))

    # --- values --------------------------------------------------------------------------

    def _made(self, event: Event) -> WorkflowCheckpoint:
        try:
            row = unpacked(event.data["checkpoint"], self._make)
        except InvalidData as error:
            raise WorkflowCheckpointException(
                f"checkpoint {event.data['of']} cannot be read: {error}"
            ) from error
        return WorkflowCheckpoint.from_dict(row)

    def _typed(self, value: object) -> object:
        """A value of a class by the name of that, and what it is made of."""
        cls = type(value)
        name = _name(cls)
        if name not in self._types and cls.__module__.split(".")[0] != "agent_framework":
            raise InvalidData(
                f"a {cls.__name__} is not stored without its class being named: give"
                f" `types=[{cls.__name__}]`"
            )
        if isinstance(value, Enum):
            return Typed(name, value.value)
        if is_dataclass(value):
            return Typed(name, {one.name: getattr(value, one.name) for one in fields(value)})
        return Typed(name, dict(vars(value)))

    def _make(self, name: str, value: Any) -> Any:
        """The value again: of a class of the framework, or of one that was named."""
        cls = self._types.get(name) or _of_framework(name)
        if issubclass(cls, Enum):
            return cls(value)
        made = cls.__new__(cls)
        for field, held in value.items():
            object.__setattr__(made, field, held)
        return made


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _of_framework(name: str) -> type:
    """A class of the framework itself; no other is looked up by a stored name."""
    module, _, path = name.partition(":")
    if module.split(".")[0] != "agent_framework":
        raise InvalidData(f"it holds a {name}, which is not named in `types`")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise InvalidData(f"it holds a {name}, which the framework does not have")
    return found
