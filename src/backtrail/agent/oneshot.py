"""Once, and done: an agent's answer to one prompt, or a single call of a model.

`run` is a session of one turn, which is forgotten unless it gets a store. `query` has no
session and no tools: it asks a model and returns what it said.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from ..errors import InvalidData
from ..events import AsDict, Json
from ..events.calls import repair
from ..events.messages import as_message, format_of, speech_of
from ..formats.messages import convert
from ..session.keywords import SessionOptions, checked
from ..session.session import Session
from ..session.turns import Content, Limits, Result, Retry
from ..stores.base import Store
from .models.base import Delta, Model, ModelFailed, Reply, Request, StopReason, open_model
from .models.prices import cost

RETRIES = 4
"""How often a model that failed for a while is asked again."""


@dataclass(frozen=True, slots=True)
class Answer(AsDict):
    """What a model said: `message` is in its own format, `cost_usd` None where unknown."""

    text: str
    message: dict[str, Json]
    usage: dict[str, int]
    cost_usd: float | None
    stop_reason: StopReason
    model: str


# --- an agent ----------------------------------------------------------------------------


def run(
    prompt: Content,
    *,
    store: Store | str | None = None,
    session_id: str | None = None,
    id: str | None = None,
    retry: Retry = "errors",
    max_turns: int | None = None,
    budget: float | Limits | None = None,
    **options: Unpack[SessionOptions],
) -> Result:
    """Let an agent answer one prompt.

    The options are those of `Session.open`: `agent`, or `provider` and `model`, `tools`,
    `phase`, `cwd` and the rest. Without a `store` nothing is recorded, so there is nothing
    to go back to, and `Result.files` is empty. The other keywords are those of `send`.
    """
    options = checked("run", options)
    with Session.open("null:" if store is None else store, session_id, **options) as session:
        return session.send(prompt, id=id, retry=retry, max_turns=max_turns, budget=budget)


async def arun(
    prompt: Content,
    *,
    store: Store | str | None = None,
    session_id: str | None = None,
    id: str | None = None,
    retry: Retry = "errors",
    max_turns: int | None = None,
    budget: float | Limits | None = None,
    **options: Unpack[SessionOptions],
) -> Result:
    """`run`, on the caller's loop."""
    from ..session.aio import AsyncSession

    options = checked("arun", options)
    place = "null:" if store is None else store
    async with await AsyncSession.open(place, session_id, **options) as session:
        return await session.send(prompt, id=id, retry=retry, max_turns=max_turns, budget=budget)


# --- a model -----------------------------------------------------------------------------


def query(
    content: str | Sequence[object],
    *,
    model: str | Model,
    provider: str | None = None,
    system_prompt: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    stop: Sequence[str] = (),
    retries: int = RETRIES,
    **options: Json,
) -> Answer:
    """Ask a model once, with a text or with messages in any format; nothing is kept.

    `model` is a name at a `provider`, with the options of `open_model` (`base_url`,
    `api_key`, `timeout` and so on), or a model that you made. `ModelFailed` if there is no
    answer; a failure that may pass is tried again, `retries` times.
    """
    asked = _opened(model, provider, options)
    try:
        request = _request(asked, content, system_prompt, max_tokens, temperature, stop)
        attempt = 0
        while True:
            try:
                return _answer(asked, list(asked.stream(request)))
            except ModelFailed as failed:
                time.sleep(_pause(failed, attempt, retries))
            attempt += 1
    finally:
        if asked is not model:
            asked.close()


async def aquery(
    content: str | Sequence[object],
    *,
    model: str | Model,
    provider: str | None = None,
    system_prompt: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    stop: Sequence[str] = (),
    retries: int = RETRIES,
    **options: Json,
) -> Answer:
    """`query`, on the caller's loop."""
    import anyio

    asked = _opened(model, provider, options)
    try:
        request = _request(asked, content, system_prompt, max_tokens, temperature, stop)
        attempt = 0
        while True:
            try:
                return _answer(asked, [part async for part in asked.astream(request)])
            except ModelFailed as failed:
                await anyio.sleep(_pause(failed, attempt, retries))
            attempt += 1
    finally:
        if asked is not model:
            await asked.aclose()


def _opened(model: str | Model, provider: str | None, options: dict[str, Json]) -> Model:
    if isinstance(model, str):
        if provider is None:
            raise InvalidData(f"at which provider is `{model}`? Give `provider=` too")
        return open_model(provider, model, **options)
    if provider is not None or options:
        raise InvalidData("a model that is made already takes no provider and no options")
    return model


def _request(
    model: Model,
    content: str | Sequence[object],
    system_prompt: str | None,
    max_tokens: int | None,
    temperature: float | None,
    stop: Sequence[str],
) -> Request:
    given = [{"role": "user", "content": content}] if isinstance(content, str) else content
    messages = [as_message(message) for message in given]
    if not messages:
        raise InvalidData("there is nothing to ask: `content` is empty")
    shown = repair(convert([(message, format_of(message)) for message in messages], model.format))
    return Request(shown, system_prompt, (), max_tokens, stop, temperature)


def _answer(model: Model, parts: list[Delta | Reply]) -> Answer:
    last = parts[-1] if parts else None
    if not isinstance(last, Reply):
        raise InvalidData(f"{model!r} ended its stream without a reply")
    name = last.model or model.name
    text, price = speech_of(last.message), cost(name, last.usage)
    return Answer(text, last.message, last.usage, price, last.stop_reason, name)


def _pause(failed: ModelFailed, attempt: int, retries: int) -> float:
    """How long to wait before the next try; raises the failure if there is none."""
    if not failed.transient or attempt >= retries:
        raise failed
    if failed.retry_after is not None:
        return failed.retry_after
    return min(30.0, 0.5 * 2.0**attempt) * (0.5 + random.random() / 2)
