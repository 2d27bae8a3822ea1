"""A session as people read it: turns, and in them what was said and done. Pure but for reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass, field
from ..errors import InvalidData
from ..events import MESSAGE_KINDS, Event, Json
from ..events.calls import ToolCall, answers_in, calls_in
from ..events.history import BACK, spent
from ..events.messages import kind_of, speech_of, text_of
from ..session.filepoints import changes_by_turn
from ..session.uncaptured import Missing, missing_in, row_dict
from .prompts import not_alone
from .wording import short

if TYPE_CHECKING:
    from ..files.differences import FileDiff
    from ..stores.base import Store

Files = dict[int, "list[FileDiff]"]
"""What each event did to the files, by its number."""

_WORDS = ("text", "input_text", "output_text", "refusal")
_APART = ("tool_use", "tool_result", "thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a turn: what was said, thought, called, answered, and done to files."""

    seq: int
    id: str
    ts: str
    kind: str
    text: str = ""
    thinking: str = ""
    name: str | None = None
    calls: list[ToolCall] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    error: bool = False
    files: list[FileDiff] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    perhaps: list[str] = field(default_factory=list)
    """Those of the files that are perhaps not its own."""

    def to_dict(self, *, diffs: bool) -> dict[str, Json]:
        """The step as JSON; what is empty is left out."""
        row: dict[str, Json] = {"seq": self.seq, "id": self.id, "ts": self.ts, "kind": self.kind}
        row |= {n: getattr(self, n) for n in ("text", "thinking", "name") if getattr(self, n)}
        if self.calls:
            row["calls"] = [call.to_dict() for call in self.calls]
        if self.answers:
            row["answers"] = self.answers
        if self.error:
            row["error"] = True
        if self.files:
            row["files"] = [file_row(file, diffs=diffs) for file in self.files]
        if self.missing:
            row["not_captured"] = [row_dict(one.row) for one in self.missing]
        return row


@dataclass(frozen=True, slots=True)
class TurnShown:
    """One prompt and what followed; `number` 0 is what came before the first."""

    number: int
    prompt: Step | None
    steps: list[Step] = field(default_factory=list)

    def to_dict(self, *, diffs: bool) -> dict[str, Json]:
        """The turn as JSON."""
        return {
            "turn": self.number,
            "seq": self.prompt.seq if self.prompt else 0,
            "ts": self.prompt.ts if self.prompt else None,
            "prompt": self.prompt.text if self.prompt else None,
            "steps": [step.to_dict(diffs=diffs) for step in self.steps],
        }


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


def turns(events: Iterable[Event], files: Files) -> list[TurnShown]:
    """Events in order, turn by turn; what brings a turn back tells no file of it again."""
    found = [TurnShown(0, None)]
    told: set[str] = set()
    for event in events:
        changed = files.get(event.seq, [])
        if _brings_back(event):
            changed = [file for file in changed if file.path not in told]
        told |= {file.path for file in changed}
        step = step_of(event, changed)
        if step.kind == "user_message":
            found.append(TurnShown(len(found), step))
        else:
            found[-1].steps.append(step)
    return found


def _brings_back(event: Event) -> bool:
    """Whether an event did again what its history has: a redone turn, or a rewind taken back."""
    kinds = {"redone": "user_message", "undone": "rewound"}
    return event.kind in kinds and event.data.get("kind") == kinds[event.kind]


def step_of(event: Event, files: list[FileDiff]) -> Step:
    """One event as people read it."""
    data = event.data
    kind = _kind(event)
    name = data.get("name")
    text, thinking = "", ""
    calls: list[ToolCall] = []
    answers: list[str] = []
    message = data.get("message")
    if data.get("purged"):
        text = "[purged]"
    elif kind in MESSAGE_KINDS and isinstance(message, Mapping):
        calls = calls_in(message)
        answers = sorted(answers_in(message))
        thinking = thought(message)
        text = answered(message) if kind == "tool_result" else words(message)
    else:
        text = noted(event)
        if event.kind == "action" and data.get("input") is not None:
            calls = [ToolCall(str(data.get("call") or ""), str(name or "action"), data["input"])]
    return Step(
        event.seq, event.id, event.ts, kind, text, thinking,
        name if isinstance(name, str) else None, calls, answers, failed(data), files,
        missing_in(event), [file.path for file in files if file.path in not_alone(event)],
    )  # fmt: skip


def _kind(event: Event) -> str:
    """The kind of an event; of a message in a subagent's log, what it would be in the main one."""
    message = event.data.get("message")
    if event.kind != "message" or not isinstance(message, Mapping):
        return event.kind
    try:
        return kind_of(message)
    except InvalidData:
        return event.kind


def words(message: Mapping[str, Json]) -> str:
    """What is said in a message, without calls, results and thoughts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for block in content if isinstance(content, list) else ():
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(block, str):
            parts.append(block)
        elif kind in _WORDS:
            parts.append(text_of(block))
        elif isinstance(kind, str) and kind not in _APART:
            parts.append(f"[{kind}]")
    return "\n".join(part for part in parts if part)


def thought(message: Mapping[str, Json]) -> str:
    """What a model thought aloud."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return str(message[name])
    if message.get("type") == "reasoning":
        return text_of([message.get("summary"), message.get("content")])
    content = message.get("content")
    blocks = content if isinstance(content, list) else ()
    found = [b["thinking"] for b in blocks if isinstance(b, Mapping) and _is_text(b, "thinking")]
    return "\n".join(found)


def _is_text(block: Mapping[str, Json], name: str) -> bool:
    return block.get("type") == name and isinstance(block.get(name), str)


def answered(message: Mapping[str, Json]) -> str:
    """What a tool answered."""
    content = message.get("content", message.get("output"))
    blocks = content if isinstance(content, list) else ()
    results = [b for b in blocks if isinstance(b, Mapping) and b.get("type") == "tool_result"]
    if results:
        return text_of([block.get("content") for block in results])
    return text_of(content)


def failed(data: Mapping[str, Json]) -> bool:
    """Whether an event tells of a call that failed."""
    if data.get("error") is True:
        return True
    message = data.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    blocks = content if isinstance(content, list) else ()
    return any(isinstance(block, Mapping) and block.get("is_error") is True for block in blocks)


def noted(event: Event) -> str:
    """What an event that is no message says, on a line."""
    data = event.data
    if event.kind == "action":
        return text_of([data.get("result")]) if data.get("result") is not None else ""
    if event.kind == "checkpoint":
        label = data.get("label")
        return str(label) if label else f"of event {data.get('at')}"
    if event.kind == "checkpoint_deleted":
        return f"the checkpoint {short(str(data.get('checkpoint')))}"
    if event.kind == "rewound":
        scope = data.get("scope")
        only = f", {scope} only" if scope in ("files", "conversation") else ""
        before = "before " if data.get("before") is True else ""
        return f"to {before}event {data.get('target', data.get('to'))}{only}"
    if event.kind in ("undone", "redone"):
        what = "rewind" if data.get("kind") == "rewound" else "turn"
        return f"the {what} of event {data.get('of')}"
    if event.kind == "compaction":
        return speech_of(data.get("summary"))
    if event.kind in ("session_end", "turn_end"):
        return str(data.get("reason") or data.get("exit_reason") or "")
    if event.kind == "subagent_usage":
        return f"of {data.get('subagent')}: {sum(spent(data).values())} tokens"
    if event.kind == "files_changed" and BACK in data:
        return f"the agent put them back as at event {data[BACK]}"
    if event.kind in ("session_start", "session_resume", "files_changed"):
        return ""
    return text_of(data)


def last_done(store: Store, session_id: str, *, others: bool = True) -> int:
    """The last event that is no checkpoint: a checkpoint may stand for any earlier point.

    Without `others`, one that tells what others did to the files is none, either.
    """
    passed = ("checkpoint", "checkpoint_deleted", *(() if others else ("files_changed",)))
    events = store.read(session_id, reverse=True)
    return next((event.seq for event in events if event.kind not in passed), 0)


def files_by_event(store: Store, session_id: str, first: int = 0) -> Files:
    """What each event from `first` on did to the files, as far as contents are there."""
    from ..files.contents.collect import has_contents, opened

    if not has_contents(store):
        return {}
    with opened(store) as depot:
        found = changes_by_turn(store, session_id, depot.blobs.get, first)
    return {call.seq: call.files for turn in found for call in turn.calls}
