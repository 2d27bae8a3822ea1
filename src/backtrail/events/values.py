"""Values beside the events: what is known of a session, messages, checkpoints, damage."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .._startup.frozen import dataclass, field

Json = Any
"""A value JSON can hold: None, bool, int, float, str, list or dict of these.

For type checkers it is anything, so that `event.data["message"]["content"]` needs no narrowing.
What is no such value has a type of its own.
"""


class AsDict:
    """A data type that can be had as JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Json]:
        """The value as JSON: a dictionary with a key for each field."""
        row: dict[str, Json] = msgspec.to_builtins(self, enc_hook=dict)
        return row


@dataclass(frozen=True, slots=True)
class SessionInfo(AsDict):
    """What is known about a session without reading its messages.

    `head`, the counts, `usage`, `cost_usd`, `exit_reason` and `updated_at` are folded
    from the log; a store ignores them in `create`. `cost_usd` is None while no event
    states a cost. `cwd` is where the agent ran, `root` the workspace: a folder above it, or
    `cwd` itself where none is given.
    """

    id: str
    key: str | None = None
    scope: str = ""
    parent_id: str | None = None
    relation: Literal["fork", "subagent"] | None = None
    fork_seq: int | None = None
    title: str | None = None
    cwd: str | None = None
    root: str | None = None
    model: str | None = None
    agent_name: str | None = None
    created_at: str = ""
    updated_at: str = ""
    head: int = 0
    message_count: int = 0
    turn_count: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    exit_reason: str | None = None
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Json] = field(default_factory=dict)


UPDATABLE_FIELDS = ("key", "title", "cwd", "root", "model", "agent_name", "tags", "metadata")
"""The fields `Store.update` accepts."""

_LASTING = ("id", "scope", "parent_id", "relation", "fork_seq", "created_at")

STORED_FIELDS = tuple(n for n in SessionInfo.__slots__ if n in (*_LASTING, *UPDATABLE_FIELDS))
"""The fields of `SessionInfo` that cannot be derived from the log."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message in the common shape; providers' own dictionaries are taken as they are."""

    role: str
    content: Json = ""
    name: str | None = None
    tool_calls: list[dict[str, Json]] | None = None
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Json]:
        """The message as a provider takes it, without the fields that are not set."""
        row: dict[str, Json] = {"role": self.role, "content": self.content}
        for name in ("name", "tool_calls", "tool_call_id"):
            value = getattr(self, name)
            if value is not None:
                row[name] = value
        return row


@dataclass(frozen=True, slots=True)
class Checkpoint(AsDict):
    """A point in a session one can go back to: an event, and the files at that moment.

    `id` names the checkpoint itself, `seq` the event it points at.
    """

    id: str
    seq: int
    label: str | None = None
    tree: str | None = None
    metadata: dict[str, Json] = field(default_factory=dict)
    ts: str = ""
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Problem(AsDict):
    """Damage or failure, reported and never hidden.

    `offset` and `length` are bytes in the log's file, where there is one. `count` is the
    number of lines or events concerned, `seqs` those known to be missing.
    """

    session_id: str
    log: str
    what: str
    detail: str = ""
    offset: int | None = None
    length: int | None = None
    count: int = 1
    seqs: tuple[int, ...] = ()
