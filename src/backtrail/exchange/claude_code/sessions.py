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
from typing import TYPE_CHECKING, Literal

from ...agent.models.prices import cost
from ...errors import BacktrailError, NotFound
from ...events import Json, NewEvent, SessionInfo
from ...events.messages import normal_usage, speech_of
from ...stores.base import Store
from ..foreign import Span
from ..intake import Progress, Taken, append_new, take_in
from ..jsonlines import Line, Unreadable, read_lines, read_object, size_of
from ..records import Facts, Found
from ..transcript import fit_time, position
from . import format as cc
from .lines import FilesOf, Maker, may_cut, no_files
from .sides import SideMaker, name_of, side_name

if TYPE_CHECKING:
    from .file_history import FileHistory

AGENT: Literal["claude-code"] = "claude-code"
"""The agent's name in keys and records."""


def home() -> Path:
    """Where Claude Code keeps its things: `CLAUDE_CONFIG_DIR`, else `~/.claude`."""
    named = os.environ.get("CLAUDE_CONFIG_DIR")
    return Path(named) if named else Path.home() / ".claude"


# --- finding -----------------------------------------------------------------------------


def find(path: Path | None = None) -> list[Found]:
    """The sessions in a transcript, a folder of transcripts, or a config directory.

    A folder that has none is taken for a project: its sessions are looked for where Claude
    Code keeps them. Oldest first. `NotFound` if there is nothing of the kind.
    """
    place = (home() if path is None else path).absolute()
    if place.is_file():
        return [Found(AGENT, native_id(place), place)]
    if not place.is_dir():
        raise NotFound(
            f"there is no {place}: give a .jsonl file, a project's folder or a config directory"
        )
    files = _files_in(place)
    kept = home().absolute() / "projects" / cc.slug(str(place.resolve()))
    if not files and kept.is_dir():
        files = _transcripts(kept)
    if not files:
        raise NotFound(f"no session of Claude Code in {place}")
    files.sort(key=lambda file: (file.stat().st_mtime_ns, str(file)))
    return [Found(AGENT, native_id(file), file) for file in files]


def _files_in(place: Path) -> list[Path]:
    """The transcripts of a config directory, of all projects, or of one."""
    projects = place / "projects"
    if projects.is_dir():
        place = projects
    folders = [place, *_folders(place)] if place.name == "projects" else [place]
    return [file for folder in folders for file in _transcripts(folder)]


def _folders(place: Path) -> list[Path]:
    with os.scandir(place) as entries:
        return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))


def _transcripts(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        named = [e for e in entries if e.name.endswith(".jsonl")]
        # Subagents of old versions lie beside the sessions; they are no sessions.
        own = [e for e in named if not e.name.startswith("agent-")]
        return sorted(Path(e.path) for e in own if e.is_file(follow_symlinks=False))


def subagents(path: Path, *, old: bool = False) -> Iterator[tuple[str, Path]]:
    """The files of a transcript's subagents, each with the name of its log.

    With `old`, also where older versions put them: beside the transcript.
    """
    beside = path.with_suffix("")
    top = beside / "subagents"
    # A folder that is a link may lead to files that no person meant to hand over.
    linked = beside.is_symlink() or top.is_symlink()
    for folder, folders, files in os.walk(top, followlinks=False) if not linked else ():
        folders.sort()
        parts = [side_name(part) for part in Path(folder).relative_to(top).parts]
        for name in sorted(files):
            file = Path(folder, name)
            id = _subagent(file)
            if id is not None and None not in parts:
                yield "/".join([*(part or "" for part in parts), id]), file
    for file in sorted(path.parent.glob("agent-*.jsonl")) if old else ():
        id = _subagent(file)
        if id is not None and _session_in(file) == native_id(path):
            yield id, file


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
    return first.text("sessionId") if first is not None else None


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


def speaks(line: Line) -> bool:
    """Whether with a line the conversation goes on."""
    what = cc.what_is(line.value) if line.value is not None else "other"
    # Not with a prompt alone, or a command such as `/exit`.
    return what in ("assistant", "result", "summary")


def take_all(
    store: Store, info: SessionInfo, found: Found, file: Path, span: Span, progress: Progress | None
) -> Taken:
    """Take in what is new: the transcript, the files it names, and subagents."""
    start, until = span
    history, problems = _files(store, info, found, start) if start != until else (None, [])
    try:
        files_of: FilesOf = history.of if history is not None else no_files
        taken = take_main(store, info.id, file, final=True, until=until,
                          files_of=files_of, progress=progress)  # fmt: skip
    finally:
        if history is not None:
            problems += history.problems
            history.close()
    taken.add(take_sides(store, info.id, file, final=True, progress=progress))
    taken.problems = problems + taken.problems
    return taken


def _files(
    store: Store, info: SessionInfo, found: Found, start: int
) -> tuple[FileHistory | None, list[str]]:
    """What the transcript says of files; nothing where hooks recorded it already."""
    if not info.metadata.get("imported") or info.cwd is None:
        return None, []
    # Only an import needs it, and a hook that mirrors pays for every import.
    from .file_history import FileHistory

    history = FileHistory(store, info.id, info.cwd, _backups(found.path), start)
    try:
        for name, file in subagents(found.path, old=True):
            call = read_object(_about(file)).get("toolUseId")
            key = call if isinstance(call, str) else name.rpartition("/")[2]
            history.delegate(key, read_lines(file))
        for line in read_lines(found.path):
            history.look(line)
        history.save()
    except BacktrailError as error:
        history.close()
        return None, [f"files cannot be rewound: {error}"]
    return history, []


def take_main(
    store: Store,
    session_id: str,
    path: Path,
    *,
    final: bool,
    until: int | None = None,
    files_of: FilesOf = no_files,
    progress: Progress | None = None,
) -> Taken:
    """Take in what is new in a session's own transcript."""
    file = native_id(path)
    info = store.info(session_id)
    is_hooked = info.root is not None and not info.metadata.get("imported")
    maker = Maker(file, files_of, _price, is_hooked)
    return take_in(store, session_id, path, file, maker, name_of,
                   final=final, until=until, cut=may_cut, progress=progress)  # fmt: skip


def take_sides(
    store: Store, session_id: str, path: Path, *, final: bool, progress: Progress | None = None
) -> Taken:
    """Take in what is new in the transcripts of a session's subagents."""
    total = Taken()
    for name, file in subagents(path, old=final):
        try:
            if size_of(file) != position(store, session_id, file.name, name):
                begin = NewEvent("start", _begun(file), id="start", ts=_first_time(file))
                maker = SideMaker(name, begin, _price)
                taken = take_in(store, session_id, file, file.name, maker, name_of,
                                side=name, final=final, progress=progress)  # fmt: skip
                total.add(taken)
            total.events += _finish(store, session_id, name, file)
        except Unreadable as error:
            total.problems.append(f"subagent {name}: {error}")
    return total


def _price(model: str, usage: Mapping[str, Json]) -> float | None:
    return cost(model, normal_usage(usage))


def _about(file: Path) -> Path:
    """The file that describes a subagent."""
    return file.with_name(f"{file.name.removesuffix('.jsonl')}.meta.json")


def _begun(file: Path) -> dict[str, Json]:
    """How a subagent began, in the words of our own subagents."""
    about = read_object(_about(file))
    first = next((line for line in read_lines(file, final=False) if line.value is not None), None)
    message = first.get("message") if first is not None else None
    prompt = cc.said(message) if isinstance(message, dict) else ""
    data: dict[str, Json] = {"prompt": prompt, "description": about.get("description") or ""}
    for name, ours in (("toolUseId", "call"), ("spawnDepth", "depth"), ("agentType", "agent")):
        if name in about:
            data[ours] = about[name]
    return data


def _first_time(file: Path) -> str | None:
    times = (fit_time(line.get("timestamp")) for line in read_lines(file, final=False))
    return next((ts for ts in times if ts is not None), None)


def _finish(store: Store, session_id: str, name: str, file: Path) -> int:
    """Note the result of a subagent that is done."""
    log = f"subagents/{name}"
    last = next(store.read(session_id, log=log, reverse=True, limit=1), None)
    if last is None or last.kind == "result" or not read_object(_about(file)).get("finished"):
        return 0
    message = last.data.get("message")
    said = speech_of(message) if isinstance(message, dict) else ""
    result = NewEvent("result", {"ok": True, "text": said}, id="result", ts=last.ts)
    return len(append_new(store, session_id, log, [result]))


# --- facts -------------------------------------------------------------------------------


def facts_in(lines: Iterator[Line]) -> Facts:
    """What lines say about their session."""
    facts = Facts()
    for line in lines:
        value = line.value
        if value is None:
            continue
        facts.titled(cc.title_in(value))
        ts = fit_time(value.get("timestamp"))
        if ts is not None and (facts.started is None or ts < facts.started):
            facts.started = ts
        if value.get("isSidechain") is True:
            continue
        facts.cwd = facts.cwd or _folder(value.get("cwd"))
        facts.branch = cc.text(value, "gitBranch") or facts.branch
        facts.version = cc.text(value, "version") or facts.version
        if value.get("type") == "assistant":
            facts.model = cc.model_of(value) or facts.model
        if facts.prompt is None and cc.what_is(value) == "prompt":
            facts.prompt = cc.said(cc.message_of(value))[:200] or None
    return facts


def _folder(value: Json) -> str | None:
    """`value` if it is the path of a directory."""
    good = isinstance(value, str) and value.startswith("/") and "\0" not in value
    return value if good and len(value) < 4096 else None
