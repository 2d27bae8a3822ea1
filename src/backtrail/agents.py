"""From a name to an agent: "provider:model" goes to a factory found by entry point.

The core imports no agent. A factory in the group `backtrail.agents` takes the model's name
and the options of the session, and returns a callable that answers a turn.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from .errors import Unsupported
from .events import Json

Factory = Callable[[str, str, Mapping[str, Json]], Callable[..., Json]]
"""What an entry point is: it takes the provider, the model, and the session's options."""

# Asking for entry points takes longer than making the agent, so our own need no asking.
_OWN = ("openai", "anthropic", "ollama", "vllm", "lmstudio", "openrouter", "scripted")


def resolve_agent(name: object, options: Mapping[str, Json]) -> Callable[..., Json]:
    """The agent that `"provider:model"` names."""
    if not isinstance(name, str) or ":" not in name:
        raise Unsupported(f"{name!r} is no agent: give a callable, or 'provider:model'")
    provider, _, model = name.partition(":")
    if provider in _OWN:
        opening = importlib.import_module("backtrail.agent.opening")
        agent: Callable[..., Json] = opening.open_agent(provider, model, options)
        return agent
    from importlib.metadata import entry_points

    for point in entry_points(group="backtrail.agents", name=provider):
        factory: Factory = point.load()
        return factory(provider, model, options)
    known = ", ".join(_OWN)
    raise Unsupported(f"no agent for `{provider}` is installed; this version knows {known}")
