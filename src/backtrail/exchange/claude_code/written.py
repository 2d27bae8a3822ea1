"""Lines of a Claude Code transcript to be written: old ones under new names, and new ones. Pure.

A transcript that is written anew is one chain: every line names the one before it, also
where the old one was a tree. Fields that are not understood stay as they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...events import Json, now
from ...events.calls import INTERRUPTED, answers_in, calls_in
from ..shapes import inner, object_in, text_in

VERSION = "2.1.325"
"""The version of Claude Code whose format this is."""

_DROPPED = ("requestRef", "forkedFrom", "agentId", "agentName", "teamName", "slug")
_SPOKEN = (
    *("type", "subtype", "uuid", "parentUuid", "timestamp", "message", "attachment", "content"),
    *("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "isApiErrorMessage", "level"),
    *("compactMetadata", "requestId", "userType"),
)
_SHOWN = ("file", "edited_text_file", "directory", "selected_lines_in_ide")
_REFERRING = ("sourceToolAssistantUUID", "logicalParentUuid", "sourceToolUseUUID")


def spoken_alone(line: Mapping[str, Json]) -> dict[str, Json] | None:
    """A stranger's line with nothing but what the model is shown; None where that is nothing.

    Other fields act: they name files to be put back, folders to write in, rights to be had.
    """
    kind, attachment = line.get("type"), line.get("attachment")
    if kind == "attachment":
        shown = inner(attachment, "type") in _SHOWN
    else:
        boundary = kind == "system" and line.get("subtype") == "compact_boundary"
        shown = boundary or kind in ("user", "assistant")
    return {name: line[name] for name in _SPOKEN if name in line} if shown else None


@dataclass(slots=True)
class Chain:
    """A transcript under way: what every line says, and the line before."""

    session_id: str
    cwd: str
    branch: str
    version: str = VERSION
    model: str = "unknown"
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    lines: list[dict[str, Json]] = field(default_factory=list)
    last: str | None = None
    _names: dict[str, str] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _response: Json = None
    _turns: int = 0
    _before: int = 0

    def expect(self, uuids: Iterable[str]) -> None:
        """Give new names to lines that will be copied: some are referred to before they come."""
        for old in uuids:
            self._names.setdefault(old, self.new_id())

    def copy(self, line: Mapping[str, Json]) -> None:
        """An old line, under new names; results that are missing come before it."""
        message = line.get("message")
        if isinstance(message, Mapping):
            self._settle(message)
        fresh = self._names.get(str(line.get("uuid"))) or self.new_id()
        made = {name: value for name, value in line.items() if name not in _DROPPED}
        made |= {"parentUuid": self.last, "isSidechain": False, "uuid": fresh}
        made |= {"sessionId": self.session_id, "cwd": self.cwd}
        if isinstance(position := line.get("turnPosition"), Mapping):
            made["turnPosition"] = self._counted(position)
        for name in _REFERRING:
            if name in line:
                # What is not there any more is not referred to.
                made[name] = self._names.get(str(line[name]))
        if line.get("subtype") == "compact_boundary":
            made |= {"parentUuid": None, "logicalParentUuid": self.last}
            made["compactMetadata"] = self._renamed(line.get("compactMetadata"))
        self._add(made)

    def _counted(self, position: Mapping[str, Json]) -> dict[str, Json]:
        """Which turn a line is of, in this chain. One that began another conversation goes on here.

        With the number of a first turn, it would say that nothing was before it.
        """
        numbers = {name: n for name, n in position.items() if type(n) is int}
        turn = numbers.get("turnIndex", 0)
        if turn == 1 and self._turns > 1:
            self._before = self._turns
        self._turns = max(self._turns, turn + self._before)
        return {**position, **{name: n + self._before for name, n in numbers.items()}}

    def say(self, message: Mapping[str, Json], ts: str) -> None:
        """A message of an Anthropic conversation, as a new line."""
        self._settle(message)
        kind = "assistant" if message.get("role") == "assistant" else "user"
        content = message.get("content")
        given: dict[str, Json] = {"role": kind, "content": content}
        if kind == "assistant":
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            called = any(inner(block, "type") == "tool_use" for block in blocks or ())
            given |= {
                "id": message.get("id") or f"msg_{self.new_id().replace('-', '')[:24]}",
                "type": "message",
                "model": message.get("model") or self.model,
                "content": blocks,
                "stop_reason": message.get("stop_reason") or ("tool_use" if called else "end_turn"),
                "stop_sequence": message.get("stop_sequence"),
                "usage": object_in(message, "usage") or _NO_USAGE,
            }
        self._add(self._around(kind, ts) | {"message": given})

    def compact(self, summary: str, ts: str) -> None:
        """A compaction: the mark, and the summary."""
        about = {"trigger": "auto", "preTokens": 0}
        mark = self._around("system", ts)
        mark |= {"parentUuid": None, "logicalParentUuid": self.last, "level": "info"}
        mark |= {"subtype": "compact_boundary", "content": "Conversation compacted"}
        self._add(mark | {"isMeta": False, "compactMetadata": about})
        words = {"message": {"role": "user", "content": summary}}
        shown = {"isVisibleInTranscriptOnly": True, "isCompactSummary": True}
        self._add(self._around("user", ts) | words | shown)

    def end(self, title: str | None) -> Iterator[dict[str, Json]]:
        """All lines, with a result for every call, and the title."""
        self._settle({})
        yield from self.lines
        if title:
            yield {"type": "custom-title", "customTitle": title, "sessionId": self.session_id}

    def _around(self, kind: str, ts: str) -> dict[str, Json]:
        return {
            "parentUuid": self.last, "isSidechain": False, "userType": "external", "cwd": self.cwd,
            "sessionId": self.session_id, "version": self.version, "gitBranch": self.branch,
            "type": kind, "uuid": self.new_id(), "timestamp": ts,
        }  # fmt: skip

    def _add(self, line: dict[str, Json]) -> None:
        message = line.get("message")
        if isinstance(message, Mapping):
            self._open |= {call.id for call in calls_in(message)}
            self._open -= answers_in(message)
            self._response = message.get("id")
        self.last = str(line["uuid"])
        self.lines.append(line)

    def _settle(self, message: Mapping[str, Json]) -> None:
        """Answer calls that nothing answered, before something else is said."""
        more = message.get("role") == "assistant" and message.get("id") == self._response
        if not self._open or (more and self._response) or answers_in(message):
            return
        results = [
            {"type": "tool_result", "tool_use_id": id, "content": INTERRUPTED, "is_error": True}
            for id in sorted(self._open)
        ]
        line = self._around("user", text_in(self.lines[-1], "timestamp") or now())
        self._add(line | {"message": {"role": "user", "content": results}})

    def _renamed(self, value: Json) -> Json:
        """Uuids that are known under their new names, wherever they are."""
        if isinstance(value, str):
            return self._names.get(value, value)
        if isinstance(value, list):
            return [self._renamed(item) for item in value]
        if isinstance(value, Mapping):
            return {name: self._renamed(item) for name, item in value.items()}
        return value


_NO_USAGE = {"input_tokens": 0, "output_tokens": 0}
