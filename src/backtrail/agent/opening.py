"""From a provider, a model and the options of a session to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..events import Json
from .compaction import Compaction
from .hooks import Hooks
from .loop import Loop
from .models.base import open_model
from .permissions import Permissions
from .subagents import spawn
from .tools import tools_named

_MODEL = ("base_url", "api_key", "timeout", "headers", "extra", "replies", "format", "delay")
_LOOP = ("max_turns", "retries", "tool_timeout", "max_tokens", "temperature")


def open_agent(provider: str, model: str, options: Mapping[str, Json]) -> Loop:
    """The built-in loop on a model.

    Options: `tools`, `can_use_tool`, `phase`, `allow`, `deny`, `hooks`, `roots`, `window`
    (tokens that the model can read), and those of the model and of the loop.
    """
    permissions = Permissions(
        phase=options.get("phase", "default"),
        allow=tuple(options.get("allow", ())),
        deny=tuple(options.get("deny", ())),
        can_use_tool=options.get("can_use_tool"),
    )
    return Loop(
        model=open_model(provider, model, **{n: options[n] for n in _MODEL if n in options}),
        tools=tools_named(options.get("tools", "none")),
        permissions=permissions,
        hooks=Hooks(options.get("hooks", {})),
        compaction=Compaction(window=options.get("window")),
        roots=tuple(Path(root).resolve() for root in options.get("roots", ())),
        spawn=spawn,
        **{name: options[name] for name in _LOOP if name in options},
    )
