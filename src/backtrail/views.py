"""What a session shows: messages out of events, and the results its verbs return. Pure."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

import msgspec

from .calls import ToolCall, answers_in, calls_in, repair
from .events import MESSAGE_KINDS, Event, Format, Json
from .messages import format_of

_SPEAKER = {"system_message": "system", "user_message": "user", "assistant_message": "assistant"}


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a rewind does to one path. `insertions` and `deletions` are lines."""

    path: str
    action: str
    reason: str = ""
    insertions: int = 0
    deletions: int = 0


@dataclass(frozen=True, slots=True)
class Rewind:
    """What a rewind, undo or redo did, or with `applied=False` would do.

    `anchor` is the event the session continues from (0: its very beginning),
    `events_dropped` what left the history, `message_count` what is in it now. `files` has
    one entry for each path that is looked at, `conflicts` those of them that stay because
    somebody else changed them; `warnings` say what cannot be undone.
    """

    applied: bool
    anchor: int
    events_dropped: int
    message_count: int
    files: list[FileChange] = field(default_factory=list)
    conflicts: list[FileChange] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def files_changed(self) -> list[str]:
        """The paths that change."""
        return [file.path for file in self.files if file.action not in ("skip", "conflict")]

    @property
    def insertions(self) -> int:
        """Lines added, over all files."""
        return sum(file.insertions for file in self.files if file.action != "conflict")

    @property
    def deletions(self) -> int:
        """Lines removed, over all files."""
        return sum(file.deletions for file in self.files if file.action != "conflict")

    def to_dict(self) -> dict[str, Json]:
        """The result as JSON, with `can_rewind` and `error` for those who expect them."""
        row: dict[str, Json] = msgspec.to_builtins(self)
        row["files_changed"] = self.files_changed
        row["insertions"] = self.insertions
        row["deletions"] = self.deletions
        row["can_rewind"] = True
        row["error"] = None
        return row


@dataclass(frozen=True, slots=True)
class State:
    """Everything a loop needs to go on with a session."""

    session_id: str
    messages: list[dict[str, Json]]
    usage: dict[str, int]
    turn_count: int
    pending: list[ToolCall]

    def to_dict(self) -> dict[str, Json]:
        """The state as JSON."""
        row: dict[str, Json] = msgspec.to_builtins(self)
        return row


def is_pinned(event: Event) -> bool:
    """Whether an event holds the session's system prompt."""
    return event.kind == "system_message" and event.data.get("pinned") is True


def conversation(newest_first: Iterable[Event]) -> list[tuple[dict[str, Json], Format]]:
    """The messages of a history given newest first, each with its format, oldest first.

    Of several pinned system prompts the newest counts, and stands in front.
    """
    # JSON holds no cycles. Looking for some, again and again while a hundred thousand
    # messages come in, takes as long as decoding them.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _conversation(newest_first)
    finally:
        if collecting:
            gc.enable()


def _conversation(newest_first: Iterable[Event]) -> list[tuple[dict[str, Json], Format]]:
    found: list[tuple[dict[str, Json], Format]] = []
    prompt: tuple[dict[str, Json], Format] | None = None
    purged = False
    for event in newest_first:
        kind = event.kind
        if kind not in _MESSAGES:
            continue
        data = event.data
        message = data.get("message")
        if not isinstance(message, dict):
            purged = True
            if kind in _SPEAKER:
                content = "[purged]" if data.get("purged") else ""
                found.append(({"role": _SPEAKER[kind], "content": content}, "openai"))
            continue
        entry = (message, _FORMATS.get(data.get("format")) or format_of(message))
        if kind == "system_message" and is_pinned(event):
            prompt = prompt or entry
        else:
            found.append(entry)
    if prompt is not None:
        found.append(prompt)
    found.reverse()
    return _without_orphans(found) if purged else found


_MESSAGES = frozenset(MESSAGE_KINDS)
_FORMATS: dict[Json, Format] = {name: name for name in get_args(Format)}


def _without_orphans(
    entries: list[tuple[dict[str, Json], Format]],
) -> list[tuple[dict[str, Json], Format]]:
    """Leave out results whose call was purged: no provider takes them."""
    called = {call.id for message, _ in entries for call in calls_in(message)}
    return [entry for entry in entries if answers_in(entry[0]) <= called]


def last_of(messages: list[dict[str, Json]], role: str) -> dict[str, Json] | None:
    """The last message of a role."""
    return next((m for m in reversed(messages) if m.get("role") == role), None)


def beyond(messages: list[dict[str, Json]], given: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """The part of `given` that is not in `messages` yet, if `given` begins with them.

    Frameworks hand back the whole conversation; only what is new is to be appended. What
    they were shown may be repaired, and without the system prompt.
    """
    spoken = [m for m in messages if m.get("role") not in ("system", "developer")]
    for known in (repair(messages), repair(spoken), messages, spoken):
        if known and given[: len(known)] == known:
            return given[len(known) :]
    return given


def user_message(content: str | list[Json] | Mapping[str, Json]) -> dict[str, Json]:
    """What a person said, as a message."""
    if isinstance(content, Mapping):
        return dict(content)
    return {"role": "user", "content": content}
