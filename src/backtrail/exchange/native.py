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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from .gemini import sessions as gemini
from .jsonlines import as_line
from .native_lines import claude_code_lines, codex_lines
from .records import native_of
from .transcript import append_entries, entries, fit_time

BASED = "based"
"""Says of a native session that it goes on with another one, whatever is said in it."""

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
    history = session.history()
    if agent == gemini.AGENT:
        return _gemini_session(session, info, history, cwd)
    if agent == claude_code.AGENT:
        native_id = str(uuid.uuid4())
        made = claude_code_lines(session.store, info, history, native_id, cwd)
        home = config_dir or _home(info, "projects") or claude_code.home()
        path = home / "projects" / slug(cwd) / f"{native_id}.jsonl"
        resume, begin = f"claude --resume {native_id}", f"claude --session-id {native_id}"
    else:
        native_id = new_id()
        made = codex_lines(session.store, info, history, native_id, cwd)
        home = config_dir or _home(info, "sessions", "archived_sessions") or codex.home()
        path = home / "sessions" / _today(native_id)
        resume, begin = f"codex resume {native_id}", "codex"
    is_empty = all(event is None or event.kind == "system_message" for _, event in made)
    # What a fork of Codex's own has of its parent is there before anything is said.
    is_based = agent == codex.AGENT and goes_on(made[0][0]) is not None
    is_empty = is_empty and not is_based
    content = [] if is_empty else [msgspec.json.encode(line) for line, _ in made]
    if not is_empty:
        _write(path, b"".join(line + b"\n" for line in content))
    if not is_empty or agent == claude_code.AGENT:
        homes = [event for _, event in made]
        _note(session, info, agent, native_id, path, content, homes, based=is_based)
    go = begin if is_empty else resume
    return NativeSession(native_id, path, f"cd {quoted(cwd)} && {go}")


def _gemini_session(
    session: Session, info: SessionInfo, history: Sequence[Event], cwd: str
) -> NativeSession:
    """The same for Gemini CLI, which says by its own records what was said."""
    folder = gemini.chats_of(cwd)
    try:
        old = gemini.chats_of(resolved(info.cwd or cwd))
    except Unsupported:
        old = folder
    records = gemini.kept_records(session.store, session.id, history, old)
    native_id, ts = str(uuid.uuid4()), now()
    path = folder / gemini.file_name(native_id, ts)
    begin = f"cd {quoted(cwd)} && gemini"
    if not records:
        return NativeSession(native_id, path, begin)
    lines = gemini.native_lines(records, native_id, cwd, ts)
    _write(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    _note(session, info, gemini.AGENT, native_id, path, [], [])
    return NativeSession(native_id, path, f"{begin} --resume {native_id}")


def agent_of(info: SessionInfo) -> str:
    """The agent whose session this is; `Unsupported` if none that is known here."""
    agent = native_of(info).get("agent", info.agent_name)
    if agent not in (claude_code.AGENT, codex.AGENT, gemini.AGENT):
        raise Unsupported(
            f"session `{info.id}` is not of Claude Code, Codex or Gemini CLI: nothing to write for "
            f"`{agent or 'no agent'}`"
        )
    return str(agent)


def _home(info: SessionInfo, *folders: str) -> Path | None:
    """Where the agent of the old session keeps its sessions, if that is on this machine."""
    old = _recorded(info)
    if old is None:
        return None
    for above in old.parents:
        # A record may come from anywhere: only a folder of our own is believed.
        if above.name in folders and _is_ours(above) and _is_ours(above.parent):
            return above.parent
    return None


def _recorded(info: SessionInfo) -> Path | None:
    """The file that a session's record names; None for one that came from elsewhere."""
    path = native_of(info).get("path")
    if info.metadata.get(ORIGIN) is not None or not isinstance(path, str):
        return None
    return Path(path) if path.startswith("/") and "\0" not in path else None


def is_here(info: SessionInfo) -> bool:
    """Whether the agent of a session finds its native session on this machine."""
    id = native_of(info).get("id")
    if not isinstance(id, str) or not NATIVE_ID.fullmatch(id):
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
    projects = claude_code.home() / "projects"
    return (projects / slug(resolved(info.cwd)) / f"{id}.jsonl").is_file()


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _today(native_id: str) -> str:
    """Where a rollout that begins now is."""
    moment = time.localtime()
    name = f"rollout-{time.strftime('%Y-%m-%dT%H-%M-%S', moment)}-{native_id}.jsonl"
    return f"{time.strftime('%Y/%m/%d', moment)}/{name}"


def _write(path: Path, content: bytes) -> None:
    """Make a file that is there as a whole or not at all, for its owner alone."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Until it is whole, it has no name that an agent takes for a session.
        replace_file(path, content)
    except OSError as error:
        raise failed(error, f"write {path}") from error


def _note(
    session: Session, info: SessionInfo, agent: str, native_id: str, path: Path,
    content: Iterable[bytes], homes: list[Event | None], *, based: bool = False,
) -> None:  # fmt: skip
    """The session goes on in the new file: what is in it was taken in already."""
    at = 0
    new = []
    last: Event | None = None
    for raw, home in zip(content, homes, strict=False):
        line = as_line(at, at + len(raw) + 1, raw)
        at = line.end
        last = home or last
        id = line.text("uuid") if agent == claude_code.AGENT else None
        ts = fit_time(line.get("timestamp"))
        event, behind = home.id if home else None, last.id if last else None
        new += entries(native_id, line, id, ts, event, behind)
    # A line that an older file has at the same place is kept behind the others. The last line
    # must be behind all of them: it shows how far the file was read.
    for some in (new[:-1], new[-1:]):
        append_entries(session.store, session.id, some)
    about = native_of(info)
    earlier = about.get("earlier")
    names = [*(earlier if isinstance(earlier, list) else ()), about.get("id")]
    if info.relation == "fork" and info.key != f"{agent}:{about.get('id')}":
        # Until now it only said what its parent says.
        names = []
    about |= {"agent": agent, "id": native_id, "path": str(path)} | ({BASED: True} if based else {})
    about["earlier"] = [name for name in names if isinstance(name, str)]
    session.store.update(session.id, key=f"{agent}:{native_id}", metadata={"native": about})
