"""What a model is: it takes a `Request` and streams `Delta`s, then one `Reply`.

A model holds no conversation and retries nothing. What goes wrong at the provider is a
`ModelFailed` that says whether asking again may help.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

from ...errors import BacktrailError, Unsupported
from ...events import Format, Json

StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal"]
"""Why a model stopped, in one set of words."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model gets it; `schema` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    schema: dict[str, Json] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model.

    `messages` are in the model's own format. The system prompt is the first of them for
    `openai`, and in `system` for `anthropic`; either model takes it in both places.
    """

    messages: list[dict[str, Json]]
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of what the model is saying or thinking."""

    kind: Literal["text_delta", "thinking_delta"]
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole answer: a message in the model's format, to be stored and sent back as it is.

    `usage` has the names of `messages.normal_usage`, and is empty where the server gave none.
    """

    message: dict[str, Json]
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: StopReason = "end_turn"
    model: str = ""


class ModelFailed(BacktrailError, RuntimeError):
    """A model gave no answer. If `transient`, the same request may succeed later.

    `status` is that of HTTP, where there was one. `retry_after` is how many seconds the
    server asked to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.status = status
        self.retry_after = retry_after


class Model(ABC):
    """A model at a provider.

    `stream` may be called from several threads. `astream` belongs to one event loop, in
    which `aclose` must be awaited. An iterator that is closed early ends its connection.
    """

    provider: str
    name: str
    format: Format

    @abstractmethod
    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        """Ask the model; the last item, and only that, is a `Reply`. Raises `ModelFailed`."""

    @abstractmethod
    def astream(self, request: Request) -> AsyncIterator[Delta | Reply]:
        """`stream`, asynchronously."""

    def close(self) -> None:  # noqa: B027 - most tests' models hold nothing
        """Let go of connections; twice is the same as once."""

    async def aclose(self) -> None:
        """`close`, for a model that was used asynchronously."""
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.provider}:{self.name}>"


# --- finding one -------------------------------------------------------------------------

_HOMES = {
    "anthropic": ("anthropic", "AnthropicModel"),
    "lmstudio": ("openai", "OpenAIModel"),
    "ollama": ("openai", "OpenAIModel"),
    "openai": ("openai", "OpenAIModel"),
    "openrouter": ("openai", "OpenAIModel"),
    "scripted": ("scripted", "ScriptedModel"),
    "vllm": ("openai", "OpenAIModel"),
}

PROVIDERS = tuple(_HOMES)
"""The providers `open_model` knows."""


def open_model(provider: str, model: str, **options: Json) -> Model:
    """A model at a provider: one of `PROVIDERS`.

    Options of all but `scripted` are `base_url`, `api_key`, `timeout` (seconds), `headers`,
    and `extra` (further fields of each request, as the provider names them). A local server
    needs neither; the others take their key from the environment if none is given.
    """
    if provider not in _HOMES:
        raise Unsupported(
            f"`{provider}` is not a provider of models: use {', '.join(PROVIDERS)}, or "
            "`openai` with `base_url` for any server that speaks its protocol"
        )
    home, name = _HOMES[provider]
    made: Callable[..., Model] = getattr(import_module(f".{home}", __package__), name)
    where = {} if provider == "scripted" else {"provider": provider}
    return made(name=model, **where, **options)
