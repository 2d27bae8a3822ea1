"""What an event of a hook says, and what the transcript that it names says of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ..shapes import folder_in, inner, text_in
from .dialects import Dialect, declared, digest_of, gist_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...events import Json
    from ...files.changes.brackets import Sought

_LONG = 20_000
_FLUSHED = 0.4
_STEP = 0.04

_MARGIN = 0.5
"""Seconds that an agent may need from a call's end to our hook; too few for a person to save."""

_BRIEF = 1.0
"""Seconds that a call counts as running where nothing says how long it did."""

_TAIL = 256 * 1024


class Fields(NamedTuple):
    """What an event says, with anything of the wrong type left out."""

    session: str
    cwd: str
    transcript: Path | None
    side: Path | None
    prompt_id: str | None
    agent: str
    tool: str
    call: str | None
    given: Json
    raw: Mapping[str, Json]

    @classmethod
    def of(cls, event: Mapping[str, Json], dialect: Dialect) -> Fields:
        """The fields of an event."""

        def text(*names: str) -> str:
            found = (event.get(name) for name in names)
            return next((value for value in found if isinstance(value, str) and value), "")

        def file(name: str) -> Path | None:
            path = text(name)
            return Path(path) if path and "\0" not in path else None

        transcript, side = file("transcript_path"), file("agent_transcript_path")
        if dialect.agent == "codex" and text("agent_id") and side is None:
            # What a subagent does comes under its parent's name, with its own transcript.
            transcript, side = None, transcript
        return cls(
            text("session_id"),
            os.environ.get(dialect.project) or text("cwd") or str(Path.cwd()),
            transcript,
            side if dialect.agent == "codex" else None,
            text("prompt_id", "turn_id") or None,
            text("agent_id"),
            text("tool_name") or "tool",
            text("tool_use_id") or None,
            event.get("tool_input"),
            event,
        )

    @property
    def failed(self) -> bool:
        """Whether a tool's response says that it failed; Gemini CLI has no event for that."""
        return isinstance(inner(self.raw, "tool_response", "error"), dict)

    @property
    def prompt(self) -> str:
        """What a person says."""
        return text_in(self.raw, "prompt") or ""

    @property
    def answer(self) -> str | None:
        """What the agent said last in a turn; None where the event does not say it."""
        return text_in(self.raw, "last_assistant_message") or text_in(self.raw, "prompt_response")

    @property
    def event_id(self) -> str | None:
        """The id of the prompt, if an event may have it."""
        id = self.prompt_id
        return id if id and len(id) <= 256 and id.isprintable() else None

    @property
    def sought(self) -> Sought:
        """The call that the event is about."""
        from ...files.changes.brackets import Sought

        # Gemini CLI says in the details what the question is about.
        given = self.given if self.given is not None else self.raw.get("details")
        whole = "" if self.call else digest_of(json.dumps(given, sort_keys=True))
        return Sought(self.tool, self.call, self.agent, whole, gist_of(given))

    def declared(self, cwd: str) -> list[str] | None:
        """The paths that the tool names, relative ones from `cwd` where the event says no other."""
        return declared(self.tool, self.given, folder_in(self.raw, "cwd") or cwd)

    def ran_from(self, now: float) -> float:
        """When a call began to run, given the event of its end, which came just `now`.

        An agent's hook before a call comes before the question, and none comes with the answer.
        So what the call says of its own length is counted back from its end.
        """
        length = self.raw.get("duration_ms")
        if isinstance(length, (int, float)) and not isinstance(length, bool) and length >= 0:
            return now - length / 1000 - _MARGIN
        transcript = self.side or self.transcript
        found = _in_rollout(transcript, self.call) if transcript and self.call else None
        return found - _MARGIN if found is not None else now - _BRIEF


def _in_rollout(path: Path, call: str) -> float | None:
    """When a command began, as Codex notes it in its session's file when it is over."""
    needle = json.dumps(call).encode()
    for line in reversed(_tail(path, _TAIL).split(b"\n")):
        if needle not in line or b"item_completed" not in line:
            continue
        try:
            payload = json.loads(line)["payload"]
            length = payload["item"]["duration"]
            if payload["item"]["id"] == call:
                seconds = length["secs"] + length["nanos"] / 1e9
                return float(payload["completed_at_ms"] / 1000 - seconds)
        except (ValueError, KeyError, TypeError):
            continue
    return None


def await_words(words: str, transcript: Path) -> None:
    """Wait a little for the last words to be in the transcript: agents write it later."""
    said = [json.dumps(words, ensure_ascii=ascii)[1:-1].encode() for ascii in (False, True)]
    deadline = time.monotonic() + _FLUSHED
    while time.monotonic() < deadline:
        last = _tail(transcript, 4 * len(said[1]) + 20_000)
        if any(one in last for one in said):
            return
        time.sleep(_STEP)


def _tail(path: Path, size: int) -> bytes:
    """The end of a file; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read()
    except OSError:
        return b""


def is_note(agent: str, text: str) -> bool:
    """Whether an agent notes something for itself, such as that a task is done."""
    if agent != "claude-code":
        return False
    from ..claude_code import format as claude_code

    return claude_code.is_note(text)


def user_message(agent: str, text: str) -> tuple[dict[str, Json], str]:
    """A prompt as the agent's provider spells it, and the name of that spelling."""
    if agent == "codex":
        content = [{"type": "input_text", "text": text}]
        return {"type": "message", "role": "user", "content": content}, "responses"
    return {"role": "user", "content": text}, "anthropic" if agent == "claude-code" else "openai"


def clipped(value: Json, limit: int = _LONG) -> Json:
    """A value as an event keeps it: long texts are in the transcript and in the files."""
    if isinstance(value, str):
        if len(value) > limit:
            value = f"{value[:limit]}… ({len(value)} characters)"
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [clipped(item, limit // 2) for item in value[:1000]] if limit > 100 else "…"
    if isinstance(value, dict):
        items = list(value.items())[:1000]
        return {str(clipped(k)): clipped(v, limit // 2) for k, v in items} if limit > 100 else "…"
    return value
