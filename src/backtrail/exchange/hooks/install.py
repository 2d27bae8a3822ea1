"""Putting our hooks into an agent's settings, and taking them out again.

A change is planned first, as text before and after, and shown; then it is made in one step,
with a copy of what was there. Taking the hooks out gives the very bytes of that copy back,
if nothing else was changed since.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from ...errors import Conflict, InvalidData, Unsafe, Unsupported
from ...stores.disk.fs import failed, replace_file
from .dialects import Dialect, home_of
from .entries import WAIT, find_ours, group_for, waiting, with_ours, without_ours
from .jsonfiles import blanked, parsed, read

Scope = Literal["user", "project", "local"]
"""Which of an agent's settings: the person's, the project's, or the person's for the project."""

BACKUP = ".before-backtrail"
"""What the name of the copy ends in."""


ALLOW_TEMPORARY = "BACKTRAIL_ALLOW_TEMPORARY"
"""Set in the environment to install hooks that call a program which will vanish."""


MODULE = ("-P", "-m", "backtrail")
"""How Python runs us where there is no script: never what a project's folder has of our name."""


@dataclass(frozen=True, slots=True)
class Change:
    """A settings file before and after; None where there is no file."""

    path: Path
    before: str | None
    after: str | None

    @property
    def is_needed(self) -> bool:
        """Whether anything changes."""
        return self.before != self.after

    def diff(self) -> list[str]:
        """The change as a unified diff, line by line."""
        before, after = ((text or "").splitlines() for text in (self.before, self.after))
        old = str(self.path) if self.before is not None else os.devnull
        new = str(self.path) if self.after is not None else os.devnull
        return list(difflib.unified_diff(before, after, old, new, lineterm=""))


# --- where -------------------------------------------------------------------------------


def scopes(dialect: Dialect) -> tuple[Scope, ...]:
    """The settings that an agent has."""
    return ("user", "project", "local") if dialect.agent == "claude-code" else ("user", "project")


def settings_file(dialect: Dialect, scope: Scope, project: Path) -> Path:
    """The file of an agent's settings."""
    if scope not in scopes(dialect):
        raise InvalidData(f"{dialect.title} has no `--{scope}` settings: use --user or --project")
    home = home_of(dialect.agent)
    if dialect.agent == "claude-code":
        name = "settings.local.json" if scope == "local" else "settings.json"
        return (home if scope == "user" else project / ".claude") / name
    if dialect.agent == "codex":
        return (home if scope == "user" else project / ".codex") / "hooks.json"
    return (home if scope == "user" else project) / ".gemini" / "settings.json"


def check_inside(path: Path, project: Path) -> None:
    """`Unsafe` if a project's settings are a link that leads out of it.

    The project may be a stranger's, and the link may lead to any file of ours.
    """
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(project)):
        raise Unsafe(f"{path} leads to {real}, outside of the project: change that file itself")


def own_command(dialect: Dialect) -> str:
    """The command that calls our hook, with the full path of this `backtrail`, quoted.

    `Unsupported` where this installation will not be there for long.
    """
    script = Path(sysconfig.get_path("scripts"), "backtrail")
    words = [str(script)] if script.is_file() else [sys.executable, *MODULE]
    why = None if os.environ.get(ALLOW_TEMPORARY) else vanishing(Path(words[0]))
    if why is not None:
        raise Unsupported(
            f"{words[0]} is {why} and will not stay, so a hook there would soon be missing: "
            "install it for good (`pipx install .` or `uv tool install .` in the clone) and run "
            f"this again from there; or set {ALLOW_TEMPORARY}=1 to try it all the same"
        )
    return shlex.join([*words, "hook", dialect.agent])


def vanishing(program: Path) -> str | None:
    """Why a program will soon be gone; None if it looks lasting."""
    path = str(program.absolute())
    folders = {tempfile.gettempdir(), "/tmp", "/var/tmp", "/private/tmp", "/dev/shm"}
    for folder in sorted(folders):
        if path.startswith(f"{folder}/"):
            return "in a temporary folder"
    cache = os.environ.get("UV_CACHE_DIR")
    parts = path.split("/")
    marks = [(".cache", "uv"), ("Caches", "uv"), (".cache", "pipx"), ("pipx", ".cache")]
    cached = any(pair in marks for pair in pairwise(parts))
    if cached or (cache and path.startswith(f"{Path(cache).absolute()}/")):
        return "in the cache of uvx or pipx"
    return None


# --- planning ----------------------------------------------------------------------------


def plan_install(dialect: Dialect, path: Path, command: str, wait: float = WAIT) -> Change:
    """What putting the hooks in would change; `wait` is how long the one before a call may."""
    before = read(path)
    try:
        return Change(path, before, with_ours(before or "", str(path), dialect, command, wait))
    except InvalidData as error:
        ours = {event: [group_for(dialect, event, command, wait)] for event in dialect.events}
        by_hand = json.dumps({"hooks": ours}, indent=2, ensure_ascii=False)
        raise InvalidData(f"{error}\nby hand, this is to be in it:\n{by_hand}") from error


def plan_uninstall(dialect: Dialect, path: Path) -> Change:
    """What taking the hooks out would change."""
    before = read(path)
    if before is None:
        return Change(path, None, None)
    name = str(path)
    ours = find_ours(before, name, dialect.agent)
    if not ours:
        return Change(path, before, before)
    kept = read(backup_of(path))
    if kept is not None and _is_kept(kept, before, name, dialect, ours[0].command):
        return Change(path, before, kept)
    after = without_ours(before, name, dialect.agent)
    has_comments = blanked(after) != after
    nothing = kept is None and not has_comments and parsed(after, name, dialect.agent) == {}
    return Change(path, before, None if nothing else after)


def backup_of(path: Path) -> Path:
    """Where the copy of a settings file is."""
    return path.with_name(path.name + BACKUP)


def _is_kept(kept: str, before: str, name: str, dialect: Dialect, command: str) -> bool:
    """Whether a file is what installing made of the copy, and nothing else was changed."""
    try:
        wait = waiting(before, name, dialect)
        made = with_ours(kept, name, dialect, command, wait)
        # Comments may be new, too.
        as_text = blanked(before) == before or made == before
        agent = dialect.agent
        return as_text and parsed(made, name, agent) == parsed(before, name, agent)
    except InvalidData:
        return False


# --- acting ------------------------------------------------------------------------------


def apply(change: Change, copy: Literal["make", "leave", "drop"], *, shared: bool = False) -> None:
    """Make a change, in one step; `Conflict` if the file is not what it was any more.

    What was there is copied beside it, or an earlier copy is left, or goes. A new file is for
    its owner alone, unless it is to be `shared`.
    """
    # The file may be a link into a folder of settings that is kept elsewhere.
    path = Path(os.path.realpath(change.path))
    if read(path) != change.before:
        raise Conflict(f"{change.path} was changed meanwhile: look at it and try again")
    kept = backup_of(change.path)
    try:
        if change.after is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            if copy == "make" and change.before is not None:
                replace_file(kept, change.before.encode())
            there = path.stat() if change.before is not None else None
            new = 0o666 & ~_umask() if shared else 0o600
            replace_file(path, change.after.encode(), new, like=there)
        if copy == "drop":
            kept.unlink(missing_ok=True)
    except OSError as error:
        raise failed(error, f"write {change.path}") from error


def _umask() -> int:
    """What this process takes away from modes; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# --- advice ------------------------------------------------------------------------------


def warning(scope: Scope, change: Change, program: str) -> str | None:
    """What a person should know before they agree to a change."""
    if scope != "project" or not change.is_needed:
        return None
    return (
        f"{change.path} is shared with all people on the project, and will call {program}, "
        "which is on this machine: where there is none, the hooks fail; --local is for you alone"
    )


def advice(dialect: Dialect, path: Path, program: str, project: Path) -> list[str]:
    """What a person should know about an installation."""
    found: list[str] = []
    if Path(program).absolute().is_relative_to(project.absolute()):
        found.append(f"{program} lies in the project: without its environment the hooks fail")
    if dialect.agent == "codex":
        from ..codex.trust import HOW, config, switched_off

        off = switched_off(config() or {})
        found += [f"Codex runs hooks only after you trust them: {HOW}", *([off] if off else [])]
    if dialect.agent == "gemini":
        found.append("Gemini CLI runs a project's hooks only in a folder that you trust")
    if shutil.which(_PROGRAMS[dialect.agent]) is None:
        found.append(f"`{_PROGRAMS[dialect.agent]}` is not on the PATH here")
    return found


_PROGRAMS = {"claude-code": "claude", "codex": "codex", "gemini": "gemini"}
