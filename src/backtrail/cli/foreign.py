"""Sessions of agents that people run by themselves: how to go on with them there.

Such an agent has its own record of the conversation, which we never edit. After a rewind
or a fork it gets a new one that holds what was kept, and the person the line that resumes
it. After a rewind of files alone its next prompt tells it which files are other than it
thinks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .plans import listed

if TYPE_CHECKING:
    from ..events import Json, SessionInfo
    from ..exchange.native import NativeSession
    from ..session import Session

AGENTS = ("claude-code", "codex")
"""Agents whose sessions can be written."""

HEARING = (*AGENTS, "gemini")
"""Agents that can be told something with their next prompt."""

_NATIVE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""What an agent calls its sessions; a record from elsewhere may hold an option instead."""

_BEGIN = {"claude-code": "claude --session-id {id}", "codex": "codex"}
_RESUME = {"claude-code": "claude --resume", "codex": "codex resume"}


def is_foreign(info: SessionInfo) -> bool:
    """Whether a session belongs to an agent that has its own record of it."""
    return info.agent_name in AGENTS and hears(info)


def hears(info: SessionInfo) -> bool:
    """Whether a session belongs to an agent whose hooks can tell it something."""
    return info.agent_name in HEARING and isinstance(info.metadata.get("native"), dict)


def written(session: Session, into: str | None = None) -> NativeSession:
    """A new native session with the present history of a session."""
    from ..exchange.native import write_session

    return write_session(session, into_cwd=into)


def told(session: Session, paths: Sequence[str]) -> None:
    """Leave a note for the agent's next prompt: these files are other than it thinks."""
    from ..hooks.notes import leave

    names = listed(paths, 30)
    text = (
        f"The user restored these files to an earlier state with Backtrail: {names}; "
        "read them again before you change them."
    )
    leave(session.store, session.id, text)


def _native_line(info: SessionInfo, native: Json) -> str:
    """How the agent itself goes on; where all was taken back, how it begins."""
    begins = _BEGIN[info.agent_name or ""]
    path = native.get("path")
    # A session of Claude Code keeps its id, and may have been begun without our hooks.
    is_there = "{id}" in begins and isinstance(path, str) and Path(path).is_file()
    if info.turn_count == 0 and not is_there:
        return begins.format(id=shlex.quote(native["id"]))
    return f"{_RESUME[info.agent_name or '']} {shlex.quote(native['id'])}"


def resume_line(info: SessionInfo, store: str | None = None) -> str:
    """The shell line that goes on with a session, in the agent it belongs to."""
    place = f"cd {shlex.quote(info.cwd)} && " if info.cwd else ""
    native: Json = info.metadata.get("native")
    if is_foreign(info) and _NATIVE_ID.fullmatch(str(native.get("id"))):
        return f"{place}{_native_line(info, native)}"
    words = ["backtrail", "chat", "--resume", info.id, *(["--store", store] if store else [])]
    url = info.metadata.get("base_url")
    words += ["--base-url", url] if isinstance(url, str) else []
    return f"{place}{shlex.join(words)}"
