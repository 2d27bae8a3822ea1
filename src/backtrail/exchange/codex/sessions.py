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

from ...errors import BacktrailError, NotFound
from ...events import Json, SessionInfo
from ...events.messages import speech_of
from ...stores.base import Store
from ..foreign import Span
from ..intake import Progress, Taken, take_in
from ..jsonlines import Line, read_lines, size_of, unpacked
from ..records import Facts, Found
from ..transcript import fit_time, position
from . import format as codex
from .lines import Maker, SideMaker, may_cut, name_of

AGENT: Literal["codex"] = "codex"
"""The agent's name in keys and records."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_AGENTS = re.compile(rb'"(?:agent_thread_id|receiver_thread_ids)":("[^"]*"|\[[^]]*\])')
_ROLLOUT = re.compile(r"rollout-.*\.jsonl(\.zst)?", re.DOTALL)


def home() -> Path:
    """Where Codex keeps its things: `CODEX_HOME`, else `~/.codex`."""
    named = os.environ.get("CODEX_HOME")
    return Path(named) if named else Path.home() / ".codex"


# --- finding -----------------------------------------------------------------------------


def find(path: Path | None = None) -> list[Found]:
    """The sessions in a rollout, a folder of rollouts, or Codex's home; oldest first."""
    place = (home() if path is None else path).absolute()
    if place.is_file():
        return [Found(AGENT, _session_of(place), place)]
    if not place.is_dir():
        raise NotFound(f"there is no {place}: give a rollout, a folder of rollouts or CODEX_HOME")
    inner = [place / name for name in ("sessions", "archived_sessions")]
    tops = [top for top in inner if top.is_dir()] or [place]
    files = sorted({file for top in tops for file in _rollouts(top)}, key=lambda file: file.name)
    if not files:
        raise NotFound(f"no session of Codex in {place}")
    return [Found(AGENT, _session_of(file), file) for file in files if not _is_side(file)]


def _rollouts(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top, followlinks=False):
        folders.sort()
        for name in names:
            file = Path(folder, name)
            if _ROLLOUT.fullmatch(name) and not file.is_symlink():
                yield file


def has_rollout(id: str) -> bool:
    """Whether Codex has the session of this id on this machine."""
    top = home()
    files = (file for name in ("sessions", "archived_sessions") for file in _rollouts(top / name))
    return any(id in file.name for file in files)


def native_id(path: Path) -> str:
    """The id of a rollout, which its name ends in; else what its first line says."""
    found = _UUID.findall(path.name)
    if found:
        return str(found[-1])
    said = codex.payload_of(_first(path)).get("id")
    return said if isinstance(said, str) and _UUID.fullmatch(said) else path.stem


def _session_of(path: Path) -> str:
    """The id of the session that a rollout is of, the only one or one of several."""
    before, mark, _ = path.name.rpartition("_")
    found = _UUID.findall(before) if mark else []
    return str(found[-1]) if found else native_id(path)


def _first(path: Path) -> dict[str, Json]:
    """The first line of a rollout; empty if that is no object."""
    try:
        with unpacked(path) as file:
            line = next(read_lines(file, final=False), None)
    except BacktrailError:
        # Taking it in reports that.
        return {}
    return line.value or {} if line is not None else {}


def _is_side(path: Path) -> bool:
    """Whether a rollout is a subagent's, and no session."""
    return codex.is_side(_first(path))


# --- importing ---------------------------------------------------------------------------


def speaks(line: Line) -> bool:
    """Whether with a line the conversation goes on."""
    what = codex.what_is(line.value) if line.value is not None else "other"
    return what in ("assistant", "result", "compaction", "rollback")


def take_main(
    store: Store,
    session_id: str,
    path: Path,
    *,
    final: bool,
    until: int | None = None,
    progress: Progress | None = None,
) -> Taken:
    """Take in what is new in a rollout."""
    file = native_id(path)
    return take_in(store, session_id, path, file, Maker(file), name_of,
                   final=final, until=until, cut=may_cut, progress=progress)  # fmt: skip


def take_sides(store: Store, session_id: str, path: Path, *, final: bool) -> Taken:
    """Nothing: a hook reports each subagent by itself, with its rollout."""
    return Taken()


def take_all(
    store: Store, info: SessionInfo, found: Found, file: Path, span: Span, progress: Progress | None
) -> Taken:
    """Take in what is new, with the rollouts of subagents."""
    taken = take_main(store, info.id, file, final=True, until=span[1], progress=progress)
    for path in _named(found.path, file):
        try:
            with unpacked(path) as side:
                taken.add(take_side(store, info.id, native_id(path), side, final=True))
        except BacktrailError as error:
            taken.problems.append(f"subagent {native_id(path)}: {error}")
    return taken


def take_side(store: Store, session_id: str, name: str, path: Path, *, final: bool) -> Taken:
    """Take in what is new in a subagent's rollout."""
    if not _UUID.fullmatch(name) or size_of(path) == position(store, session_id, name, name):
        return Taken()
    return take_in(store, session_id, path, name, SideMaker(name, _first(path)), name_of,
                   side=name, final=final)  # fmt: skip


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
    return list(dict.fromkeys(_UUID.findall(named.decode("ascii", "replace"))))


# --- facts -------------------------------------------------------------------------------


def facts_in(lines: Iterator[Line]) -> Facts:
    """What lines say about their session."""
    facts = Facts()
    for line in lines:
        value = line.value
        if value is None:
            continue
        facts.started = facts.started or fit_time(value.get("timestamp"))
        payload = codex.payload_of(value)
        kind = value.get("type")
        if kind == "session_meta":
            facts.started = fit_time(payload.get("timestamp")) or facts.started
            facts.version = _text(payload.get("cli_version")) or facts.version
            git = payload.get("git")
            facts.branch = _text(git.get("branch")) if isinstance(git, dict) else facts.branch
            provider = _text(payload.get("model_provider"))
            facts.more |= {"model_provider": provider} if provider else {}
        if facts.prompt is None and codex.what_is(value) == "prompt":
            facts.prompt = speech_of(payload)[:200] or None
        if kind in ("session_meta", "turn_context"):
            cwd = _text(payload.get("cwd"))
            facts.cwd = facts.cwd or (cwd if cwd and cwd.startswith("/") else None)
            facts.model = _text(payload.get("model")) or facts.model
    return facts


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value and "\0" not in value else None
