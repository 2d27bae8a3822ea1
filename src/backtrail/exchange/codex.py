"""Codex's rollouts, into ours.

    CODEX_HOME/sessions/YYYY/MM/DD/rollout-<time>-<id>.jsonl
    CODEX_HOME/archived_sessions/rollout-<time>-<id>.jsonl

A rollout is one line of time: items come one after the other, and a note that turns were
rolled back makes what follows a branch. Lines have no ids; their place names them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ..agent.models.prices import cost
from ..errors import NotFound
from ..events import Event, Json, SessionInfo
from ..formats import codex
from ..history import path as live_path
from ..messages import text_of
from ..stores.base import Store
from .foreign import Span, import_from, reader_of
from .intake import GrowingLog, Progress, Taken, take_in
from .reading import Line, read_lines, unpacked
from .records import Facts, Found, Imported, Natives, known
from .transcripts import fit_time, line_id

AGENT: Literal["codex"] = "codex"
"""The agent's name in keys and records."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ROLLOUT = re.compile(r"rollout-.*\.jsonl(\.zst)?", re.DOTALL)
_KINDS = {
    "prompt": "user_message",
    "note": "system_message",
    "system": "system_message",
    "result": "tool_result",
    "assistant": "assistant_message",
}


def codex_home() -> Path:
    """Where Codex keeps its things: `CODEX_HOME`, else `~/.codex`."""
    named = os.environ.get("CODEX_HOME")
    return Path(named) if named else Path.home() / ".codex"


# --- finding -----------------------------------------------------------------------------


def find(path: Path | None = None) -> list[Found]:
    """The sessions in a rollout, a folder of rollouts, or Codex's home; oldest first."""
    place = (codex_home() if path is None else path).absolute()
    if place.is_file():
        return [Found(AGENT, native_id(place), place)]
    if not place.is_dir():
        raise NotFound(f"there is no {place}: give a rollout, a folder of rollouts or CODEX_HOME")
    inner = [place / name for name in ("sessions", "archived_sessions")]
    tops = [top for top in inner if top.is_dir()] or [place]
    files = sorted({file for top in tops for file in _rollouts(top)}, key=lambda file: file.name)
    if not files:
        raise NotFound(f"no session of Codex in {place}")
    return [Found(AGENT, native_id(file), file) for file in files]


def _rollouts(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top, followlinks=False):
        folders.sort()
        for name in names:
            file = Path(folder, name)
            if _ROLLOUT.fullmatch(name) and not file.is_symlink():
                yield file


def native_id(path: Path) -> str:
    """The id of a rollout, which its name ends in; else what its first line says."""
    found = _UUID.findall(path.name)
    if found:
        return str(found[-1])
    with unpacked(path) as file:
        first = next(read_lines(file), None)
    said = codex.payload_of(first.value or {}).get("id") if first is not None else None
    return said if isinstance(said, str) and _UUID.fullmatch(said) else path.stem


# --- importing ---------------------------------------------------------------------------


def import_session(
    store: Store,
    found: Found,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    others: Natives | None = None,
) -> Imported:
    """Take a rollout into the store, or say what that would do."""
    info = known(store, found, others)
    with unpacked(found.path) as file:
        return import_from(
            reader_of(AGENT), store, found, file, info, dry_run=dry_run, progress=progress
        )


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
    return take_in(store, session_id, path, file, Maker(file), _name_of,
                   final=final, until=until, cut=_may_cut, progress=progress)  # fmt: skip


def take_sides(store: Store, session_id: str, path: Path, *, final: bool) -> Taken:
    """Nothing: a rollout has no subagents."""
    return Taken()


def take_all(
    store: Store, info: SessionInfo, found: Found, file: Path, span: Span, progress: Progress | None
) -> Taken:
    """Take in what is new."""
    return take_main(store, info.id, file, final=True, until=span[1], progress=progress)


def _name_of(line: Line) -> tuple[str | None, str | None]:
    return None, fit_time(line.get("timestamp"))


def _may_cut(line: Line) -> bool:
    return line.value is not None and codex.what_is(line.value) == "prompt"


class Maker(msgspec.Struct):
    """Makes events of the lines of one rollout; `file` is its name in the side log."""

    file: str

    def __call__(self, lines: list[Line], log: GrowingLog) -> Taken:
        """Add the events of these lines to the log."""
        taken = Taken()
        usage = _usage_by_line(lines)
        model: str | None = None
        for line in lines:
            if line.value is None:
                taken.problems.append(f"line at byte {line.at} {line.problem}")
                continue
            what = codex.what_is(line.value)
            if what == "context":
                said = codex.payload_of(line.value).get("model")
                model = said if isinstance(said, str) else model
            home: str | None = None
            if what in _KINDS:
                home = self._say(line, what, log, taken, usage.get(line.at), model)
            elif what == "compaction":
                home = self._compact(line, log)
            elif what == "rollback":
                home = self._roll_back(line, log, taken)
            if home is not None:
                taken.homes[line.at] = home
            elif log.tip is not None:
                taken.behind[line.at] = log.tip
        return taken

    def _say(
        self, line: Line, what: str, log: GrowingLog, taken: Taken,
        usage: dict[str, int] | None, model: str | None,
    ) -> str:  # fmt: skip
        item = dict(codex.payload_of(line.value or {}))
        if what == "prompt":
            noted = _noted(log, item, taken)
            if noted is not None:
                return noted
        data: dict[str, Json] = {"message": item, "format": "responses", "source": self._from(line)}
        if usage is not None:
            data["usage"] = usage
            price = cost(model, usage) if model is not None else None
            data |= {"cost_usd": price} if price is not None else {}
        id = self._id(line)
        log.add(_KINDS[what], data, id, fit_time(line.get("timestamp")), None)
        return id

    def _compact(self, line: Line, log: GrowingLog) -> str:
        id = self._id(line)
        until = log.seq(log.tip) if log.tip is not None else 0
        summary = {"role": "assistant", "content": codex.summary_in(line.value or {})}
        data = {"summary": summary, "until": until or 0, "format": "openai"}
        ts = fit_time(line.get("timestamp"))
        log.add("compaction", data | {"source": self._from(line)}, id, ts, None)
        return id

    def _roll_back(self, line: Line, log: GrowingLog, taken: Taken) -> str | None:
        """Turns are taken back: a rewind, to before the first of them."""
        turns = codex.rolled_back(line.value or {})
        events = live_path([*log.stored(), *log.coming()])
        prompts = [event for event in events if event.kind == "user_message"]
        if not turns or not prompts:
            return None
        first = prompts[max(0, len(prompts) - turns)]
        dropped = sum(event.seq >= first.seq for event in events)
        data = {"to": first.previous, "scope": "conversation", "mode": "mine",
                "events_dropped": dropped, "source": self._from(line)}  # fmt: skip
        id = self._id(line)
        log.rewind(data, id, fit_time(line.get("timestamp")), first.previous)
        return id

    def _id(self, line: Line) -> str:
        return f"{self.file[:64]}-{line_id(line)}"

    def _from(self, line: Line) -> dict[str, Json]:
        return {"file": self.file, "lines": [line.at]}


def _noted(log: GrowingLog, item: dict[str, Json], taken: Taken) -> str | None:
    """The event of a prompt that a hook noted when it was typed."""
    event: Event | None = log.event(log.tip) if log.tip is not None else None
    if event is None or event.kind != "user_message" or event.data.get("source") is not None:
        return None
    same = text_of(event.data.get("message")).strip() == text_of(item.get("content")).strip()
    return event.id if same and event.id not in taken.homes.values() else None


def _usage_by_line(lines: list[Line]) -> dict[int, dict[str, int]]:
    """The tokens of each response, by the place of its last line."""
    found: dict[int, dict[str, int]] = {}
    last: int | None = None
    total: Json = None
    for line in lines:
        if line.value is None:
            continue
        what = codex.what_is(line.value)
        if what == "assistant":
            last = line.at
        elif what == "usage":
            told = codex.usage_in(line.value)
            # The same numbers are told again and again.
            if told is not None and last is not None and told[0] != total:
                total = told[0]
                found[last] = told[1]
                last = None
    return found


# --- facts -------------------------------------------------------------------------------


def facts_in(lines: Iterator[Line]) -> Facts:
    """What lines tell about their session."""
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
            facts.prompt = text_of(payload.get("content"))[:200] or None
        if kind in ("session_meta", "turn_context"):
            cwd = _text(payload.get("cwd"))
            facts.cwd = facts.cwd or (cwd if cwd and cwd.startswith("/") else None)
            facts.model = _text(payload.get("model")) or facts.model
    return facts


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value and "\0" not in value else None
