"""Once, and done: an agent's answer to one prompt, or a single call of a model.

`run` is a session of one turn, which is forgotten unless it gets a store. `query` has no
session and no tools: it asks a model and returns what it said.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from .calls import repair
from .errors import Unsupported
from .events import Json
from .formats.messages import convert
from .messages import as_message, format_of, text_of
from .sending import Content
from .session import Session

if TYPE_CHECKING:
    from .agent.models.base import Model, ModelFailed, Reply, Request, StopReason
    from .conversation import SessionOptions
    from .stores.base import Store
    from .turns import Result

RETRIES = 4
"""How often a model that failed for a while is asked again."""


@dataclass(frozen=True, slots=True)
class Answer:
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
    max_turns: int | None = None,
    budget: float | None = None,
    **options: Unpack[SessionOptions],
) -> Result:
    """Let an agent answer one prompt.

    The options are those of `Session.open`: `agent`, or `provider` and `model`, `tools`,
    `phase`, `cwd` and the rest. Without a `store` nothing is recorded, so there is nothing
    to go back to, and `Result.files` is empty. The other keywords are those of `send`.
    """
    with Session.open("null:" if store is None else store, session_id, **options) as session:
        try:
            return session.send(prompt, id=id, max_turns=max_turns, budget=budget)
        finally:
            model = _own_model(session.agent, options)
            if model is not None:
                model.close()


async def arun(
    prompt: Content,
    *,
    store: Store | str | None = None,
    session_id: str | None = None,
    id: str | None = None,
    max_turns: int | None = None,
    budget: float | None = None,
    **options: Unpack[SessionOptions],
) -> Result:
    """`run`, on the caller's loop."""
    from .aio import AsyncSession

    place = "null:" if store is None else store
    async with await AsyncSession.open(place, session_id, **options) as session:
        try:
            return await session.send(prompt, id=id, max_turns=max_turns, budget=budget)
        finally:
            model = _own_model(session.agent, options)
            if model is not None:
                await model.aclose()


def _own_model(agent: object, options: SessionOptions) -> Model | None:
    """The model that was opened for this run alone; one that the caller made is theirs."""
    if callable(options.get("agent")) or not callable(agent):
        return None
    from .agent.models.base import Model

    model = getattr(agent, "model", None)
    return model if isinstance(model, Model) else None


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
    `api_key`, `timeout` …), or a model that you made. `ModelFailed` if there is no answer;
    a failure that may pass is tried again, `retries` times.
    """
    asked = _opened(model, provider, options)
    try:
        request = _request(asked, content, system_prompt, max_tokens, temperature, stop)
        for attempt in range(retries + 1):
            try:
                with closing(asked.stream(request)) as parts:  # type: ignore[type-var]
                    return _answer(asked, next(p for p in parts if _is_reply(p)))
            except _failed() as error:
                time.sleep(_wait(error, attempt, retries))
        raise AssertionError("unreachable")
    finally:
        if asked is not model:
            asked.close()
