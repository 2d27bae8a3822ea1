"""A session as a document: what people read, whatever the provider. HTML and Markdown are
made of it.

A document is a list of entries in the order of the history. Calls hold their results, and
the subagents that they started; turns end with what they did to the files. All text in it
went through the masking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from ...events import MESSAGE_KINDS, Event, Json, SessionInfo
from ...events.calls import calls_in
from ...events.history import NOTED
from ...files.contents.collect import has_contents, opened
from ...files.differences import FileDiff
from ...formats.secrets import Masking
from ...session.filepoints import author_of, changes_by_turn
from ...session.uncaptured import Row, missing_in, whole
from ...stores.base import Store, checkpoint_of
from .parts import Answer, Call, Part, Words, answers_of, parts_of, pretty

Speaker = Literal["system", "user", "assistant", "tool", "note"]


@dataclass(slots=True)
class Entry:
    """One thing in a session: a message, or something that happened."""

    seq: int
    ts: str
    speaker: Speaker
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Changes:
    """What one call, or somebody else, did to the files; `told` is what could not be seen.

    `is_shown`: the event has a place in the document.
    """

    seq: int
    by: str
    is_shown: bool
    files: list[FileDiff] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Turn:
    """A prompt and what followed; `seq` 0 is before the first."""

    seq: int
    entries: list[Entry] = field(default_factory=list)
    changes: list[Changes] = field(default_factory=list)


@dataclass(slots=True)
class Subagent:
    """The log of a subagent."""

    name: str
    title: str
    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class Document:
    """A session to be read. `left_out` counts messages that were taken back."""

    info: SessionInfo
    turns: list[Turn] = field(default_factory=list)
    subagents: list[Subagent] = field(default_factory=list)
    left_out: int = 0
    not_captured: list[Row] = field(default_factory=list)


def document_of(store: Store, session_id: str, masking: Masking) -> Document:
    """The session as it stands: its history, and the files of its turns."""
    info = store.info(session_id)
    shown = _Writing(store, session_id, masking)
    document = shown.document(msgspec.convert(masking.json(info.to_dict()), SessionInfo))
    rows = masking.json([list(row) for row in whole(store, info)])
    document.not_captured = [(path, reason, size) for path, reason, size in rows]
    return document


class _Writing:
    """Makes one document."""

    def __init__(self, store: Store, session_id: str, masking: Masking) -> None:
        self._store = store
        self._id = session_id
        self._masking = masking
        self._open: dict[str, Call] = {}
        self._changes: dict[int, list[FileDiff]] = {}
        self._subagents: dict[str, Subagent] = {}

    def document(self, info: SessionInfo) -> Document:
        """All of it."""
        self._read_changes()
        self._read_subagents()
        document = Document(info)
        turn = Turn(0)
        live = self._store.history(self._id)
        for event in live:
            data = self._masking.json(event.data)
            if event.kind == "user_message":
                document.turns.append(turn)
                turn = Turn(event.seq)
                self._open.clear()
            entry = self._entry(event, data)
            if entry is not None:
                turn.entries.append(entry)
            shown = entry is not None or event.kind == "tool_result"
            changes = self._changes_of(event, data, shown)
            if changes is not None:
                turn.changes.append(changes)
        document.turns = [t for t in (*document.turns, turn) if t.entries or t.changes]
        # Those that no call asked for; their calls may have been taken back.
        document.subagents = list(self._subagents.values())
        known = {event.seq for event in live}
        for event in self._store.read(self._id, kinds=MESSAGE_KINDS):
            document.left_out += event.seq not in known
            # What a hook noted is told again, and not left out.
            document.left_out -= NOTED in event.data
        return document

    # --- files -----------------------------------------------------------------------------

    def _read_changes(self) -> None:
        if not has_contents(self._store):
            return
        with opened(self._store) as depot:
            for turn in changes_by_turn(self._store, self._id, depot.blobs.get):
                for call in turn.calls:
                    self._changes[call.seq] = call.files

    def _changes_of(self, event: Event, data: Mapping[str, Json], shown: bool) -> Changes | None:
        files = data.get("files")
        if not isinstance(files, Mapping):
            return None
        changes = Changes(event.seq, author_of(replace(event, data=dict(data))), shown)
        for diff in self._changes.get(event.seq, ()):
            masked = self._masking.json(msgspec.to_builtins(diff))
            changes.files.append(msgspec.convert(masked, FileDiff))
        masked = replace(event, data=dict(data))
        changes.told += [f"not captured: {one.row_text}" for one in missing_in(masked)]
        paths = files.get("uncertain")
        if isinstance(paths, list) and paths:
            changes.told.append(f"perhaps by somebody else: {', '.join(map(str, paths))}")
        return changes if changes.files or changes.told else None

    # --- subagents -------------------------------------------------------------------------

    def _read_subagents(self) -> None:
        """Each is found again by the id of the call that started it, else by its own name."""
        found: list[tuple[str, Subagent, list[tuple[Event, Json]]]] = []
        for log in self._store.logs(self._id):
            if log.startswith("subagents/"):
                events = [
                    (event, self._masking.json(event.data))
                    for event in self._store.read(self._id, log=log)
                ]
                name = log.removeprefix("subagents/")
                starts = [data for event, data in events if event.kind == "start"]
                start: Mapping[str, Json] = starts[0] if starts else {}
                title = start.get("description") or start.get("prompt") or name
                agent = Subagent(name, str(title).partition("\n")[0])
                call = start.get("call")
                found.append((call if isinstance(call, str) else f"log {name}", agent, events))
        # All must be known before the first is filled: one may have started another.
        self._subagents = {call: agent for call, agent, _ in found}
        for _, agent, events in found:
            self._open.clear()
            agent.entries = [e for e in (self._side_entry(*one) for one in events) if e]
        self._open.clear()

    def _side_entry(self, event: Event, data: Mapping[str, Json]) -> Entry | None:
        if isinstance(data.get("message"), Mapping):
            return self._message(event, data, main=False)
        if event.kind == "result" and data.get("ok") is False:
            return _note(event, f"failed: {data.get('error')}")
        return None

    # --- entries ---------------------------------------------------------------------------

    def _entry(self, event: Event, data: Mapping[str, Json]) -> Entry | None:
        if data.get("purged") is True:
            return _note(event, "purged")
        if event.kind in MESSAGE_KINDS:
            return self._message(event, data, main=True)
        if event.kind == "action":
            call = Call("", str(data.get("name")), pretty(data.get("input")))
            result = data.get("result")
            if result is not None or data.get("error"):
                call.answer = Answer(event.seq, pretty(result), failed=data.get("error") is True)
            if data.get("name") == "turn" and call.answer is None:
                return None
            return Entry(event.seq, event.ts, "tool", [call])
        told = _told(event, data)
        return _note(event, told) if told else None

    def _message(self, event: Event, data: Mapping[str, Json], *, main: bool) -> Entry | None:
        message = data.get("message")
        if not isinstance(message, Mapping):
            return _note(event, "a message that cannot be shown")
        entry = Entry(event.seq, event.ts, _speaker(event, message), list(parts_of(message)))
        calls = {call.id for call in calls_in(message)}
        for part in entry.parts:
            if isinstance(part, Call):
                part.subagent = self._subagents.pop(part.id, None)
                if part.id in calls:
                    self._open[part.id] = part
        placed: list[Answer] = []
        for id, answer in answers_of(event.seq, message):
            call = self._open.pop(id, None)
            if call is not None:
                call.answer = answer
                placed.append(answer)
            else:
                entry.parts.append(Call(id, "result", "", answer))
        if entry.parts:
            return entry
        if placed and main:
            placed[0].is_event = True
        return None


def _speaker(event: Event, message: Mapping[str, Json]) -> Speaker:
    known: dict[str, Speaker] = {
        "system_message": "system",
        "user_message": "user",
        "assistant_message": "assistant",
        "tool_result": "tool",
    }
    if event.kind in known:
        return known[event.kind]
    roles: dict[Json, Speaker] = {"system": "system", "user": "user", "tool": "tool"}
    role = message.get("role")
    return roles.get(role, "assistant") if isinstance(role, str) else "assistant"


def _note(event: Event, text: str) -> Entry:
    return Entry(event.seq, event.ts, "note", [Words(text)])


def _told(event: Event, data: Mapping[str, Json]) -> str | None:
    """What is said about an event that is no message; None where nobody needs to know."""
    kind = event.kind
    if kind in ("session_start", "session_resume", "files_changed", "subagent_usage"):
        return None
    if kind == "checkpoint":
        label = checkpoint_of(event, "").label
        return f"checkpoint: {data.get('label')}" if label else None
    if kind in ("rewound", "undone", "redone"):
        back = f", back to event {event.follows}" if event.follows is not None else ""
        dropped = data.get("events_dropped")
        return f"{kind}{back}" + (f", {dropped} left behind" if dropped else "")
    if kind == "turn_end":
        reason = data.get("reason")
        if reason == "end_turn":
            return None
        return f"the turn ended: {reason}" + (f" ({data['error']})" if data.get("error") else "")
    if kind == "session_end":
        return f"the session ended: {data.get('reason')}"
    if kind == "compaction":
        return "the conversation up to here was summed up:\n" + "\n".join(_words(data))
    if kind == "lost":
        return "an event was lost"
    return f"{kind}: {pretty(dict(data))}"


def _words(data: Mapping[str, Json]) -> Iterator[str]:
    summary = data.get("summary")
    if isinstance(summary, Mapping):
        for part in parts_of(summary):
            if isinstance(part, Words):
                yield part.text
