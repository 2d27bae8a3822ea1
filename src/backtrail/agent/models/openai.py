"""OpenAI-compatible chat completions: OpenAI, Ollama, vLLM, LM Studio, OpenRouter.

Servers differ in what they tolerate. OpenAI itself refuses fields it does not know, so
reasoning of other servers is not sent to it. The others read the arguments of earlier calls
as JSON, so for them arguments that are none are wrapped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import Unsupported
from ...events import Format, Json, new_id
from ...events.messages import normal_usage
from ...formats.parts import as_json_text, as_object, mappings
from .base import Delta, ModelFailed, Reply, Request, StopReason
from .hosted import Assembly, HostedModel


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a provider is, and the variable with its key; a local one needs none."""

    url: str
    key: str | None = None


_PLACES = {
    "openai": _Place("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": _Place("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "ollama": _Place("http://localhost:11434/v1"),
    "vllm": _Place("http://localhost:8000/v1"),
    "lmstudio": _Place("http://localhost:1234/v1"),
}
_NO_KEY = "not-needed"
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


class OpenAIModel(HostedModel):
    """A model that speaks chat completions.

    `strict` says that the server is as particular as OpenAI's own; by default that is so
    for OpenAI's address.
    """

    package = "openai"
    format: Format = "openai"

    def __init__(
        self,
        name: str,
        *,
        provider: str = "openai",
        base_url: str | None = None,
        api_key: str | None = None,
        strict: bool | None = None,
        **options: Json,
    ) -> None:
        place = _PLACES[provider]
        if base_url is None and provider == "openai":
            base_url = os.environ.get("OPENAI_BASE_URL")
        key = api_key or (os.environ.get(place.key) if place.key else None)
        if not key and place.key and not base_url:
            raise Unsupported(f"no key for `{provider}`: set {place.key}, or give `api_key`")
        url = base_url or place.url
        self.strict = "//api.openai.com" in url if strict is None else strict
        super().__init__(provider, name, base_url=url, api_key=key or _NO_KEY, **options)

    def _make(self, sdk: Any, is_async: bool) -> Any:
        client = (sdk.AsyncOpenAI if is_async else sdk.OpenAI)(**self._options)
        if self.provider != "openai":
            # The client reads these from the environment; they are for OpenAI alone.
            client.organization = client.project = None
        return client

    def _create(self, client: Any) -> Any:
        return client.chat.completions.create

    def _assembly(self, request: Request) -> Assembly:
        return _Chat(self.name, request)

    def _body(self, request: Request) -> dict[str, Json]:
        messages = [self._sent(message) for message in request.messages]
        if request.system and not (messages and messages[0].get("role") == "system"):
            messages.insert(0, {"role": "system", "content": request.system})
        body: dict[str, Json] = {
            "model": self.name,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_body": self.extra or None,
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.schema,
                    },
                }
                for tool in request.tools
            ]
        if request.max_tokens is not None:
            body["max_completion_tokens" if self.strict else "max_tokens"] = request.max_tokens
        if request.stop:
            body["stop"] = list(request.stop)
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return body

    def _sent(self, message: dict[str, Json]) -> dict[str, Json]:
        """A message as this server takes it."""
        if message.get("role") != "assistant":
            return message
        if self.strict:
            return {key: value for key, value in message.items() if key not in _REASONING}
        calls = mappings(message.get("tool_calls"))
        return {**message, "tool_calls": [_readable(call) for call in calls]} if calls else message


def _readable(call: Mapping[str, Json]) -> Mapping[str, Json]:
    """A call whose arguments are the JSON text of an object."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = as_json_text(function.get("arguments") or "")
    try:
        fine = isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        fine = False
    if fine:
        return call
    wrapped = msgspec.json.encode(as_object(arguments)).decode()
    return {**call, "function": {**function, "arguments": wrapped}}


# --- what comes back ---------------------------------------------------------------------

_STOPS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class _Chat(Assembly):
    """A chat message put together from chunks."""

    def __init__(self, name: str, request: Request) -> None:
        self._name = name
        self._stop = request.stop
        self._texts: dict[str, list[str]] = {}
        self._details: list[dict[str, Json]] = []
        self._calls: list[dict[str, Json]] = []
        self._at: dict[int, dict[str, Json]] = {}
        self._usage: Mapping[str, Json] = {}
        self._finish: str | None = None
        self._matched: Json = None

    def take(self, event: Mapping[str, Json]) -> list[Delta]:
        if isinstance(event.get("usage"), Mapping):
            self._usage = event["usage"]
        self._name = event.get("model") or self._name
        deltas: list[Delta] = []
        for choice in mappings(event.get("choices"))[:1]:
            if isinstance(delta := choice.get("delta"), Mapping):
                deltas += self._hear(delta)
            if choice.get("finish_reason") == "error":
                raise ModelFailed(f"`{self._name}` broke off without a reason", transient=True)
            if choice.get("finish_reason"):
                self._finish = str(choice["finish_reason"])
                self._matched = choice.get("stop_reason")
                self.complete = True
        return deltas

    def _hear(self, delta: Mapping[str, Json]) -> list[Delta]:
        for name in ("content", "refusal", "reasoning_content", "reasoning"):
            if isinstance(text := delta.get(name), str) and text:
                self._texts.setdefault(name, []).append(text)
        for detail in mappings(delta.get("reasoning_details")):
            self._detail(dict(detail))
        for call in mappings(delta.get("tool_calls")):
            self._call(call)
        # Some servers say the same thought under both names.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        said = delta.get("content") or delta.get("refusal")
        deltas = [Delta("thinking_delta", thought)] if isinstance(thought, str) and thought else []
        return deltas + ([Delta("text_delta", said)] if isinstance(said, str) and said else [])

    def _detail(self, detail: dict[str, Json]) -> None:
        """A piece of OpenRouter's reasoning; pieces of one block have its type and index."""
        last = self._details[-1] if self._details else {}
        key = ("type", "index")
        if not last or [last.get(name) for name in key] != [detail.get(name) for name in key]:
            self._details.append(detail)
            return
        for name, value in detail.items():
            grows = name in ("text", "summary", "data") and isinstance(last.get(name), str)
            if grows and isinstance(value, str):
                last[name] += value
            elif value is not None:
                last[name] = value

    def _call(self, piece: Mapping[str, Json]) -> None:
        """A piece of a call. Some servers give every call the index 0, or none at all."""
        index, id = piece.get("index"), piece.get("id")
        function = piece.get("function")
        function = function if isinstance(function, Mapping) else {}
        call = self._at.get(index) if isinstance(index, int) else None
        if not isinstance(index, int) and self._calls and not (id or function.get("name")):
            call = self._calls[-1]
        if call is None or (id and call["id"] and id != call["id"]):
            call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            self._calls.append(call)
            if isinstance(index, int):
                self._at[index] = call
        call["id"] = call["id"] or id or ""
        known = call["function"]
        if (name := function.get("name")) and name != known["name"] and not known["arguments"]:
            known["name"] += name
        if (arguments := function.get("arguments")) is not None:
            known["arguments"] += as_json_text(arguments)
        for key, value in piece.items():
            if key not in ("index", "id", "type", "function") and value is not None:
                call[key] = value

    def reply(self) -> Reply:
        message: dict[str, Json] = {"role": "assistant"}
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        calls = self._identified()
        nothing = None if calls or "refusal" in texts else ""
        message["content"] = texts.pop("content", nothing)
        message |= texts
        if self._details:
            message["reasoning_details"] = self._details
        if calls:
            message["tool_calls"] = calls
        return Reply(message, normal_usage(self._usage), self._reason(message), self._name)

    def _identified(self) -> list[dict[str, Json]]:
        """The calls, each with an id of its own; no arguments are an empty object."""
        seen: set[str] = set()
        for call in self._calls:
            if not call["id"] or call["id"] in seen:
                call["id"] = f"call_{new_id().replace('-', '')}"
            seen.add(call["id"])
            call["function"]["arguments"] = call["function"]["arguments"] or "{}"
        return self._calls

    def _reason(self, message: Mapping[str, Json]) -> StopReason:
        reason = _STOPS.get(self._finish or "", "end_turn")
        if reason == "end_turn":
            if message.get("tool_calls"):
                return "tool_use"
            if message.get("refusal"):
                return "refusal"
            # vLLM says which of the wanted words ended the answer.
            if self._matched in self._stop and self._matched is not None:
                return "stop_sequence"
        return reason
