"""Anthropic's Messages API.

Blocks are kept as they came, signatures and encrypted thinking included, and go back the
same: the API refuses thinking that was changed. What it no longer takes because the
conversation before it has changed is left out, in the request alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...errors import Unsupported
from ...events import Format, Json
from ...events.messages import normal_usage
from ...formats.parts import as_object, mappings
from .base import Delta, ModelFailed, Reply, Request, StopReason
from .hosted import Assembly, HostedModel

MAX_TOKENS = 16_384
"""How long an answer may be where the caller does not say; the API wants a number."""

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")


class AnthropicModel(HostedModel):
    """A model that speaks the Messages API."""

    package = "anthropic"
    format: Format = "anthropic"

    def __init__(
        self,
        name: str,
        *,
        provider: str = "anthropic",
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Json,
    ) -> None:
        if not api_key and not any(os.environ.get(key) for key in _KEYS):
            if not base_url:
                raise Unsupported(f"no key for `{provider}`: set {_KEYS[0]}, or give `api_key`")
            api_key = "not-needed"
        super().__init__(provider, name, base_url=base_url, api_key=api_key, **options)

    def _make(self, sdk: Any, is_async: bool) -> Any:
        return (sdk.AsyncAnthropic if is_async else sdk.Anthropic)(**self._options)

    def _create(self, client: Any) -> Any:
        return client.messages.create

    def _assembly(self, request: Request) -> Assembly:
        return _Blocks(self.name)

    def _body(self, request: Request) -> dict[str, Json]:
        system, messages = _parted(request)
        body: dict[str, Json] = {
            "model": self.name,
            "max_tokens": MAX_TOKENS if request.max_tokens is None else request.max_tokens,
            "messages": messages,
            "stream": True,
            "extra_body": self.extra or None,
        }
        if system:
            body["system"] = system
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
                for tool in request.tools
            ]
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        if request.temperature is not None:
            # Anthropic itself refuses it by now, and says so; others that speak this do not.
            body["extra_body"] = {"temperature": request.temperature, **self.extra}
        return body

    def _mend(self, body: dict[str, Json], failure: Exception, error: Exception) -> dict[str, Json]:
        """Without thinking, where the API finds it bound to another conversation.

        That is so after a compaction, or if the system prompt or the tools have changed.
        """
        bound = isinstance(failure, ModelFailed) and failure.status == 400
        if bound and "bound to a different" in str(failure):
            unthinking = [_unthinking(message) for message in body["messages"]]
            if unthinking != body["messages"]:
                return {**body, "messages": [m for m in unthinking if m["content"]]}
        return super()._mend(body, failure, error)


def _unthinking(message: dict[str, Json]) -> dict[str, Json]:
    """A message without the blocks of thinking in it."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    kinds = ("thinking", "redacted_thinking")
    return {**message, "content": [block for block in content if block.get("type") not in kinds]}


def _parted(request: Request) -> tuple[Json, list[dict[str, Json]]]:
    """The system prompt, and the messages with nothing but what the API knows.

    A message without content is refused there, and says nothing.
    """
    system: Json = request.system
    messages = request.messages
    if messages and messages[0].get("role") == "system":
        system = system or messages[0].get("content")
        messages = messages[1:]
    return system, [
        {"role": message.get("role"), "content": message["content"]}
        for message in messages
        if message.get("content")
    ]


# --- what comes back ---------------------------------------------------------------------

_STOPS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
}
_GROWING = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class _Blocks(Assembly):
    """A message put together from events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._blocks: dict[int, dict[str, Json]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._usage: dict[str, Json] = {}
        self._stop: str | None = None

    def take(self, event: Mapping[str, Json]) -> list[Delta]:
        kind = event.get("type")
        if kind == "message_start":
            message = event.get("message") or {}
            self._name = message.get("model") or self._name
            self._count(message.get("usage"))
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            return self._grow(event["index"], event["delta"])
        elif kind == "message_delta":
            self._stop = event["delta"].get("stop_reason") or self._stop
            self._count(event.get("usage"))
            self.complete = self._stop is not None
        return []

    def _count(self, usage: Json) -> None:
        """Counts grow while the answer does: the last count holds."""
        if isinstance(usage, Mapping):
            self._usage |= {name: count for name, count in usage.items() if count is not None}

    def _grow(self, index: int, delta: Mapping[str, Json]) -> list[Delta]:
        kind = delta.get("type")
        block = self._blocks[index]
        if kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        name = _GROWING.get(kind) if isinstance(kind, str) else None
        piece = delta.get(name) if name else None
        if name is None or not isinstance(piece, str):
            return []
        if name == "partial_json":
            self._inputs.setdefault(index, []).append(piece)
            return []
        block[name] = (block.get(name) or "") + piece
        if not piece or name == "signature":
            return []
        return [Delta("text_delta" if name == "text" else "thinking_delta", piece)]

    def reply(self) -> Reply:
        for index, pieces in self._inputs.items():
            self._blocks[index]["input"] = as_object("".join(pieces))
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        # A block of text without a word is refused when it is sent back.
        content = [b for b in blocks if b.get("type") != "text" or str(b.get("text")).strip()]
        reason = _STOPS.get(self._stop or "", "end_turn")
        if reason == "end_turn" and any(b.get("type") == "tool_use" for b in mappings(content)):
            reason = "tool_use"
        message = {"role": "assistant", "content": content}
        return Reply(message, normal_usage(self._usage), reason, self._name)
