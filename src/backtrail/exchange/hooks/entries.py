"""Our hooks in an agent's settings file: found, put in, taken out. Text in, text out.

Each event has groups of hooks, each group a matcher and its hooks. Ours is a group of its
own; a person who put another hook into it keeps that when ours goes.
"""

from __future__ import annotations

import math
import re

from ..._startup.frozen import NamedTuple
from ...errors import InvalidData
from ...events import Json
from ..shapes import inner, list_in
from .dialects import Dialect
from .jsonfiles import added, is_bare, parsed, removed

TIMEOUT = 10
"""Seconds after which the agent itself gives a hook up; the hook does so long before."""

SHORT = 3
"""Seconds for events of which the agent limits the hooks; it complains where more is asked."""

WAIT = 20.0
"""Seconds more for the hook before a call, which may wait for the first import, by default."""

NAME = "backtrail"
"""What our hooks are called where hooks have names."""

_SHORT_EVENTS = {"codex": ("SessionEnd", "Interrupt")}
_TOOL_EVENTS = (
    *("PreToolUse", "PermissionRequest", "PermissionDenied", "PostToolUse"),
    "PostToolUseFailure",
)


class Ours(NamedTuple):
    """One of our hooks in a file."""

    event: str
    group: int
    hook: int
    command: str
    alone: bool


def seconds_for(dialect: Dialect, event: str, wait: float = WAIT) -> int:
    """Seconds after which the agent may give our hook up."""
    if event in _SHORT_EVENTS.get(dialect.agent, ()):
        return SHORT
    return TIMEOUT + (math.ceil(wait) if dialect.events.get(event) == "before" else 0)


def _unit(dialect: Dialect) -> int:
    """How many of the agent's units of time a second has."""
    return 1000 if dialect.agent == "gemini" else 1


def group_for(dialect: Dialect, event: str, command: str, wait: float = WAIT) -> dict[str, Json]:
    """The group that has our hook called."""
    named = {"name": NAME} if dialect.agent == "gemini" else {}
    hook: dict[str, Json] = {**named, "type": "command", "command": command}
    hook["timeout"] = seconds_for(dialect, event, wait) * _unit(dialect)
    group: dict[str, Json] = {"hooks": [hook]}
    if dialect.agent == "claude-code" and event in _TOOL_EVENTS:
        # Tools that only read do not even start a process.
        return {"matcher": f"^(?!(?:{'|'.join(sorted(dialect.readers))})$)", **group}
    return group


def is_ours(command: Json, agent: str) -> bool:
    """Whether a command is a hook of ours for that agent, wherever it was installed."""
    call = rf"(?:^|[\s/'\"])backtrail['\"]?\s+hook\s+{re.escape(agent)}\s*$"
    return isinstance(command, str) and re.search(call, command) is not None


def find_ours(text: str, name: str, agent: str) -> list[Ours]:
    """Our hooks in a settings file."""
    found: list[Ours] = []
    for event, groups in _hooks(parsed(text, name, agent), name).items():
        for at, group in enumerate(groups):
            hooks = list_in(group, "hooks")
            for number, hook in enumerate(hooks):
                if is_ours(inner(hook, "command"), agent):
                    found.append(Ours(event, at, number, hook["command"], len(hooks) == 1))
    return found


def waiting(text: str, name: str, dialect: Dialect) -> float:
    """How long the hook before a call may wait, as a settings file has it; 0 if not at all."""
    before = [event for event, verb in dialect.events.items() if verb == "before"]
    hooks = _hooks(parsed(text, name, dialect.agent), name)
    ours = find_ours(text, name, dialect.agent)
    found = [hooks[o.event][o.group]["hooks"][o.hook] for o in ours if o.event in before]
    given = [hook.get("timeout") for hook in found]
    numbers = [value / _unit(dialect) for value in given if isinstance(value, (int, float))]
    return max(0.0, min(numbers, default=0.0) - TIMEOUT)


def with_ours(text: str, name: str, dialect: Dialect, command: str, wait: float = WAIT) -> str:
    """The text with our hooks for every event; nothing changes if they are there."""
    wanted = {event: group_for(dialect, event, command, wait) for event in dialect.events}
    if _is_installed(text, name, dialect, wanted):
        return text
    text = without_ours(text, name, dialect.agent)
    if not text.strip():
        text = "{}\n"
    for event, group in wanted.items():
        settings = parsed(text, name, dialect.agent)
        if "hooks" not in settings:
            text = added(text, (), "hooks", {event: [group]})
        elif event not in settings["hooks"]:
            text = added(text, ("hooks",), event, [group])
        else:
            text = added(text, ("hooks", event), None, group)
    return text


def without_ours(text: str, name: str, agent: str) -> str:
    """The text without our hooks, and without what held nothing else."""
    for ours in reversed(find_ours(text, name, agent)):
        if not ours.alone:
            text = removed(text, ("hooks", ours.event, ours.group, "hooks", ours.hook))
            continue
        text = removed(text, ("hooks", ours.event, ours.group))
        for path in (("hooks", ours.event), ("hooks",)):
            text = removed(text, path) if is_bare(text, path) else text
    return text


def _is_installed(
    text: str, name: str, dialect: Dialect, wanted: dict[str, dict[str, Json]]
) -> bool:
    hooks = _hooks(parsed(text, name, dialect.agent), name)
    ours = find_ours(text, name, dialect.agent)
    at = {(one.event, one.group) for one in ours}
    there = all(wanted.get(event) == hooks[event][group] for event, group in at)
    return there and sorted(event for event, _ in at) == sorted(wanted)


def _hooks(settings: dict[str, Json], name: str) -> dict[str, list[Json]]:
    """The hooks by event; `InvalidData` where they have another shape."""
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise InvalidData(f"{name}: `hooks` should be an object: mend the file first")
    for event, groups in hooks.items():
        # Gemini keeps switches here, too: those are not events.
        if not isinstance(groups, list) and event[:1].isupper():
            raise InvalidData(f"{name}: `hooks.{event}` should be a list: mend the file first")
    return {event: groups for event, groups in hooks.items() if isinstance(groups, list)}
