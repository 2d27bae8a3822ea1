"""A server of chat completions, as strict as OpenAI's where an agent can go wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .base import Answer, Failure, Json, ModelServer, need, pieces, sse

_FIELDS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "refusal", "audio", "tool_calls", "function_call"},
    "tool": {"role", "content", "tool_call_id"},
}
_BLOCKS = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "file", "input_audio"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
}
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


class OpenAIServer(ModelServer):
    """Chat completions.

    `strict` refuses fields that OpenAI does not know, as OpenAI does; without it, arguments
    of earlier calls must be JSON objects, as vLLM and Ollama demand.
    """

    path = "/v1/chat/completions"
    prefix = "/v1"

    def __init__(self, *, strict: bool = False, usage: bool = True) -> None:
        super().__init__()
        self.strict = strict
        self.usage = usage

    # --- rules ---------------------------------------------------------------------------

    def check(self, body: dict[str, Json], headers: Mapping[str, str]) -> None:
        need(headers.get("authorization", "").startswith("Bearer "), "no API key")
        need(body.get("model") and body.get("stream") is True, "model and stream are required")
        need(body.get("messages"), "messages must not be empty")
        for tool in body.get("tools", ()):
            need(tool["type"] == "function" and tool["function"]["name"], "a tool has no name")
            need(tool["function"]["parameters"]["type"] == "object", "parameters are no object")
        waiting: list[str] = []
        for at, message in enumerate(body["messages"]):
            where = f"messages.[{at}]"
            role = message.get("role")
            need(role in _FIELDS, f"{where}: invalid role {role!r}")
            if role == "tool":
                need(
                    message.get("tool_call_id") in waiting,
                    f"{where}: messages with role 'tool' must be a response to a preceding "
                    "message with 'tool_calls'",
                )
                waiting.remove(message["tool_call_id"])
            else:
                need(not waiting, f"{where}: tool_call_ids without response messages: {waiting}")
            self._check_message(where, role, message)
            waiting += [call["id"] for call in message.get("tool_calls") or ()]
        need(not waiting, f"tool_call_ids did not have response messages: {waiting}")

    def _check_message(self, where: str, role: str, message: dict[str, Json]) -> None:
        unknown = message.keys() - _FIELDS[role]
        need(not (self.strict and unknown), f"{where}: unrecognized fields {sorted(unknown)}")
        content = message.get("content")
        calls = message.get("tool_calls")
        empty = role == "assistant" and (calls or message.get("refusal"))
        need(isinstance(content, str | list) or empty, f"{where}: content must not be null")
        for block in content if isinstance(content, list) else ():
            need(block["type"] in _BLOCKS[role], f"{where}: no {block['type']} for {role}")
            if block["type"] == "image_url":
                url = block["image_url"]["url"]
                need(url.startswith(("http", "data:image/")), f"{where}: invalid image {url[:20]}")
        need("tool_calls" not in message or calls, f"{where}: tool_calls must not be empty")
        ids = [call["id"] for call in calls or ()]
        need(all(ids) and len(set(ids)) == len(ids), f"{where}: ids of calls: {ids}")
        for call in calls or ():
            arguments = call["function"]["arguments"]
            need(isinstance(arguments, str), f"{where}: arguments must be a string")
            if not self.strict:
                need(_is_object(arguments), f"{where}: arguments are not JSON: {arguments}")

    # --- answers -------------------------------------------------------------------------

    def events(self, answer: Answer, body: dict[str, Json]) -> list[bytes]:
        if answer.events is not None:
            return [*(sse(event) for event in answer.events), sse("[DONE]")]
        given = answer.message
        message = {"content": given} if isinstance(given, str) else dict(given)
        deltas: list[dict[str, Json]] = [{"role": "assistant", "content": ""}]
        for name in ("reasoning_content", "reasoning", "content", "refusal"):
            if isinstance(text := message.get(name), str):
                deltas += [{name: piece} for piece in pieces(text, answer.piece)]
        deltas += self._calls(message.get("tool_calls") or (), answer.piece)
        stop = answer.stop_reason or ("tool_calls" if message.get("tool_calls") else "stop")
        chunks = [self._chunk(body, {"delta": delta, "finish_reason": None}) for delta in deltas]
        chunks.append(self._chunk(body, {"delta": {}, "finish_reason": stop}))
        wanted = body.get("stream_options", {}).get("include_usage")
        if wanted and self.usage:
            last = self._chunk(body, None)
            chunks.append({**last, "usage": answer.usage or USAGE})
        return [*(sse(chunk) for chunk in chunks), sse("[DONE]")]

    def _calls(self, calls: Json, piece: int) -> list[dict[str, Json]]:
        """Pieces of all calls, in turn, as a server may send parallel ones."""
        first: list[Json] = []
        rest: list[tuple[int, Json]] = []
        for index, call in enumerate(calls):
            function = {"name": call["function"]["name"], "arguments": ""}
            head = {"index": index, "type": "function", "function": function}
            first.append({"tool_calls": [head | ({"id": call["id"]} if "id" in call else {})]})
            for at, text in enumerate(pieces(call["function"]["arguments"], piece)):
                part = {"index": index, "function": {"arguments": text}}
                rest.append((at, {"tool_calls": [part]}))
        return first + [part for _, part in sorted(rest, key=lambda pair: pair[0])]

    def _chunk(self, body: dict[str, Json], choice: Json) -> dict[str, Json]:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_790_000_000,
            "model": body["model"],
            "choices": [] if choice is None else [{"index": 0, **choice}],
        }

    def failure(self, failure: Failure) -> dict[str, Json]:
        error = {"message": failure.message, "type": failure.kind or "server_error"}
        return {"error": {**error, "code": failure.code, "param": None}}

    def broken(self, kind: str) -> bytes:
        return sse({"error": {"message": "broken in the middle", "type": kind, "code": None}})


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
