"""Lines of a Codex rollout: what each is. Pure.

A line is `{"timestamp", "type", "payload"}`. `response_item` is the conversation, in items of
the Responses API; `event_msg` is what the screen showed, mostly the same once more.
`docs/reference/codex.md` describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ...events import Json
from ...events.messages import speech_of, text_of
from ..shapes import inner, list_in, number_in, object_in, text_in

What = Literal["prompt", "note", "system", "result", "assistant", "compaction", "rollback",
               "usage", "meta", "context", "other"]  # fmt: skip
"""What a line is; `note` is said in the user's name, `rollback` takes back turns."""

_ROLES: dict[str, What] = {"assistant": "assistant", "system": "system", "developer": "system"}
_WHAT: dict[str, What] = {
    "token_usage_record": "usage", "shown token_count": "usage",
    "shown thread_rolled_back": "rollback", "compacted": "compaction",
    "session_meta": "meta", "turn_context": "context",
}  # fmt: skip
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
    return object_in(line, "payload")


def what_is(line: Mapping[str, Json]) -> What:
    """What a line is."""
    kind, payload = line.get("type"), payload_of(line)
    if kind == "response_item":
        return _item(payload)
    name = f"shown {payload.get('type')}" if kind == "event_msg" else str(kind)
    return _WHAT.get(name, "other")


def _item(item: Mapping[str, Json]) -> What:
    kind, role = item.get("type"), item.get("role")
    if kind == "message" and isinstance(item.get("content"), str | list):
        if role == "user":
            noted = text_of(item["content"]).lstrip().startswith(_NOTES)
            return "note" if noted or _is_made_up(item) else "prompt"
        return _ROLES.get(role, "other") if isinstance(role, str) else "other"
    if not isinstance(kind, str):
        return "other"
    if kind.endswith("_output"):
        return "result"
    return "assistant" if kind == "reasoning" or kind.endswith("_call") else "other"


def _is_made_up(item: Mapping[str, Json]) -> bool:
    """Whether Codex notes of a message that it is its own, and no person's."""
    about = "internal_chat_message_metadata_passthrough"
    parts = list_in(item, about, "content_item_metadata")
    stated = [part for part in parts if object_in(part, "provenance")]
    return bool(stated) and all(inner(one, "provenance", "type") != "user" for one in stated)


def usage_in(line: Mapping[str, Json]) -> tuple[Json, dict[str, int]] | None:
    """The tokens of the last response, and the sum that distinguishes it from the one before."""
    payload = payload_of(line)
    if line.get("type") == "token_usage_record":
        last, total = payload.get("usage"), payload.get("thread_token_usage")
    else:
        last, total = (inner(payload, "info", f"{name}_token_usage") for name in ("last", "total"))
    if not isinstance(last, Mapping):
        return None
    counts = {ours: number_in(last, theirs) for theirs, ours in _COUNTS.items()}
    return total, {name: count for name, count in counts.items() if count is not None}


def rolled_back(line: Mapping[str, Json]) -> int:
    """How many turns a line takes back."""
    return max(0, number_in(payload_of(line), "num_turns") or 0)


def goes_on(first: Mapping[str, Json]) -> tuple[str, int] | None:
    """The file that a rollout goes on with, and the number of its first line that counts no more.

    Newer versions begin a file for the same session when turns are taken back. A fork names
    its parent's file in the same way.
    """
    base = payload_of(first).get("history_base")
    file, end = text_in(base, "thread_id"), number_in(base, "end_ordinal_exclusive")
    return (file, end) if file is not None and end is not None else None


def is_side(first: Mapping[str, Json]) -> bool:
    """Whether a rollout with this first line is a subagent's."""
    payload = payload_of(first)
    return "subagent" in object_in(payload, "source") or payload.get("thread_source") == "subagent"


def begun(first: Mapping[str, Json], lines: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """How a subagent began, in the words of our own subagents."""
    asked = (payload_of(one) for one in lines if what_is(one) == "prompt")
    prompt = speech_of(next(asked, {}))
    payload = payload_of(first)
    name = payload.get("agent_path") or payload.get("agent_nickname")
    data: dict[str, Json] = {"prompt": prompt, "description": name or ""}
    role = text_in(payload, "agent_role")
    return data | ({"agent": role} if role else {})


# --- writing -----------------------------------------------------------------------------


def line(kind: str, payload: Mapping[str, Json], ts: str) -> dict[str, Json]:
    """A line to be written."""
    return {"timestamp": ts, "type": kind, "payload": payload}


def is_numbered(line: Mapping[str, Json]) -> bool:
    """Whether a rollout with this first line has its lines numbered."""
    return payload_of(line).get("history_mode") == "paginated"


def meta(
    session_id: str, cwd: str, ts: str, old: Mapping[str, Json], provider: str
) -> dict[str, Json]:
    """The first line of a rollout; what an older one says is kept."""
    fresh: dict[str, Json] = {"id": session_id, "timestamp": ts, "cwd": cwd}
    given = {"originator": "codex_cli_rs", "cli_version": "0.0.0", "source": "cli",
             "model_provider": provider}  # fmt: skip
    said = payload_of(old)
    kept = {name: value for name, value in said.items() if value is not None and name != "git"}
    fresh |= {"session_id": session_id} if "session_id" in kept else {}
    if "runtime_workspace_roots" in kept and said.get("cwd") != cwd:
        fresh["runtime_workspace_roots"] = [cwd]
    return line("session_meta", {**given, **kept, **fresh}, ts)


def again(
    value: Mapping[str, Json], session_id: str, cwd: str, old: Mapping[str, Json]
) -> dict[str, Json]:
    """A line of an older rollout for a new one, which names that one's session."""
    payload = dict(payload_of(value))
    payload |= {name: session_id for name in ("thread_id", "session_id") if name in payload}
    if value.get("type") == "turn_context" and payload.get("cwd") == payload_of(old).get("cwd"):
        # Where to go on. What the model was sent about it is in other lines, and stays.
        payload["cwd"] = cwd
    return {name: of for name, of in value.items() if name != "ordinal"} | {"payload": payload}


def numbered(lines: Sequence[dict[str, Json]], old: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Lines with the numbers that Codex wants; a fork of its own goes on with its parent's."""
    start = number_in(old, "ordinal") or 0
    return [{"ordinal": number, **one} for number, one in enumerate(lines, start)]


def spoken_alone(value: dict[str, Json]) -> dict[str, Json] | None:
    """A stranger's line, if it is part of what the model or the person is shown, and sets nothing.

    Others say in which folder a turn works, what it may write, and which file comes before.
    """
    return value if value.get("type") in ("response_item", "event_msg", "compacted") else None


def begins_turn(value: Mapping[str, Json]) -> bool:
    """Whether a line says that a turn begins."""
    return value.get("type") == "event_msg" and payload_of(value).get("type") == "task_started"


def shown(item: Mapping[str, Json], ts: str) -> dict[str, Json] | None:
    """What the screen showed for an item: the list of sessions and the screen want it."""
    role = item.get("role")
    if item.get("type") != "message" or role not in ("user", "assistant"):
        return None
    said = speech_of(item)
    if role == "user":
        return line("event_msg", {"type": "user_message", "message": said, "images": []}, ts)
    return line("event_msg", {"type": "agent_message", "message": said}, ts)
