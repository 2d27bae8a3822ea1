"""A session of ours as a new session of the agent that it came from.

After a rewind or in a fork, the agent itself must go on from there. Its old session is never
touched: a new one is written, with the history as it stands and new ids, under the folder it
is to run in. What came from the agent's own transcript is written as it was.
"""

from __future__ import annotations

import os
import secrets
import shlex
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import StoreFailed, Unsupported
from ..events import Event, Json, SessionInfo, new_id
from ..session import Session
from ..stores.base import resolved
from . import claude_code, codex
from .native_lines import claude_code_lines, codex_lines
from .reading import as_line
from .transcripts import append_entries, entries, fit_time


@dataclass(frozen=True, slots=True)
class NativeSession:
    """A session of another agent: its id and file, and the command that resumes it."""

    id: str
    path: Path
    command: str

    def to_dict(self) -> dict[str, Json]:
        """The session as JSON."""
        return {"id": self.id, "path": str(self.path), "command": self.command}


def write_session(
    session: Session, into_cwd: str | None = None, config_dir: Path | None = None
) -> NativeSession:
    """Write the session's history as a new session of its agent, and note that it goes on there.

    `into_cwd` is the folder that the agent will run in, by default the session's. `config_dir`
    is where the agent keeps its sessions, by default where the old one is, else the usual
    place. `Unsupported` if the session is of no agent that this is known for.
    """
    info = session.info()
    agent = agent_of(info)
    cwd = into_cwd or info.cwd
    if cwd is None:
        raise Unsupported(f"session `{session.id}` has no folder: say where it is to go on")
    cwd = resolved(cwd)
    history = session.history()
    if agent == claude_code.AGENT:
        native_id = str(uuid.uuid4())
        made = claude_code_lines(session.store, info, history, native_id, cwd)
        folder = _claude_folder(info, cwd, config_dir)
        path = folder / f"{native_id}.jsonl"
        command = f"cd {shlex.quote(cwd)} && claude --resume {native_id}"
    else:
        native_id = new_id()
        made = codex_lines(session.store, info, history, native_id, cwd)
        path = _codex_path(info, native_id, config_dir)
        command = f"cd {shlex.quote(cwd)} && codex resume {native_id}"
    content = [msgspec.json.encode(line) for line, _ in made]
    _write(path, b"".join(line + b"\n" for line in content))
    _note(session, info, agent, native_id, path, content, [event for _, event in made])
    return NativeSession(native_id, path, command)


def agent_of(info: SessionInfo) -> str:
    """The agent whose session this is; `Unsupported` if none that is known here."""
    native = info.metadata.get("native")
    agent = native.get("agent") if isinstance(native, dict) else info.agent_name
    if agent not in (claude_code.AGENT, codex.AGENT):
        raise Unsupported(
            f"session `{info.id}` is not of Claude Code or Codex: nothing to write for "
            f"`{agent or 'no agent'}`"
        )
    return str(agent)


def _old_path(info: SessionInfo) -> Path | None:
    native = info.metadata.get("native")
    path = native.get("path") if isinstance(native, dict) else None
    return Path(path) if isinstance(path, str) and "\0" not in path else None


def _claude_folder(info: SessionInfo, cwd: str, config: Path | None) -> Path:
    from ..formats.claude_code import slug

    old = _old_path(info)
    if config is None and old is not None and old.parent.parent.name == "projects":
        # Where the old one is, unless it came from another machine.
        above = old.parent.parent.parent
        config = above if above.is_dir() else None
    return (config or claude_code.config_dir()) / "projects" / slug(cwd)


def _codex_path(info: SessionInfo, native_id: str, home: Path | None) -> Path:
    old = _old_path(info)
    if home is None and old is not None:
        above = [folder for folder in old.parents
                 if folder.name in ("sessions", "archived_sessions")]  # fmt: skip
        home = above[0].parent if above and above[0].parent.is_dir() else None
    home = home or codex.codex_home()
    moment = time.localtime()
    name = f"rollout-{time.strftime('%Y-%m-%dT%H-%M-%S', moment)}-{native_id}.jsonl"
    return home / "sessions" / time.strftime("%Y/%m/%d", moment) / name


def _write(path: Path, content: bytes) -> None:
    """Make a file that is there as a whole or not at all, for its owner alone."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not a name that an agent takes for a session.
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StoreFailed(f"cannot write {path}: {error.strerror}", errno=error.errno) from error


def _note(
    session: Session, info: SessionInfo, agent: str, native_id: str, path: Path,
    content: Iterable[bytes], homes: list[Event | None],
) -> None:  # fmt: skip
    """The session goes on in the new file: what is in it was taken in already."""
    at = 0
    new = []
    last: Event | None = None
    for raw, home in zip(content, homes, strict=True):
        line = as_line(at, at + len(raw) + 1, raw)
        at = line.end
        last = home or last
        id = line.text("uuid") if agent == claude_code.AGENT else None
        ts = fit_time(line.get("timestamp"))
        event, behind = home.id if home else None, last.id if last else None
        new += entries(native_id, line, id, ts, event, behind)
    append_entries(session.store, session.id, new)
    native = info.metadata.get("native")
    about: dict[str, Json] = dict(native) if isinstance(native, dict) else {}
    earlier = about.get("earlier")
    names = [*(earlier if isinstance(earlier, list) else ()), about.get("id")]
    about |= {"agent": agent, "id": native_id, "path": str(path)}
    about["earlier"] = [name for name in names if isinstance(name, str)]
    session.store.update(session.id, key=f"{agent}:{native_id}", metadata={"native": about})
