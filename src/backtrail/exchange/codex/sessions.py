"""Codex's rollouts, into ours.

    CODEX_HOME/sessions/YYYY/MM/DD/rollout-<time>-<id>.jsonl
    CODEX_HOME/archived_sessions/rollout-<time>-<id>.jsonl

A rollout is one line of time: items come one after the other, and a note that turns were
rolled back makes what follows a branch. So does a file that goes on before the end of another,
`rollout-<time>-<id>_<its own id>.jsonl`. Lines have no ids; their place names them. A subagent
has a rollout of its own beside its session's, which names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ...errors import BacktrailError
from ...events import Json, SessionInfo
from ...events.messages import speech_of
from ...stores.base import Store
from ..foreign_record import Facts, Found, found_in
from ..hooks.dialects import home_of
from ..intake import FilesOf, Make, Side, no_files
from ..jsonlines import Line, read_lines, unpacked
from ..shapes import folder_in, object_in, text_in, time_in
from . import format as codex
from .lines import Maker, SideMaker

AGENT: Literal["codex"] = "codex"
"""The agent's name in keys and records."""

ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""What Codex calls its sessions."""

_AGENTS = re.compile(rb'"(?:agent_thread_id|receiver_thread_ids)":("[^"]*"|\[[^]]*\])')
_ROLLOUT = re.compile(r"rollout-.*\.jsonl(\.zst)?", re.DOTALL)


# --- finding -----------------------------------------------------------------------------


def find(path: Path | None = None) -> list[Found]:
    """The sessions in a rollout, a folder of rollouts, or Codex's home; oldest first."""
    return found_in(AGENT, path, _session_files, _session_of)


def _session_files(place: Path) -> list[Path]:
    inner = [place / name for name in ("sessions", "archived_sessions")]
    tops = [top for top in inner if top.is_dir()] or [place]
    files = sorted({file for top in tops for file in _rollouts(top)}, key=lambda file: file.name)
    return [file for file in files if not _is_side(file)]


def _rollouts(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top, followlinks=False):
        folders.sort()
        for name in names:
            file = Path(folder, name)
            if _ROLLOUT.fullmatch(name) and not file.is_symlink():
                yield file


def has_rollout(id: str) -> bool:
    """Whether Codex has the session of this id on this machine."""
    top = home_of(AGENT)
    files = (file for name in ("sessions", "archived_sessions") for file in _rollouts(top / name))
    return any(id in file.name for file in files)


def native_id(path: Path) -> str:
    """The id of a rollout, which its name ends in; else what its first line says."""
    found = ID.findall(path.name)
    if found:
        return str(found[-1])
    said = text_in(_first(path), "payload", "id") or ""
    return said if ID.fullmatch(said) else path.stem


def _session_of(path: Path) -> str:
    """The id of the session that a rollout is of, the only one or one of several."""
    before, mark, _ = path.name.rpartition("_")
    found = ID.findall(before) if mark else []
    return str(found[-1]) if found else native_id(path)


def _first(path: Path) -> dict[str, Json]:
    """The first line of a rollout; empty if that is no object."""
    try:
        with unpacked(path) as file:
            return next((line.value or {} for line in read_lines(file, final=False)), {})
    except BacktrailError:
        # Taking it in reports that.
        return {}


def _is_side(path: Path) -> bool:
    """Whether a rollout is a subagent's, and no session."""
    return codex.is_side(_first(path))


# --- importing ---------------------------------------------------------------------------


def what_is(line: Line) -> str:
    """What a line is."""
    return codex.what_is(line.value or {})


SPEAKS = frozenset({"assistant", "result", "compaction", "rollback"})
"""The lines with which a conversation goes on."""


def files_in(
    store: Store, info: SessionInfo, found: Found, start: int
) -> tuple[FilesOf, list[str]]:
    """Nothing: a rollout does not say what happened to files."""
    return no_files, []


def maker(info: SessionInfo, path: Path, files_of: FilesOf) -> Make:
    """What makes events of the lines of a rollout."""
    return Maker(native_id(path))


def side_maker(name: str, path: Path) -> Make:
    """What makes events of the lines of a subagent's rollout."""
    return SideMaker(name, _first(path))


def is_finished(path: Path) -> bool:
    """False: a rollout does not say that its subagent is done."""
    return False


def sides(path: Path, file: Path, *, final: bool) -> Iterator[Side]:
    """The rollouts of subagents; of a live session a hook reports each by itself."""
    for one in _named(path, file) if final else ():
        yield Side(native_id(one), native_id(one), one)


def _named(path: Path, file: Path) -> list[Path]:
    """The rollouts of the subagents that a rollout names, and of theirs."""
    tops = [above for above in path.parents if above.name in ("sessions", "archived_sessions")]
    by_id: dict[str, Path] | None = None
    found: dict[str, Path] = {}
    todo = [file]
    while todo:
        for name in _names_in(todo.pop()):
            if by_id is None:
                by_id = {native_id(one): one for one in _rollouts((tops or [path.parent])[0])}
            if name in by_id and name not in found and _is_side(by_id[name]):
                found[name] = by_id[name]
                todo.append(by_id[name])
    return list(found.values())


def _names_in(file: Path) -> list[str]:
    """The ids of the subagents that lines name."""
    with unpacked(file) as plain, plain.open("rb") as lines:
        named = b"".join(match for line in lines for match in _AGENTS.findall(line))
    return list(dict.fromkeys(ID.findall(named.decode("ascii", "replace"))))


# --- facts -------------------------------------------------------------------------------


def facts_in(lines: Iterator[Line]) -> Facts:
    """What lines say about their session."""
    facts = Facts()
    for line in lines:
        facts.started = facts.started or line.ts
        payload = object_in(line.value, "payload")
        kind = line.get("type")
        if kind == "session_meta":
            facts.started = time_in(payload, "timestamp") or facts.started
            facts.version = _text(payload, "cli_version") or facts.version
            facts.branch = _text(payload, "git", "branch") or facts.branch
            provider = _text(payload, "model_provider")
            facts.more |= {"model_provider": provider} if provider else {}
        if facts.prompt is None and what_is(line) == "prompt":
            facts.prompt = speech_of(payload)[:200] or None
        if kind in ("session_meta", "turn_context"):
            facts.cwd = facts.cwd or folder_in(payload, "cwd")
            facts.model = _text(payload, "model") or facts.model
    return facts


def _text(value: Json, *names: str) -> str | None:
    found = text_in(value, *names)
    return None if found is None or "\0" in found else found
