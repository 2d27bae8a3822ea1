"""What each provider refuses, as checks: `check(format, messages)` raises on the first fault.

Written from the providers' documentation and error messages, apart from the library, so
that conversion and repair are not judged by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from backtrail.events import Json

Messages = Sequence[dict[str, Json]]


def check(format: str, messages: Messages) -> None:
    """Fail unless the provider of `format` would accept the conversation."""
    {"openai": check_chat, "responses": check_responses, "anthropic": check_anthropic}[format](
        messages
    )


def check_chat(messages: Messages) -> None:
    """Every id in `tool_calls` is answered directly behind, once, and by text."""
    waiting: list[str] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "tool":
            assert message["tool_call_id"] in waiting, "a tool message answers the call before it"
            waiting.remove(message["tool_call_id"])
            _check_chat_content(content, {"text"}, empty=True)
            continue
        assert not waiting, f"calls {waiting} are not answered directly behind"
        assert role in ("system", "developer", "user", "assistant"), role
        if role == "assistant" and content is None:
            assert message.get("tool_calls") or message.get("refusal")
        else:
            kinds = {"text", "image_url", "file", "input_audio"} if role == "user" else {"text"}
            _check_chat_content(content, kinds)
        for call in message.get("tool_calls", ()):
            waiting.append(call["id"])
            assert 0 < len(call["id"]) <= 64
            inner = call[call["type"]]
            assert isinstance(inner["name"], str)
            assert isinstance(inner["arguments" if call["type"] == "function" else "input"], str)
        assert message.get("tool_calls") != [], "tool_calls is never an empty list"
    assert not waiting, f"calls {waiting} are not answered at the end"


def _check_chat_content(content: Json, kinds: set[str], *, empty: bool = False) -> None:
    if isinstance(content, str):
        assert content or empty, "content says something"
        return
    assert isinstance(content, list) and content
    for block in content:
        assert block["type"] in kinds, block
        if block["type"] == "text":
            assert block["text"]
        elif block["type"] == "image_url":
            assert isinstance(block["image_url"]["url"], str)
        elif block["type"] == "file":
            assert "file_id" in block["file"] or {"filename", "file_data"} <= set(block["file"])


_OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}


def check_responses(items: Messages) -> None:
    """Every call has its output later, of its kind, and no output is without a call."""
    waiting: dict[str, str] = {}
    for item in items:
        kind = item.get("type", "message")
        if kind in _OUTPUT_OF:
            assert 0 < len(item["call_id"]) <= 64
            assert item["call_id"] not in waiting, "two open calls with one id"
            assert isinstance(item["arguments" if kind == "function_call" else "input"], str)
            waiting[item["call_id"]] = _OUTPUT_OF[kind]
        elif kind in _OUTPUT_OF.values():
            assert waiting.pop(item["call_id"], None) == kind, "an output answers a call"
            if not isinstance(item["output"], str):
                _check_items(item["output"], {"input_text", "input_image", "input_file"})
        elif kind == "message":
            given = {"input_text", "input_image", "input_file"}
            assert item["role"] in ("system", "developer", "user", "assistant")
            said = {"output_text", "refusal"} if item["role"] == "assistant" else given
            if not (isinstance(item["content"], str) and item["content"]):
                _check_items(item["content"], said)
        else:
            assert kind == "reasoning", kind
            assert "summary" in item
        assert item.get("id", "rs_ fc_ msg_")[:2] in ("rs", "fc", "ms", "ct")
    assert not waiting, f"no tool output found for {list(waiting)}"


def _check_items(content: Json, kinds: set[str]) -> None:
    assert isinstance(content, list) and content
    for block in content:
        assert block["type"] in kinds, block
        if block["type"].endswith("_text"):
            assert block["text"]
        if block["type"] == "input_image":
            assert block["detail"] and ("image_url" in block or "file_id" in block)


_ID = re.compile(r"[a-zA-Z0-9_-]+")


def check_anthropic(messages: Messages) -> None:
    """The user first, roles in turn, results together at the head of the next message."""
    said = list(messages)
    if said and said[0]["role"] == "system":
        for block in _blocks(said.pop(0)["content"]):
            assert block["type"] == "text" and block["text"].strip()
    ids: set[str] = set()
    waiting: list[str] = []
    for number, message in enumerate(said):
        assert message["role"] == ("assistant" if number % 2 else "user"), "roles alternate"
        blocks = _blocks(message["content"])
        kinds = [block["type"] for block in blocks]
        answers = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "user":
            assert set(kinds) <= {"text", "image", "document", "tool_result"}, kinds
            assert sorted(answers) == sorted(waiting), "each call is answered, and only once"
            assert set(kinds[: len(answers)]) <= {"tool_result"}, "results come first"
            waiting = []
        else:
            assert set(kinds) <= {"text", "tool_use", "thinking", "redacted_thinking"}, kinds
            waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
            assert not ids & set(waiting) and len(set(waiting)) == len(waiting), "unique ids"
            ids |= set(waiting)
        for block in blocks:
            _check_block(block)
    assert not waiting, f"tool_use ids were found without tool_result blocks: {waiting}"


def _blocks(content: Json) -> list[dict[str, Json]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    assert isinstance(content, list) and content, "content must be non-empty"
    return content


def _check_block(block: dict[str, Json]) -> None:
    kind = block["type"]
    if kind == "text":
        assert block["text"].strip(), "text content blocks must contain non-whitespace text"
    elif kind == "tool_use":
        assert _ID.fullmatch(block["id"]) and isinstance(block["input"], dict) and block["name"]
    elif kind == "tool_result":
        assert "content" in block or not block.get("is_error"), "an error has content"
        for inner in _blocks(block["content"]) if "content" in block else ():
            assert inner["type"] in ("text", "image", "document")
            _check_block(inner)
    elif kind == "image" and block["source"]["type"] == "base64":
        allowed = ("image/png", "image/jpeg", "image/gif", "image/webp")
        assert block["source"]["media_type"] in allowed
    elif kind == "document" and block["source"]["type"] == "base64":
        assert block["source"]["media_type"] == "application/pdf"
    elif kind == "thinking":
        assert block["signature"], "thinking is taken back only with its signature"
