"""From a provider, a model and the options of a session to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import InvalidData
from ..events import Json
from ..session.turns import Limits
from .compaction import Compaction
from .hooks import Hooks
from .loop import Loop
from .models.base import Model, open_model
from .permissions import Permissions
from .subagents import spawn
from .tools import tools_named

_MODEL = ("base_url", "api_key", "timeout", "headers", "extra", "replies", "format", "delay")
_LOOP = (
    "max_turns", "retries", "tool_timeout", "max_tokens", "temperature", "task_depth",
    "task_seconds", "limits",
)  # fmt: skip
_PERMISSIONS = ("can_use_tool", "phase", "allow", "deny")
_OTHERS = (*_PERMISSIONS, "tools", "hooks", "roots", "window")


def open_agent(provider: str, model: str, options: Mapping[str, Json]) -> Loop:
    """The built-in loop on a model.

    Options: `tools`, `can_use_tool`, `phase`, `allow`, `deny`, `hooks`, `roots`, `window`
    (tokens that the model can read), and those of the model and of the loop.
    """
    parts = _parts(options)

    def opener(name: str) -> Model:
        return open_model(provider, name, **{n: options[n] for n in _MODEL if n in options})

    return Loop(model=opener(model), spawn=spawn, opener=opener, **parts)


def check_options(options: Mapping[str, Json]) -> None:
    """Raise `InvalidData` for options that no agent can be made with."""
    _parts(options)


def _parts(options: Mapping[str, Json]) -> dict[str, Json]:
    """What a loop is made of, besides its model."""
    unknown = set(options) - {*_MODEL, *_LOOP, *_OTHERS}
    if unknown:
        known = ", ".join(sorted((*_MODEL, *_LOOP, *_OTHERS)))
        raise InvalidData(f"an agent has no option `{min(unknown)}`; there are {known}")
    if not isinstance(options.get("limits"), Limits | None):
        raise InvalidData("`limits` are `backtrail.turns.Limits`")
    return {
        "tools": tools_named(options.get("tools") or "none"),
        "permissions": Permissions(**{n: options[n] for n in _PERMISSIONS if n in options}),
        "hooks": Hooks(options.get("hooks") or {}),
        "compaction": Compaction(window=options.get("window")),
        "roots": tuple(Path(root).resolve() for root in options.get("roots", ())),
        **{name: options[name] for name in _LOOP if name in options},
    }
