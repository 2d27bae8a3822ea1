"""One event as people read it, whatever its kind and the format of its message. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ..._startup.frozen import dataclass, field, replace
from ...errors import InvalidData
from ...events import MESSAGE_KINDS, Event, Json
from ...events.calls import ToolCall
from ...events.history import BACK, spent
from ...events.messages import kind_of, speech_of, text_of
from ...events.operations import TURN
from ...formats.parts import (
    Answer,
    Aside,
    Picture,
    Text,
    Thought,
    answer,
    answers_of,
    pretty,
    shown_in,
    words,
)
from ...session.filepoints import author_of
from ...session.uncaptured import Missing, missing_in, row_dict

if TYPE_CHECKING:
    from ...files.differences import FileDiff

Speaker = Literal["system", "user", "assistant", "tool", "note"]

_SPEAKERS: dict[str, Speaker] = {
    "system_message": "system",
    "user_message": "user",
    "assistant_message": "assistant",
    "message": "assistant",
    "tool_result": "tool",
    "action": "tool",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, with its answer and the subagent that it started.

    `anchor` is the event of the answer, where that has no other place in a document, else 0.
    """

    id: str
    name: str
    arguments: Json = None
    answer: Answer | None = None
    subagent: Subagent | None = None
    anchor: int = 0

    def to_dict(self) -> dict[str, Json]:
        """What was called, as JSON."""
        return ToolCall(self.id, self.name, self.arguments).to_dict()


Part = Text | Thought | Picture | Aside | Call


@dataclass(frozen=True, slots=True)
class Step:
    """One event: what was said, thought, called, answered, and done to files.

    `note` is what an event that is no message says, on a line; `sentence` is the same for a
    document, empty where a document says nothing. `loose` are the answers whose call is not in
    the turn. `at` is the event where a document shows this one, 0 if it does not; an action that
    is `folded` is shown at the call of a message that it carried out.
    """

    seq: int
    id: str
    ts: str
    kind: str
    parts: tuple[Part, ...] = ()
    answers: tuple[Answer, ...] = ()
    loose: tuple[Answer, ...] = ()
    note: str = ""
    sentence: str = ""
    name: str | None = None
    by: str = ""
    error: bool = False
    at: int = 0
    folded: bool = False
    files: list[FileDiff] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    perhaps: list[str] = field(default_factory=list)
    """Those of the files that are perhaps not its own."""
    uncertain: list[str] = field(default_factory=list)
    """Paths that a person may have saved meanwhile."""
    part: bool = False
    """Whether it is what a call did so far, which went on in another event."""

    @property
    def speaker(self) -> Speaker:
        """The voice that says it in a document."""
        return "note" if self.sentence else _SPEAKERS.get(self.kind, "note")

    @property
    def stands(self) -> bool:
        """Whether a document has an entry for it; else it is shown elsewhere, or not at all."""
        own = self.parts or self.loose or self.sentence
        return bool(own) and self.at == self.seq and not self.folded

    @property
    def text(self) -> str:
        """What is said, answered or noted, without calls and thoughts."""
        said = [one.text for one in self.answers] if self.kind != "action" else []
        for part in self.parts:
            if isinstance(part, Picture):
                said.append(f"[{part.media_type}]")
            elif isinstance(part, (Text, Aside)):
                said.append(words(part))
        return "\n".join(filter(None, said)) or self.note

    @property
    def thinking(self) -> str:
        """What a model thought aloud."""
        found = [part.text for part in self.parts if isinstance(part, Thought)]
        return "\n".join(filter(None, found))

    @property
    def calls(self) -> list[Call]:
        """What was called."""
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def doubts(self) -> list[str]:
        """What a document says about the files beside the differences."""
        found = [f"not captured: {one.row_text}" for one in self.missing]
        names = dict.fromkeys([*self.perhaps, *self.uncertain])
        return [*found, f"perhaps not its own: {', '.join(names)}"] if names else found

    def to_dict(self, *, diffs: bool) -> dict[str, Json]:
        """The step as JSON; what is empty is left out."""
        row: dict[str, Json] = {"seq": self.seq, "id": self.id, "ts": self.ts, "kind": self.kind}
        row |= {n: getattr(self, n) for n in ("text", "thinking", "name") if getattr(self, n)}
        calls = [one for one in self.calls if self.kind != "action" or one.arguments is not None]
        if calls:
            row["calls"] = [one.to_dict() for one in calls]
        if self.answers and self.kind != "action":
            row["answers"] = sorted(one.call_id for one in self.answers)
        if self.error:
            row["error"] = True
        if self.files:
            row["files"] = [file_row(file, diffs=diffs) for file in self.files]
        if self.missing:
            row["not_captured"] = [row_dict(one.row) for one in self.missing]
        return row


@dataclass(frozen=True, slots=True)
class Subagent:
    """The log of a subagent; `call` is the id of the call that started it, where it is known."""

    name: str
    title: str
    call: str | None = None
    steps: list[Step] = field(default_factory=list)

    def to_dict(self, *, diffs: bool) -> dict[str, Json]:
        """The subagent as JSON."""
        steps = [step.to_dict(diffs=diffs) for step in self.steps]
        return {"id": self.name, "title": self.title, "call": self.call, "steps": steps}


def file_row(file: FileDiff, *, diffs: bool = False) -> dict[str, Json]:
    """How a file differs, as JSON; with `diffs`, the unified diff too."""
    row: dict[str, Json] = {
        "path": file.path,
        "status": file.status,
        "insertions": file.insertions,
        "deletions": file.deletions,
    }
    if file.old_path is not None:
        row["old_path"] = file.old_path
    if diffs:
        row["text"] = file.text
    return row


def step_of(event: Event, files: Sequence[FileDiff] = ()) -> Step:
    """One event as people read it, with what it did to the files."""
    data = event.data
    kind = step_kind(event)
    name = data.get("name")
    message = data.get("message")
    parts: list[Part] = []
    answers: list[Answer] = []
    note, sentence = "", ""
    if data.get("purged"):
        parts, sentence = [Text("[purged]")], "" if kind in MESSAGE_KINDS else "purged"
    elif kind in (*MESSAGE_KINDS, "message") and isinstance(message, Mapping):
        parts = [
            Call(part.id, part.name, part.arguments) if isinstance(part, ToolCall) else part
            for part in shown_in(message)
        ]
        failed = data.get("error") is True
        answers = [replace(one, failed=one.failed or failed) for one in answers_of(message)]
    elif kind == "action":
        call = Call(str(data.get("call") or ""), str(name or "action"), data.get("input"))
        if data.get("result") is not None or data.get("error"):
            answers = [answer(call.id, data.get("result"), failed=data.get("error") is True)]
            note = text_of([data.get("result")])
        parts = [replace(call, answer=answers[0] if answers else None)]
    else:
        note = noted(event)
        sentence = _sentence(event, note)
    changed = data.get("files")
    uncertain = changed.get("uncertain") if isinstance(changed, Mapping) else None
    doubtful = not_alone(event)
    return Step(
        event.seq, event.id, event.ts, kind, tuple(parts), tuple(answers), (), note, sentence,
        name if isinstance(name, str) else None, author_of(event),
        data.get("error") is True or any(one.failed for one in answers), event.seq, False,
        list(files), missing_in(event), [file.path for file in files if file.path in doubtful],
        [str(path) for path in uncertain] if isinstance(uncertain, list) else [],
        data.get("so_far") is True,
    )  # fmt: skip


def step_kind(event: Event) -> str:
    """The kind of an event; of a message in a subagent's log, what it would be in the main one."""
    message = event.data.get("message")
    if event.kind != "message" or not isinstance(message, Mapping):
        return event.kind
    try:
        return kind_of(message)
    except InvalidData:
        return event.kind


def not_alone(event: Event) -> dict[str, list[str] | None]:
    """The paths of an event that others may have changed: which sessions, None for a person."""
    files = event.data.get("files")
    if not isinstance(files, dict):
        return {}
    found: dict[str, list[str] | None] = dict.fromkeys(files.get("doubtful", ()))
    for part in files.get("parts", ()):
        found |= dict.fromkeys(part.get("shared", ()), part.get("sessions", []))
    return found


def noted(event: Event) -> str:
    """What an event that is no message says, on a line and without its kind."""
    data, kind = event.data, event.kind
    if kind == "checkpoint":
        return str(data.get("label") or f"of event {data.get('at')}")
    if kind == "checkpoint_deleted":
        return f"the checkpoint {str(data.get('checkpoint'))[:13]}"
    if kind == "rewound":
        scope = data.get("scope")
        only = f", {scope} only" if scope in ("files", "conversation") else ""
        if TURN in data:
            return f"the turn of event {data[TURN]}{only}"
        before = "before " if data.get("before") is True else ""
        return f"to {before}event {data.get('target', data.get('to'))}{only}"
    if kind in ("undone", "redone"):
        what = "rewind" if data.get("kind") == "rewound" else "turn"
        return f"the {what} of event {data.get('of')}"
    if kind == "compaction":
        return speech_of(data.get("summary"))
    if kind in ("session_end", "turn_end"):
        return str(data.get("reason") or data.get("exit_reason") or "")
    if kind == "subagent_usage":
        return f"of {data.get('subagent')}: {sum(spent(data).values())} tokens"
    if kind == "files_changed" and BACK in data:
        return f"the agent put them back as at event {data[BACK]}"
    if kind in ("session_start", "session_resume", "files_changed"):
        return ""
    return text_of(data)


def _sentence(event: Event, note: str) -> str:
    """What a document says about an event that is no message; empty where it is of no interest."""
    data, kind = event.data, event.kind
    if kind in ("session_start", "session_resume", "files_changed", "subagent_usage"):
        return ""
    if kind == "checkpoint":
        return f"checkpoint: {note}" if data.get("label") else ""
    if kind in ("rewound", "undone", "redone"):
        dropped = data.get("events_dropped")
        events = f", {dropped:,} event{'' if dropped == 1 else 's'} left behind" if dropped else ""
        return f"{kind}{events}"
    if kind == "turn_end":
        error = f" ({data['error']})" if data.get("error") else ""
        return "" if note == "end_turn" else f"the turn ended: {note}{error}"
    if kind == "session_end":
        return f"the session ended: {note}"
    if kind == "compaction":
        return f"the conversation up to here was summed up:\n{note}"
    if kind == "lost":
        return "an event was lost"
    if kind == "checkpoint_deleted":
        return f"deleted {note}"
    if kind in MESSAGE_KINDS:
        return "a message that cannot be shown"
    return f"{kind}: {pretty(dict(data))}"
