"""What lines of a Codex rollout are."""

from __future__ import annotations

from typing import Any

import pytest

from backtrail.exchange.codex.format import rolled_back, usage_in, what_is

Json = Any


def item(**payload: Json) -> dict[str, Json]:
    """A line of the conversation."""
    return {"type": "response_item", "payload": payload}


def words(role: str, text: str) -> dict[str, Json]:
    """A message."""
    return item(type="message", role=role, content=[{"type": "input_text", "text": text}])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (words("user", "hi"), "prompt"),
        (words("user", "<environment_context>x</environment_context>"), "note"),
        (words("user", "# AGENTS.md instructions for /p"), "note"),
        (words("developer", "be nice"), "system"),
        (words("assistant", "yes"), "assistant"),
        (item(type="reasoning", summary=[]), "assistant"),
        (item(type="function_call", call_id="c"), "assistant"),
        (item(type="web_search_call"), "assistant"),
        (item(type="function_call_output", call_id="c"), "result"),
        (item(type="ghost_snapshot"), "other"),
        (item(type=3), "other"),
        ({"type": "event_msg", "payload": {"type": "agent_message"}}, "other"),
        ({"type": "event_msg", "payload": {"type": "token_count"}}, "usage"),
        ({"type": "event_msg", "payload": {"type": "thread_rolled_back"}}, "rollback"),
        ({"type": "compacted", "payload": {}}, "compaction"),
        ({"type": "session_meta", "payload": 3}, "meta"),
        ({"type": "turn_context"}, "context"),
        ({}, "other"),
    ],
)
def test_lines_are_kept_apart(line: dict[str, Json], what: str) -> None:
    """By their type, and by what they carry."""
    assert what_is(line) == what


def test_usage_has_our_names() -> None:
    """Only counts count."""
    last = {"input_tokens": 5, "cached_input_tokens": 2, "output_tokens": True, "x": 1}
    line = {"payload": {"info": {"last_token_usage": last, "total_token_usage": {"t": 1}}}}
    assert usage_in(line) == ({"t": 1}, {"input_tokens": 5, "cache_read_tokens": 2})
    assert usage_in({"payload": {"info": None}}) is None


@pytest.mark.parametrize(("turns", "found"), [(2, 2), (0, 0), (-1, 0), ("2", 0), (True, 0)])
def test_turns_taken_back(turns: Json, found: int) -> None:
    """A number of them, or none."""
    assert rolled_back({"payload": {"num_turns": turns}}) == found
