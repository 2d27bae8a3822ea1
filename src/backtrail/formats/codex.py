"""Lines of a Codex rollout: what each is. Pure.

A line is `{"timestamp", "type", "payload"}`. `response_item` is the conversation, in items of
the Responses API; `event_msg` is what the screen showed, mostly the same once more.
`docs/reference/codex.md` describes the format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ..events import Json
from ..messages import text_of

What = Literal["prompt", "note", "system", "result", "assistant", "compaction", "rollback",
               "usage", "meta", "context", "other"]  # fmt: skip
"""What a line is; `note` is said in the user's name, `rollback` takes back turns."""

_ROLES: dict[str, What] = {"assistant": "assistant", "system": "system", "developer": "system"}
_NOTES = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions",
          "<permissions instructions>", "<turn_aborted>", "<skill>", "<user_shell_command>",
          "<subagent_notification>", "<collaboration_mode>")  # fmt: skip
_COUNTS = {
    "input_tokens": "input_tokens",
    "cached_input_tokens": "cache_read_tokens",
    "output_tokens": "output_tokens",
    "reasoning_output_tokens": "reasoning_tokens",
}


def payload_of(line: Mapping[str, Json]) -> Mapping[str, Json]:
    """What a line carries; empty if that is no object."""
    found = line.get("payload")
    return found if isinstance(found, Mapping) else {}


def what_is(line: Mapping[str, Json]) -> What:
    """What a line is."""
    kind, payload = line.get("type"), payload_of(line)
    if kind == "response_item":
        return _item(payload)
    if kind == "event_msg":
        told = payload.get("type")
        if told == "token_count":
            return "usage"
        return "rollback" if told == "thread_rolled_back" else "other"
    if kind == "compacted":
        return "compaction"
    if kind == "session_meta":
        return "meta"
    return "context" if kind == "turn_context" else "other"


def _item(item: Mapping[str, Json]) -> What:
    kind, role = item.get("type"), item.get("role")
    if kind == "message" and isinstance(item.get("content"), str | list):
        if role == "user":
            return "note" if text_of(item["content"]).lstrip().startswith(_NOTES) else "prompt"
        return _ROLES.get(role, "other") if isinstance(role, str) else "other"
    if not isinstance(kind, str):
        return "other"
    if kind.endswith("_output"):
        return "result"
    return "assistant" if kind == "reasoning" or kind.endswith("_call") else "other"


def usage_in(line: Mapping[str, Json]) -> tuple[Json, dict[str, int]] | None:
    """The tokens of the last response, and the sum that tells it from the one before."""
    info = payload_of(line).get("info")
    if not isinstance(info, Mapping):
        return None
    last = info.get("last_token_usage")
    if not isinstance(last, Mapping):
        return None
    counts = {
        ours: count
        for theirs, ours in _COUNTS.items()
        if isinstance(count := last.get(theirs), int) and not isinstance(count, bool)
    }
    return info.get("total_token_usage"), counts


def rolled_back(line: Mapping[str, Json]) -> int:
    """How many turns a line takes back."""
    turns = payload_of(line).get("num_turns")
    return turns if isinstance(turns, int) and not isinstance(turns, bool) and turns > 0 else 0


def summary_in(line: Mapping[str, Json]) -> str:
    """The summary of a compaction."""
    message = payload_of(line).get("message")
    return message if isinstance(message, str) else ""


# --- writing -----------------------------------------------------------------------------


def line(kind: str, payload: Mapping[str, Json], ts: str) -> dict[str, Json]:
    """A line to be written."""
    return {"timestamp": ts, "type": kind, "payload": payload}


def meta(
    session_id: str, cwd: str, ts: str, old: Mapping[str, Json], provider: str
) -> dict[str, Json]:
    """The first line of a rollout; what an older one says is kept."""
    fresh = {"id": session_id, "timestamp": ts, "cwd": cwd}
    given = {"originator": "codex_cli_rs", "cli_version": "0.0.0", "source": "cli",
             "model_provider": provider}  # fmt: skip
    kept = {name: value for name, value in old.items() if name not in ("session_id", "git")}
    kept = {name: value for name, value in kept.items() if value is not None}
    return line("session_meta", {**given, **kept, **fresh}, ts)


def shown(item: Mapping[str, Json], ts: str) -> dict[str, Json] | None:
    """What the screen showed for an item: the list of sessions and the screen want it."""
    role, content = item.get("role"), item.get("content")
    if item.get("type") != "message" or role not in ("user", "assistant"):
        return None
    blocks: Sequence[Json] = content if isinstance(content, list) else [content]
    said = text_of(blocks)
    if role == "user":
        return line("event_msg", {"type": "user_message", "message": said, "images": []}, ts)
    return line("event_msg", {"type": "agent_message", "message": said}, ts)
