"""Whether installed hooks work: each is run once with a harmless event."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BacktrailError, InvalidData
from ..events import Json
from .dialects import CHECK, DIALECTS, Dialect
from .installing import Scope, scopes, settings_file
from .misses import Miss, read
from .settings import find_ours

_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Installed:
    """Our hooks in one settings file, and how running them went."""

    agent: str
    scope: Scope
    path: str
    command: str = ""
    events: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    seconds: float | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Json]:
        """The installation as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def installed(agent: str | None, project: Path) -> list[Installed]:
    """Every installation of our hooks for an agent (None: for all), tried out."""
    found: list[Installed] = []
    for dialect in DIALECTS.values() if agent is None else [DIALECTS[agent]]:
        for scope in scopes(dialect):
            found += _in_file(dialect, scope, project)
    return found


def recent(folder: Path | None, agent: str | None) -> list[Miss]:
    """What hooks missed, oldest first."""
    return [miss for miss in read(folder) if agent is None or miss.agent in (agent, "")]


def _in_file(dialect: Dialect, scope: Scope, project: Path) -> list[Installed]:
    path = settings_file(dialect, scope, project)
    try:
        text = path.read_bytes().decode("utf-8")
        ours = find_ours(text, str(path), dialect.agent) if text.strip() else []
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, InvalidData) else f"cannot be read: {error}"
        return [Installed(dialect.agent, scope, str(path), problem=why)]
    found: list[Installed] = []
    for command in dict.fromkeys(one.command for one in ours):
        events = [one.event for one in ours if one.command == command]
        missing = [event for event in dialect.events if event not in events]
        seconds, problem = try_out(command, project)
        row = Installed(
            dialect.agent, scope, str(path), command, events, missing, seconds, problem
        )  # fmt: skip
        found.append(row)
    return found


def try_out(command: str, project: Path) -> tuple[float | None, str | None]:
    """Run a hook's command as an agent does: the seconds it took, and what is wrong."""
    event = {"hook_event_name": CHECK, "session_id": "check", "cwd": str(project)}
    began = time.monotonic()
    try:
        # A shell, since that is how agents run it.
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            input=json.dumps(event).encode(),
            capture_output=True,
            timeout=_PATIENCE,
            cwd=project if project.is_dir() else "/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"did not end within {_PATIENCE:g} s"
    except OSError as error:
        return None, f"cannot be run: {error}"
    seconds = time.monotonic() - began
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return seconds, f"exit code {done.returncode}{f': {said[-1]}' if said else ''}"
    if done.stderr:
        return seconds, "printed something on stderr; a hook prints nothing"
    # Only when it is tried out does a hook tell what is wrong.
    return seconds, done.stdout.decode("utf-8", "replace").strip() or None


def folder_here(url: str | None) -> tuple[Path | None, str | None]:
    """Where hooks note their misses with this store, and why it cannot be opened, if so."""
    from ..stores.opening import open_store
    from .places import folder_of

    try:
        with open_store(url) as store:
            return folder_of(store), None
    except (BacktrailError, OSError) as error:
        return None, str(error)
