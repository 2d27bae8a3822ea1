"""A session of ours as a new session of the agent that it came from.

After a rewind or in a fork, the agent itself must go on from there. Its old session is never
touched: a new one is written, with the history as it stands and new ids, under the folder it
is to run in. What came from the agent's own transcript is written as it was.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from .._startup.shell import quoted
from ..errors import Unsupported
from ..events import Event, Json, SessionInfo, new_id, now
from ..session.session import Session
from ..settings.allowance import ORIGIN
from ..stores.disk.fs import failed, replace_file
from ..stores.records import resolved
from .claude_code import sessions as claude_code
from .claude_code.format import slug
from .codex import sessions as codex
from .codex.format import goes_on
from .foreign_record import native_of
from .gemini import sessions as gemini
from .hooks.dialects import home_of
from .jsonlines import as_line
from .native_lines import Made, claude_code_lines, codex_lines
from .shapes import folder_in, list_in, text_in
from .transcript import append_entries, entries

BASED = "based"
"""Metadata: the native session continues another one, even if nothing was said in it."""

NATIVE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""What an agent calls its sessions; a record from elsewhere may hold an option instead."""


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
    place. No path that came with a session from elsewhere is written to. `Unsupported` if the
    session is of no agent that this is known for.

    Nothing said is nothing to resume: then no file is written, and the command begins anew.
    """
    info = session.info()
    agent = agent_of(info)
    cwd = into_cwd or info.cwd
    if cwd is None:
        raise Unsupported(f"session `{session.id}` has no folder: say where it is to go on")
    cwd = resolved(cwd)
    draft = _DRAFTS[agent](session, info, cwd, config_dir)
    if draft.lines:
        content = [msgspec.json.encode(line) for line, _ in draft.lines]
        _write(draft.path, b"".join(line + b"\n" for line in content))
    if draft.lines or agent == claude_code.AGENT:
        _note(session, info, agent, draft)
    go = draft.resume if draft.lines else draft.begin
    return NativeSession(draft.id, draft.path, f"cd {quoted(cwd)} && {go}")


class _Draft(NamedTuple):
    """A native session to be written: without lines if nothing was said."""

    id: str
    path: Path
    lines: Made
    begin: str
    resume: str
    is_based: bool = False


def _claude_draft(session: Session, info: SessionInfo, cwd: str, home: Path | None) -> _Draft:
    id = str(uuid.uuid4())
    made = claude_code_lines(session.store, info, session.history(), id, cwd)
    home = home or _home(info, "projects") or home_of(claude_code.AGENT)
    path = home / "projects" / slug(cwd) / f"{id}.jsonl"
    lines = made if _is_said(made) else []
    return _Draft(id, path, lines, f"claude --session-id {id}", f"claude --resume {id}")


def _codex_draft(session: Session, info: SessionInfo, cwd: str, home: Path | None) -> _Draft:
    id = new_id()
    made = codex_lines(session.store, info, session.history(), id, cwd)
    home = home or _home(info, "sessions", "archived_sessions") or home_of(codex.AGENT)
    # What a fork of Codex's own has of its parent is there before anything is said.
    is_based = goes_on(made[0][0]) is not None
    lines = made if is_based or _is_said(made) else []
    path = home / "sessions" / time.strftime(f"%Y/%m/%d/rollout-%Y-%m-%dT%H-%M-%S-{id}.jsonl")
    return _Draft(id, path, lines, "codex", f"codex resume {id}", is_based)


def _gemini_draft(session: Session, info: SessionInfo, cwd: str, home: Path | None) -> _Draft:
    """Gemini CLI says by its own records what was said."""
    folder = gemini.chats_of(cwd)
    try:
        old = gemini.chats_of(resolved(info.cwd or cwd))
    except Unsupported:
        old = folder
    records = gemini.kept_records(session.store, session.id, session.history(), old)
    id, ts = str(uuid.uuid4()), now()
    path = folder / f"session-{ts[:16].replace(':', '-')}-{id[:8]}.jsonl"
    lines = gemini.native_lines(records, id, cwd, ts) if records else []
    return _Draft(id, path, [(line, None) for line in lines], "gemini", f"gemini --resume {id}")


_DRAFTS = {
    claude_code.AGENT: _claude_draft,
    codex.AGENT: _codex_draft,
    gemini.AGENT: _gemini_draft,
}


def _is_said(made: Made) -> bool:
    return any(event is not None and event.kind != "system_message" for _, event in made)


def agent_of(info: SessionInfo) -> str:
    """The agent whose session this is; `Unsupported` if none that is known here."""
    agent = str(native_of(info).get("agent", info.agent_name) or "no agent")
    if agent not in _DRAFTS:
        raise Unsupported(
            f"session `{info.id}` is not of Claude Code, Codex or Gemini CLI: nothing to write for "
            f"`{agent}`"
        )
    return agent


def _home(info: SessionInfo, *folders: str) -> Path | None:
    """Where the agent of the old session keeps its sessions, if that is on this machine."""
    old = _recorded(info)
    for above in old.parents if old is not None else ():
        # A record may come from anywhere: only a folder of our own is believed.
        if above.name in folders and _is_ours(above) and _is_ours(above.parent):
            return above.parent
    return None


def _recorded(info: SessionInfo) -> Path | None:
    """The file that a session's record names; None for one that came from elsewhere."""
    path = folder_in(info.metadata, "native", "path")
    return Path(path) if path is not None and info.metadata.get(ORIGIN) is None else None


def is_here(info: SessionInfo) -> bool:
    """Whether the agent of a session finds its native session on this machine."""
    id = text_in(info.metadata, "native", "id") or ""
    if not NATIVE_ID.fullmatch(id):
        return False
    recorded = _recorded(info)
    if recorded is not None and recorded.is_file():
        return True
    if agent_of(info) == codex.AGENT:
        return codex.has_rollout(id)
    if info.cwd is None:
        return False
    if agent_of(info) == gemini.AGENT:
        return gemini.has_chat(resolved(info.cwd), id)
    # Claude Code looks for a session among those of the folder that it runs in.
    projects = home_of(claude_code.AGENT) / "projects"
    return (projects / slug(resolved(info.cwd)) / f"{id}.jsonl").is_file()


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _write(path: Path, content: bytes) -> None:
    """Make a file that is there as a whole or not at all, for its owner alone."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Until it is whole, it has no name that an agent takes for a session.
        replace_file(path, content)
    except OSError as error:
        raise failed(error, f"write {path}") from error


def _note(session: Session, info: SessionInfo, agent: str, draft: _Draft) -> None:
    """The session goes on in the new file: what is in it was taken in already."""
    at = 0
    new = []
    last: Event | None = None
    # Of a record of Gemini CLI no lines are kept.
    for made, home in draft.lines if agent != gemini.AGENT else ():
        raw = msgspec.json.encode(made)
        line = as_line(at, at + len(raw) + 1, raw)
        at = line.end
        last = home or last
        event, behind = home.id if home else None, last.id if last else None
        new += entries(draft.id, line, line.own_id, line.ts, event, behind)
    # A line that an older file has at the same place is kept behind the others. The last line
    # must be behind all of them: it shows how far the file was read.
    for some in (new[:-1], new[-1:]):
        append_entries(session.store, session.id, some)
    about = native_of(info)
    names = [*list_in(about, "earlier"), about.get("id")]
    if info.relation == "fork" and info.key != f"{agent}:{about.get('id')}":
        # Until now it only said what its parent says.
        names = []
    about |= {"agent": agent, "id": draft.id, "path": str(draft.path)}
    about |= {BASED: True} if draft.is_based else {}
    about["earlier"] = [name for name in names if isinstance(name, str)]
    session.store.update(session.id, key=f"{agent}:{draft.id}", metadata={"native": about})
