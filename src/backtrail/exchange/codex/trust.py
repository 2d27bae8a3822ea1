"""Whether an agent will run the hooks that are in its settings.

Codex runs none that a person has not looked at and trusted. What is trusted stands in the
person's `config.toml`, for each hook by its place in its file, with a hash of the hook itself.
Gemini CLI has a switch for all hooks, and a list of those that are off. Claude Code has a switch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...errors import BacktrailError
from ...events import Json
from ..hooks.dialects import home_of
from ..hooks.entries import NAME, Ours
from ..hooks.jsonfiles import parsed, read
from ..shapes import inner, object_in

HOW = "start `codex` and choose `Review hooks` or `Trust all and continue` (later: `/hooks`)"
"""What a person has to do."""


def untrusted(path: Path, text: str, ours: Sequence[Ours], project: Path | None) -> str | None:
    """Why Codex does not run our hooks in a file; None if it does.

    `project` is the folder whose file it is, None for the person's own.
    """
    settings = config()
    if settings is None:
        return f"{config_file()} cannot be read, so Codex does not start: mend it first"
    off = switched_off(settings)
    if off is not None:
        return off
    if project is not None and not _is_trusted_folder(settings, project):
        return "Codex runs hooks of a project only if you trust it: start `codex` there and say so"
    states = object_in(settings, "hooks", "state")
    hooks = object_in(parsed(text, str(path)), "hooks")
    found: dict[str, list[str]] = {"new": [], "changed": [], "off": []}
    for one in ours:
        key = next((key for key in _keys(path, one) if key in states), "")
        state = object_in(states, key)
        trusted = state.get("trusted_hash")
        if not trusted:
            found["new"].append(one.event)
        elif trusted != hash_of(one.event, hooks[one.event][one.group], one.hook):
            found["changed"].append(one.event)
        elif state.get("enabled") is False:
            found["off"].append(one.event)
    if found["new"]:
        return f"Codex does not trust {_listed(found['new'])} yet: {HOW}"
    if found["changed"]:
        return f"{_listed(found['changed'])} changed since Codex was set to trust it: {HOW}"
    if found["off"]:
        return f"{_listed(found['off'])} is switched off in Codex: switch it on in `/hooks`"
    return None


def switched_off(settings: Mapping[str, Json]) -> str | None:
    """What is wrong where hooks are switched off altogether."""
    # The second is the name that older versions have for it.
    if any(inner(settings, "features", name) is False for name in ("hooks", "codex_hooks")):
        return f"hooks are switched off in {config_file()}: set `hooks = true` under [features]"
    return None


def config_file() -> Path:
    """The person's settings of Codex."""
    return home_of("codex") / "config.toml"


def config() -> dict[str, Json] | None:
    """What these say; nothing if there are none, None if they cannot be read."""
    try:
        return tomllib.loads(config_file().read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None


def silenced(path: Path, text: str) -> str | None:
    """Why Gemini CLI does not run our hooks in a file; None if nothing there speaks against it."""
    found = object_in(parsed(text, str(path), "gemini"), "hooksConfig")
    off = found.get("disabled")
    if found.get("enabled") is False:
        return f"hooks are switched off in {path}: set `hooksConfig.enabled` to true"
    if isinstance(off, list) and NAME in off:
        return f"`{NAME}` is switched off in {path}: `/hooks enable {NAME}` in Gemini CLI"
    return None


def disabled(files: Iterable[Path]) -> str | None:
    """Why Claude Code runs no hooks at all; None if its settings, strongest first, let it."""
    for path in files:
        try:
            found = parsed(read(path) or "{}", str(path)).get("disableAllHooks")
        except BacktrailError:
            # Reported where that file is looked at for itself.
            continue
        if found is True:
            return f"all hooks are switched off in {path}: take `disableAllHooks` out"
        if found is False:
            return None
    return None


def hash_of(event: str, group: Mapping[str, Json], number: int) -> str:
    """The hash by which Codex knows a hook: of what it is, not of how it is written."""
    hook = {"timeout": 600, "async": False, **group["hooks"][number]}
    known = ("type", "command", "timeout", "async", "statusMessage", "additionalContextLimit")
    plain = {name: hook[name] for name in known if hook.get(name) is not None}
    identity: dict[str, Json] = {"event_name": _label(event), "hooks": [plain]}
    if group.get("matcher") is not None:
        identity["matcher"] = group["matcher"]
    written = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(written.encode()).hexdigest()}"


def _keys(path: Path, one: Ours) -> list[str]:
    """The names that a hook may have: the folder may be written as it is, or without links."""
    files = (str(path.absolute()), str(Path(os.path.realpath(path.parent), path.name)))
    return [f"{file}:{_label(one.event)}:{one.group}:{one.hook}" for file in files]


def _label(event: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event).lower()


def _is_trusted_folder(settings: Mapping[str, Json], project: Path) -> bool:
    folders = {str(project.absolute()), os.path.realpath(project)}
    above = {str(one) for folder in folders for one in (Path(folder), *Path(folder).parents)}
    return any(inner(settings, "projects", one, "trust_level") == "trusted" for one in above)


def _listed(events: list[str]) -> str:
    return f"the hook{'s' if len(events) > 1 else ''} {', '.join(events)}"
