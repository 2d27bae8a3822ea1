"""Sessions of agents that people run by themselves: how to go on with them there.

Such an agent has its own record of the conversation, which we never edit. After a rewind
or a fork it gets a new one that holds what was kept, and the person the line that resumes
it. Whichever of its windows goes on learns, by its next prompt's hook, which files are other
than it thinks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._startup.shell import joined, quoted
from ..errors import BacktrailError, NotFound
from .export.page import visible

if TYPE_CHECKING:
    from ..events import Json, SessionInfo
    from ..session.session import Session
    from ..session.views import Rewind
    from ..stores.base import Store
    from .native import NativeSession

AGENTS = ("claude-code", "codex", "gemini")
"""Agents whose sessions can be written, and that take a note with their next prompt."""

_BEGIN = {"claude-code": "claude --session-id {id}", "codex": "codex", "gemini": "gemini"}
_RESUME = {
    "claude-code": "claude --resume", "codex": "codex resume", "gemini": "gemini --resume",
}  # fmt: skip


def is_foreign(info: SessionInfo) -> bool:
    """Whether a session belongs to an agent that has its own record of it."""
    return info.agent_name in AGENTS and isinstance(info.metadata.get("native"), dict)


def written(session: Session, into: str | None = None) -> NativeSession:
    """A new native session with the present history of a session, in a folder that is here."""
    from .native import write_session

    check_here(session.info(), into)
    return write_session(session, into_cwd=into)


def check_here(info: SessionInfo, folder: str | None = None) -> None:
    """`NotFound` if a session's folder is somewhere else now, or on another machine."""
    folder = folder or info.cwd
    # A name that is too long for the system raises in `Path.is_dir`.
    if folder is not None and not os.path.isdir(folder):  # noqa: PTH112 - as said
        raise NotFound(
            f"the folder {visible(folder)} of session `{info.id}` is not here: "
            f"`backtrail relocate DIR --session {info.id}` says which one is"
        )


def native_line(store: Store, info: SessionInfo) -> str:
    """The shell line that goes on with a session in its agent, written for it if need be."""
    from ..session.session import Session
    from .native import is_here

    if info.turn_count == 0 or is_here(info):
        return resume_line(info)
    with Session.resume(store, info.id, files=False) as session:
        return written(session).command


def leave_note(session: Session, paths: Sequence[str]) -> None:
    """Leave a note for the next prompt of an agent that goes on with what was taken back."""
    from .hooks.small_files import leave_note, restored

    leave_note(session.store, session.id, restored(paths))


def _native_line(info: SessionInfo, native: Json) -> str:
    """How the agent itself goes on; where all was taken back, how it begins."""
    begins = _BEGIN[info.agent_name or ""]
    path = native.get("path")
    # A session of Claude Code keeps its id, and may have been begun without our hooks.
    # One of Codex's that goes on with another was written in any case.
    keeps_id = "{id}" in begins or native.get("based") is True
    is_there = keeps_id and isinstance(path, str) and Path(path).is_file()
    if info.turn_count == 0 and not is_there:
        return begins.format(id=quoted(native["id"]))
    return f"{_RESUME[info.agent_name or '']} {quoted(native['id'])}"


def resume_line(info: SessionInfo, store: str | None = None) -> str:
    """The shell line that goes on with a session, in the agent it belongs to."""
    place = f"cd {quoted(info.cwd)} && " if info.cwd else ""
    native: Json = info.metadata.get("native")
    from .native import NATIVE_ID

    if is_foreign(info) and NATIVE_ID.fullmatch(str(native.get("id"))):
        return f"{place}{_native_line(info, native)}"
    words = ["backtrail", "chat", "--resume", info.id, *(["--store", store] if store else [])]
    url = info.metadata.get("base_url")
    words += ["--base-url", url] if isinstance(url, str) else []
    return f"{place}{joined(words)}"


def hand_on(session: Session, result: Rewind) -> tuple[NativeSession | None, Exception | None]:
    """Let the agent that a session belongs to know that its conversation went elsewhere.

    The new session that it goes on with; an error is for later, since the rewind is done.
    """
    if not is_foreign(session.info()):
        return None, None
    native: NativeSession | None = None
    failed: Exception | None = None
    try:
        native = written(session)
    except (BacktrailError, OSError) as error:
        failed = error
    try:
        if native is None and result.files_changed:
            # The agent's old session goes on as this one, with words that are not in its history.
            leave_note(session, result.files_changed)
    except (BacktrailError, OSError) as error:
        failed = error
    return native, failed
