"""A server of the Messages API, as strict as Anthropic's where an agent can go wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from .base import Answer, Failure, Json, ModelServer, need, pieces, sse

USAGE = {
    "input_tokens": 11,
    "cache_creation_input_tokens": 30,
    "cache_read_input_tokens": 40,
    "output_tokens": 9,
}
_STATUS_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_ID = re.compile(r"[a-zA-Z0-9_-]+")


class AnthropicServer(ModelServer):
    """The Messages API.

    Thinking that is sent back must be what the server said, signature and all, and must be
    there in the message whose tool calls are being answered. With `binding`, as for newer
    models, system prompt, tools and messages before it must be the same, too; thinking may
    then be left out.
    """

    path = "/v1/messages"

    def __init__(self, *, binding: bool = False) -> None:
        super().__init__()
        self.binding = binding
        self._thoughts: dict[str, str] = {}
        self._thought_before: dict[str, list[str]] = {}

    # --- rules ---------------------------------------------------------------------------

    def check(self, body: dict[str, Json], headers: Mapping[str, str]) -> None:
        # The key is in either header, depending on the client's version.
        key = headers.get("x-api-key") or headers.get("authorization")
        need(key and headers.get("anthropic-version"), "no key or version")
        need(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        need(body.get("model") and body.get("stream") is True, "model and stream are required")
        need(isinstance(body.get("system", ""), str | list), "system: text or blocks")
        for message in body["messages"]:
            need(message.keys() == {"role", "content"}, f"extra fields in {sorted(message)}")
            need(message["role"] in ("user", "assistant"), f"role {message['role']!r}")
        messages = _merged(body["messages"])
        need(messages and messages[0][0] == "user", "first message must use the user role")
        need(messages[-1][0] == "user", "the conversation must end with a user message")
        ids: list[str] = []
        waiting: set[str] = set()
        for at, (role, blocks) in enumerate(messages):
            where = f"messages.{at}"
            need(blocks, f"{where}: content must not be empty")
            for block in blocks:
                self._check_block(where, role, block)
            self._check_results(where, blocks, waiting)
            calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            ids += calls
            waiting = set(calls)
        need(len(ids) == len(set(ids)), "`tool_use` ids must be unique")
        need(not ids or body.get("tools"), "requests with `tool_use` blocks must define tools")
        self._check_binding(body) if self.binding else self._check_last_thoughts(messages)

    def _check_results(self, where: str, blocks: list[Json], waiting: set[str]) -> None:
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        stray = [id for id in results if id not in waiting]
        need(not stray, f"{where}: unexpected `tool_use_id` in `tool_result`: {stray}")
        missing = sorted(waiting - set(results))
        need(not missing, f"{where}: `tool_use` ids without `tool_result` blocks: {missing}")
        need(len(results) == len(set(results)), f"{where}: more than one result for a call")
        first = [block["type"] == "tool_result" for block in blocks[: len(results)]]
        need(all(first), f"{where}: `tool_result` blocks must come first")

    def _check_block(self, where: str, role: str, block: Json) -> None:
        kind = block["type"]
        mine = {"text", "thinking", "redacted_thinking", "tool_use"}
        theirs = {"text", "image", "document", "tool_result"}
        need(kind in (mine if role == "assistant" else theirs), f"{where}: {kind} for {role}")
        if kind == "text":
            need(block["text"].strip(), f"{where}: text content blocks must be non-empty")
        elif kind in ("thinking", "redacted_thinking"):
            known = _fingerprint(block) in self._thoughts
            need(known, f"{where}: Invalid `signature` in `thinking` block")
        elif kind == "tool_use":
            need(isinstance(block["input"], dict), f"{where}: input should be an object")
            need(_ID.fullmatch(block["id"]), f"{where}: id {block['id']!r}")
        elif kind == "image":
            source = block["source"]
            need(source["type"] in ("base64", "url", "file"), f"{where}: {source['type']}")
            if source["type"] == "base64":
                need(source["media_type"].startswith("image/"), f"{where}: media type")

    def _check_binding(self, body: dict[str, Json]) -> None:
        for at, message in enumerate(body["messages"]):
            before = _fingerprint(_before(body, at))
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"].endswith("thinking"):
                    same = self._thoughts[_fingerprint(block)] == before
                    need(same, "The block is bound to a different conversation.")

    def _check_last_thoughts(self, messages: list[tuple[str, list[Json]]]) -> None:
        """While calls are being answered, the thoughts that led to them must be there."""
        if len(messages) < 2 or messages[-1][1][0]["type"] != "tool_result":
            return
        blocks = messages[-2][1]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        wanted = self._thought_before.get(calls[0], []) if calls else []
        there = [_fingerprint(block) for block in blocks if block["type"].endswith("thinking")]
        need(
            there == wanted,
            "`thinking` blocks in the latest assistant message cannot be modified",
        )

    # --- answers -------------------------------------------------------------------------

    def events(self, answer: Answer, body: dict[str, Json]) -> list[bytes]:
        if answer.events is not None:
            return [sse(event, event["type"]) for event in answer.events]
        given = answer.message
        blocks = given if isinstance(given, str) else given["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        self._remember(blocks, _fingerprint(_before(body, len(body["messages"]))))
        usage = dict(answer.usage or USAGE)
        start = {**usage, "output_tokens": 1}
        message: dict[str, Json] = {"id": "msg_1", "type": "message", "role": "assistant"}
        message |= {"model": body["model"], "content": [], "stop_reason": None, "usage": start}
        notified: list[dict[str, Json]] = [{"type": "message_start", "message": message}]
        notified.append({"type": "ping"})
        for index, block in enumerate(blocks):
            notified += _reported(index, block, answer.piece)
        called = any(block["type"] == "tool_use" for block in blocks)
        stop = answer.stop_reason or ("tool_use" if called else "end_turn")
        delta = {"stop_reason": stop, "stop_sequence": None}
        final = {"output_tokens": usage["output_tokens"]}
        notified.append({"type": "message_delta", "delta": delta, "usage": final})
        notified.append({"type": "message_stop"})
        return [sse(event, event["type"]) for event in notified]

    def _remember(self, blocks: list[Json], before: str) -> None:
        thoughts = [_fingerprint(b) for b in blocks if b["type"].endswith("thinking")]
        self._thoughts.update(dict.fromkeys(thoughts, before))
        for block in blocks:
            if block["type"] == "tool_use":
                self._thought_before[block["id"]] = thoughts

    def failure(self, failure: Failure) -> dict[str, Json]:
        kind = failure.kind or _STATUS_KINDS.get(failure.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": failure.message}}

    def broken(self, kind: str) -> bytes:
        error = {"type": kind, "message": "broken in the middle"}
        return sse({"type": "error", "error": error}, "error")


def _reported(index: int, block: Json, piece: int) -> list[dict[str, Json]]:
    """The events of one block. A `tool_use` may give its input as text, to be malformed."""
    kind = block["type"]
    empty = dict(block)
    deltas: list[dict[str, Json]] = []
    if kind == "text":
        empty["text"] = ""
        deltas = [{"type": "text_delta", "text": text} for text in pieces(block["text"], piece)]
    elif kind == "thinking":
        empty |= {"thinking": "", "signature": ""}
        thoughts = pieces(block["thinking"], piece)
        deltas = [{"type": "thinking_delta", "thinking": text} for text in thoughts]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind == "tool_use":
        empty["input"] = {}
        given = block["input"]
        text = given if isinstance(given, str) else json.dumps(given)
        parts = ["", *pieces(text, piece)]
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    around = {"index": index}
    return [
        {"type": "content_block_start", **around, "content_block": empty},
        *({"type": "content_block_delta", **around, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", **around},
    ]


def _before(body: dict[str, Json], at: int) -> Json:
    """All that a model has seen before the message at a place."""
    return [body.get("system"), body.get("tools"), body["messages"][:at]]


def _fingerprint(block: Json) -> str:
    return hashlib.sha256(json.dumps(block, sort_keys=True).encode()).hexdigest()


def _merged(messages: list[Json]) -> list[tuple[str, list[Json]]]:
    """Messages as blocks; the API joins neighbours of one role before it checks."""
    merged: list[tuple[str, list[Json]]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], list(blocks)))
    return merged
