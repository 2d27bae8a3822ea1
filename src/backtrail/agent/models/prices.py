"""What tokens cost, in US dollars per million, as of a date.

List prices of the providers' own interfaces, in their standard tier and for prompts below
the length from which some models cost more. A model that is not in the table costs None:
an unknown price is better than a wrong one. `PRICES` may be added to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..._startup.frozen import NamedTuple

AS_OF = "2026-10-10"
"""The day the table was last compared with what the providers publish."""


class Price(NamedTuple):
    """Dollars per million tokens.

    `cached_in_input` says that the provider counts tokens read from its cache among the
    input tokens, as OpenAI does; Anthropic counts them beside.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    cached_in_input: bool = False


def _openai(input: float, cache_read: float, output: float) -> Price:
    """Writing to the cache costs nothing of its own."""
    return Price(input, output, cache_read, 0.0, cached_in_input=True)


def _anthropic(input: float, output: float, cache_read: float = 0.1) -> Price:
    """Writing costs a quarter more (for five minutes), reading the given share."""
    return Price(input, output, input * cache_read, input * 1.25)


PRICES: dict[str, Price] = {
    "claude-fable-5-1": _anthropic(10, 50, 0.025),
    "claude-fable-5": _anthropic(10, 50),
    "claude-opus-5-5": _anthropic(4, 20, 0.05),
    "claude-opus-5": _anthropic(5, 25),
    "claude-opus-4-8": _anthropic(5, 25),
    "claude-opus-4-7": _anthropic(5, 25),
    "claude-opus-4-6": _anthropic(5, 25),
    "claude-opus-4-5": _anthropic(5, 25),
    "claude-opus-4-1": _anthropic(15, 75),
    "claude-sonnet-5-5": _anthropic(2, 10, 0.05),
    "claude-sonnet-5": _anthropic(2, 10),
    "claude-sonnet-4-6": _anthropic(3, 15),
    "claude-sonnet-4-5": _anthropic(3, 15),
    "claude-haiku-4-5": _anthropic(1, 5),
    "gpt-5.5": _openai(5, 0.5, 30),
    "gpt-5.4": _openai(2.5, 0.25, 15),
    "gpt-5.4-mini": _openai(0.75, 0.075, 4.5),
    "gpt-5.4-nano": _openai(0.2, 0.02, 1.25),
    "gpt-5": _openai(1.25, 0.125, 10),
    "gpt-5-mini": _openai(0.25, 0.025, 2),
    "gpt-5-nano": _openai(0.05, 0.005, 0.4),
    "gpt-4.1": _openai(2, 0.5, 8),
    "gpt-4.1-mini": _openai(0.4, 0.1, 1.6),
    "gpt-4.1-nano": _openai(0.1, 0.025, 0.4),
    "gpt-4o": _openai(2.5, 1.25, 10),
    "gpt-4o-mini": _openai(0.15, 0.075, 0.6),
    "o3": _openai(2, 0.5, 8),
    "o4-mini": _openai(1.1, 0.275, 4.4),
}
"""Prices by the model's name, without the provider before it and the date behind it."""

_DATE = r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$"


def price_of(model: str) -> Price | None:
    """The price of a model, also under the name of one of its versions; None if unknown."""
    name = model.strip().lower().removeprefix("openai/").removeprefix("anthropic/")
    # OpenRouter writes versions of Claude with a dot.
    names = [name, re.sub(_DATE, "", name)]
    names += [name.replace(".", "-") for name in names if name.startswith("claude")]
    return next((PRICES[name] for name in names if name in PRICES), None)


def cost(model: str, usage: Mapping[str, int]) -> float | None:
    """Dollars for the tokens of one answer; None if the model or its tokens are unknown."""
    price = price_of(model)
    if price is None or not usage:
        return None
    read = usage.get("cache_read_tokens", 0)
    fresh = usage.get("input_tokens", 0) - (read if price.cached_in_input else 0)
    total = max(0, fresh) * price.input
    total += usage.get("output_tokens", 0) * price.output
    total += read * price.cache_read
    total += usage.get("cache_write_tokens", 0) * price.cache_write
    return total / 1_000_000
