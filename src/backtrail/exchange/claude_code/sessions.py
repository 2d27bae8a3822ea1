"""Claude Code's sessions on disk, into ours.

    CONFIG/projects/<slug>/<id>.jsonl                     the transcript
    CONFIG/projects/<slug>/<id>/subagents/agent-<id>.jsonl
    CONFIG/file-history/<id>/<hash>@v<n>                  copies of files before edits

Importing reads and never writes there. Importing again adds only what is new.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ...agent.models.prices import cost
from ...errors import BacktrailError
from ...events import Json, NewEvent, SessionInfo
from ...events.messages import normal_usage
from ...stores.base import Store
from ..foreign_record import Facts, Found, found_in
from ..hooks.dialects import home_of
from ..intake import FilesOf, Make, Side, no_files
from ..jsonlines import Line, Unreadable, read_lines, read_object
from ..shapes import folder_in, object_in, text_in
from . import format as cc
from .lines import Maker
from .sides import SideMaker, side_name

AGENT: Literal["claude-code"] = "claude-code"
"""The agent's name in keys and records."""


# --- finding -----------------------------------------------------------------------------


def find(path: Path | None = None) -> list[Found]:
    """The sessions in a transcript, a folder of transcripts, or a config directory.

    A folder that has none is taken for a project: its sessions are looked for where Claude
    Code keeps them. Oldest first. `NotFound` if there is nothing of the kind.
    """
    return found_in(AGENT, path, _session_files, native_id)


def _session_files(place: Path) -> list[Path]:
    kept = home_of(AGENT).absolute() / "projects" / cc.slug(str(place.resolve()))
    files = _files_in(place) or (_transcripts(kept) if kept.is_dir() else [])
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))


def _files_in(place: Path) -> list[Path]:
    """The transcripts of a config directory, of all projects, or of one."""
    place = projects if (projects := place / "projects").is_dir() else place
    inner = sorted(place.iterdir()) if place.name == "projects" else []
    folders = [place, *(one for one in inner if one.is_dir() and not one.is_symlink())]
    return [file for folder in folders for file in _transcripts(folder)]


def _transcripts(folder: Path) -> list[Path]:
    # Subagents of old versions lie beside the sessions; they are no sessions.
    own = (file for file in folder.glob("*.jsonl") if not file.name.startswith("agent-"))
    return sorted(file for file in own if file.is_file() and not file.is_symlink())


def sides(path: Path, file: Path, *, final: bool) -> Iterator[Side]:
    """The files of a transcript's subagents; for one that is over, also in the old places.

    Older versions put them beside the transcript.
    """
    beside = path.with_suffix("")
    top = beside / "subagents"
    # A folder that is a link may lead to files that no person meant to hand over.
    linked = beside.is_symlink() or top.is_symlink()
    for folder, folders, files in os.walk(top, followlinks=False) if not linked else ():
        folders.sort()
        parts = [side_name(part) for part in Path(folder).relative_to(top).parts]
        for name in sorted(files):
            id = _subagent(own := Path(folder, name))
            if id is not None and None not in parts:
                yield Side("/".join([*(part or "" for part in parts), id]), name, own)
    for old in sorted(path.parent.glob("agent-*.jsonl")) if final else ():
        id = _subagent(old)
        if id is not None and _session_in(old) == native_id(path):
            yield Side(id, old.name, old)


def _subagent(file: Path) -> str | None:
    """The id of the subagent whose file this is, if it is one."""
    if not file.name.endswith(".jsonl") or file.is_symlink():
        return None
    return side_name(file.name.removesuffix(".jsonl").removeprefix("agent-"))


@lru_cache(maxsize=10_000)
def _session_in(file: Path) -> str | None:
    """The session that a file's first line names; asked again for every session beside it."""
    try:
        first = next(read_lines(file, final=False), None)
    except Unreadable:
        return None
    return text_in(first.value, "sessionId") if first is not None else None


def _backups(path: Path) -> Path | None:
    """Where the copies of a transcript's files are."""
    projects = path.absolute().parent.parent
    if projects.name != "projects" or side_name(path.stem) is None:
        return None
    found = projects.parent / "file-history" / path.stem
    return None if found.is_symlink() or found.parent.is_symlink() else found


# --- importing ---------------------------------------------------------------------------


def native_id(path: Path) -> str:
    """The agent's own id of the session in a file: its name."""
    return path.name.removesuffix(".jsonl")


def what_is(line: Line) -> str:
    """What a line is."""
    return cc.what_is(line.value or {})


SPEAKS = frozenset({"assistant", "result", "summary"})
"""The lines with which a conversation goes on: no prompt alone, or a command such as `/exit`."""


def files_in(
    store: Store, info: SessionInfo, found: Found, start: int
) -> tuple[FilesOf, list[str]]:
    """What the transcript says of files; nothing where hooks recorded it already."""
    if not info.metadata.get("imported") or info.cwd is None:
        return no_files, []
    # Only an import needs it, and a hook that mirrors pays for every import.
    from .file_history import FileHistory

    history = FileHistory(store, info.id, info.cwd, _backups(found.path), start)
    try:
        for side in sides(found.path, found.path, final=True):
            call = text_in(read_object(_about(side.path)), "toolUseId")
            history.delegate(call or side.name.rpartition("/")[2], read_lines(side.path))
        for line in read_lines(found.path):
            history.look(line)
        history.save()
    except BacktrailError as error:
        return no_files, [f"files cannot be rewound: {error}"]
    finally:
        history.close()
    return history.of, history.problems


def maker(info: SessionInfo, path: Path, files_of: FilesOf) -> Make:
    """What makes events of the lines of a session's own transcript."""
    is_hooked = info.root is not None and not info.metadata.get("imported")
    return Maker(native_id(path), files_of, _price, is_hooked)


def side_maker(name: str, path: Path) -> Make:
    """What makes events of the lines of a subagent."""
    ts = next((line.ts for line in read_lines(path, final=False) if line.ts), None)
    begin = NewEvent("start", _begun(path), id="start", ts=ts)
    return SideMaker(name, begin, _price)


def is_finished(path: Path) -> bool:
    """Whether a subagent is done."""
    return bool(read_object(_about(path)).get("finished"))


def _price(model: str, usage: Mapping[str, Json]) -> float | None:
    return cost(model, normal_usage(usage))


def _about(file: Path) -> Path:
    """The file that describes a subagent."""
    return file.with_name(f"{file.name.removesuffix('.jsonl')}.meta.json")


def _begun(file: Path) -> dict[str, Json]:
    """How a subagent began, in the words of our own subagents."""
    about = read_object(_about(file))
    first = next((line for line in read_lines(file, final=False) if line.value is not None), None)
    prompt = cc.said(object_in(first.value, "message")) if first is not None else ""
    data: dict[str, Json] = {"prompt": prompt, "description": about.get("description") or ""}
    names = {"toolUseId": "call", "spawnDepth": "depth", "agentType": "agent"}
    return data | {ours: about[name] for name, ours in names.items() if name in about}


# --- facts -------------------------------------------------------------------------------


def facts_in(lines: Iterator[Line]) -> Facts:
    """What lines say about their session."""
    facts = Facts()
    for line in lines:
        value = line.value
        if value is None:
            continue
        facts.titled(cc.title_in(value))
        facts.started = min(filter(None, (facts.started, line.ts)), default=None)
        if value.get("isSidechain") is True:
            continue
        facts.cwd = facts.cwd or folder_in(value, "cwd")
        facts.branch = text_in(value, "gitBranch") or facts.branch
        facts.version = text_in(value, "version") or facts.version
        if value.get("type") == "assistant":
            facts.model = cc.model_of(value) or facts.model
        if facts.prompt is None and what_is(line) == "prompt":
            facts.prompt = cc.said(cc.message_of(value))[:200] or None
    return facts
