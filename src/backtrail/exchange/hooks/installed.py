"""Whether installed hooks work: each is run once with a harmless event."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import BacktrailError
from ...events import AsDict
from ..codex.trust import disabled, silenced, untrusted
from .dialects import CHECK, DIALECTS, Dialect
from .entries import TIMEOUT, WAIT, find_ours, waiting
from .install import MODULE, Scope, scopes, settings_file
from .jsonfiles import read
from .small_files import Miss, read_misses

_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Installed(AsDict):
    """Our hooks in one settings file, and how running them went."""

    agent: str
    scope: Scope
    path: str
    command: str = ""
    events: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    outdated: str | None = None
    seconds: float | None = None
    problem: str | None = None


def installed(agent: str | None, project: Path, wait: float = WAIT) -> list[Installed]:
    """Every installation of our hooks for an agent (None: for all), tried out.

    `wait` is how long the hook before a call may wait; an older installation gives it less.
    """
    found: list[Installed] = []
    for dialect in DIALECTS.values() if agent is None else [DIALECTS[agent]]:
        for scope in scopes(dialect):
            found += _in_file(dialect, scope, project, wait)
    return found


def is_installed(project: Path) -> bool:
    """Whether a settings file has hooks of ours, for any agent; nothing is run."""
    for dialect in DIALECTS.values():
        for scope in scopes(dialect):
            path = settings_file(dialect, scope, project)
            try:
                if find_ours(read(path) or "", str(path), dialect.agent):
                    return True
            except BacktrailError:
                # `hooks status` reports what is wrong with it.
                continue
    return False


def _outdated(dialect: Dialect, text: str, path: Path, wait: float) -> str | None:
    """Why an installation is to be renewed; None if it need not be."""
    known = waiting(text, str(path), dialect)
    if known >= wait:
        return None
    return (
        f"{dialect.title} gives the hook before a call {known + TIMEOUT:g} s, and it may wait "
        f"{wait:g} s for the first import: `backtrail hooks install {dialect.agent}` renews it"
    )


def recent(folder: Path | None, agent: str | None) -> list[Miss]:
    """What hooks missed, oldest first."""
    return [miss for miss in read_misses(folder) if agent is None or miss.agent in (agent, "")]


def _in_file(dialect: Dialect, scope: Scope, project: Path, wait: float) -> list[Installed]:
    path = settings_file(dialect, scope, project)
    try:
        text = read(path) or ""
        ours = find_ours(text, str(path), dialect.agent)
    except BacktrailError as error:
        return [Installed(dialect.agent, scope, str(path), problem=str(error))]
    found: list[Installed] = []
    for command in dict.fromkeys(one.command for one in ours):
        events = [one.event for one in ours if one.command == command]
        missing = [event for event in dialect.events if event not in events]
        problem = None if scope == "user" else distrusted(command, project)
        seconds = None
        if problem is None:
            seconds, problem = try_out(command, project)
        if problem is None and dialect.agent == "codex":
            mine = [one for one in ours if one.command == command]
            problem = untrusted(path, text, mine, project if scope == "project" else None)
        elif problem is None and dialect.agent == "gemini":
            problem = silenced(path, text)
        elif problem is None:
            strongest_first = reversed(scopes(dialect))
            problem = disabled(settings_file(dialect, one, project) for one in strongest_first)
        row = Installed(
            dialect.agent, scope, str(path), command, events, missing,
            _outdated(dialect, text, path, wait), seconds, problem,
        )  # fmt: skip
        found.append(row)
    return found


def distrusted(command: str, project: Path) -> str | None:
    """Why a command in a project's settings is not run; None if it may be.

    The project may be a stranger's, and a person who asks for the status has not agreed to run
    what it brings along. A program elsewhere that is ours, or the system's, is another matter.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    program = Path(words[0]) if words else Path()
    # Only quoted as we quote it: nothing in it means anything to a shell.
    if shlex.join(words) != command or not program.is_absolute() or not _is_call(words):
        return "was not run: it is not a plain call of `backtrail`; install again to have one"
    real = Path(os.path.realpath(program))
    if real.is_relative_to(os.path.realpath(project)) and not _is_this(program):
        return f"was not run: {program} lies in the project; look at it first"
    try:
        owner = real.stat().st_uid
    except OSError:
        return f"{program} is not there: install again"
    if owner not in (0, os.getuid()):
        return f"was not run: {program} belongs to another user"
    return None


def _is_call(words: list[str]) -> bool:
    """Whether words are what installing writes, and no other program's arguments."""
    name = Path(words[0]).name
    if name == "backtrail":
        return len(words) == 3 and words[1] == "hook"
    return name.startswith("python") and len(words) == 6 and words[1:5] == [*MODULE, "hook"]


def _is_this(program: Path) -> bool:
    """Whether a program is of the very installation that runs now."""
    return program.parent == Path(sysconfig.get_path("scripts"))


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
    # Only when it is tried out does a hook print what is wrong.
    return seconds, done.stdout.decode("utf-8", "replace").strip() or None


def folder_here(url: str | None) -> tuple[Path | None, str | None]:
    """Where hooks note their misses with this store, and why it cannot be opened, if so."""
    from ...stores.opening import open_store
    from .places import folder_of

    try:
        with open_store(url) as store:
            return folder_of(store), None
    except (BacktrailError, OSError) as error:
        return None, str(error)
