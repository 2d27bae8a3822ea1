"""Taking lines of a foreign transcript into a session: events, and the lines themselves.

Import and mirror are the same: both read on from where the log says it was read to. A batch
of events is appended only if no other process appended since the log was looked at; otherwise it
is made anew. So two processes may take in one file at the same time, and a crash in between
costs nothing: ids show what is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import msgspec

from ..errors import Conflict
from ..events import Event, Json, NewEvent
from ..stores.base import Store
from .growing_log import GrowingLog
from .jsonlines import Line, read_lines, size_of
from .transcript import append_entries, entries, position, purged

_TRIES = 50
_CHUNK = 8 << 20
_MOST = 64 << 20

Progress = Callable[[int], None]
"""Called with how many bytes of a file were taken in since the last time."""


class Taken(msgspec.Struct):
    """What became of some lines: events of the main log and of logs beside it.

    `homes` names the event that a line is part of, `behind` the one it comes after, both by
    the line's place. `problems` are for people.
    """

    events: int = 0
    lines: int = 0
    homes: dict[int, str] = {}
    behind: dict[int, str] = {}
    sides: dict[str, list[NewEvent]] = {}
    problems: list[str] = []

    def add(self, more: Taken) -> None:
        """Count in what became of other lines."""
        self.events += more.events
        self.lines += more.lines
        self.problems += more.problems


Make = Callable[[list[Line], GrowingLog], Taken]
"""Makes events of lines: adds those of the main log, and returns the rest."""
FilesOf = Callable[[Line], tuple[dict[str, Json] | None, NewEvent | None]]
"""What a line says about files: for its own event, and an event that comes before it."""


def no_files(line: Line) -> tuple[dict[str, Json] | None, NewEvent | None]:
    """Nothing is known about files."""
    return None, None


class Side(msgspec.Struct, frozen=True):
    """A subagent's transcript: the name of its log, of its file in the side log, and the file."""

    name: str
    file: str
    path: Path


def take_in(
    store: Store, session_id: str, source: Path, file: str, make: Make, *,
    side: str = "", final: bool = True, until: int | None = None,
    cut: Callable[[Line], bool] = lambda line: True, progress: Progress | None = None,
) -> Taken:  # fmt: skip
    """Take in what is new in a file; how much that was, and what was wrong with it.

    `file` is the file's name in the side log, `side` the name of a subagent. Batches end
    before lines at which `cut` says they may. Lines that end behind `until` are left alone.
    """
    start = position(store, session_id, file, side)
    length = size_of(source)
    if length is None or length == start:
        return Taken()
    # A shorter file was replaced. What is known already is known by its ids.
    start = start if length > start else 0
    total = Taken()
    lines = read_lines(source, start, final=final)
    if until is not None:
        lines = takewhile(lambda line: line.end <= until, lines)
    gone = purged(store, session_id, side)
    if gone:
        lines = (line for line in lines if line.id not in gone)
    for chunk in _chunks(lines, cut):
        bad = [line for line in chunk if line.value is None]
        total.problems += [f"line at byte {line.at} {line.problem}" for line in bad]
        whole = [line for line in chunk if not line.torn]
        if whole:
            taken = _take(store, session_id, whole, make)
            taken.lines = len(whole)
            append_entries(store, session_id, _entries(file, whole, taken), side)
            total.add(taken)
            if progress is not None:
                progress(whole[-1].end - whole[0].at)
    return total


def _take(store: Store, session_id: str, lines: list[Line], make: Make) -> Taken:
    """Append the events of lines, made anew as long as others append in between."""
    for attempt in range(_TRIES):
        log = GrowingLog(store, session_id)
        taken = make(lines, log)
        try:
            taken.events = len(log.append())
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            continue
        for name, events in taken.sides.items():
            taken.events += len(append_new(store, session_id, name, events))
        return taken
    raise AssertionError("unreachable")


def append_new(store: Store, session_id: str, log: str, events: list[NewEvent]) -> list[Event]:
    """Append to a side log what is not there yet; that is what comes back."""
    last = next(store.read(session_id, log=log, reverse=True, limit=1), None)
    if last is not None and events and events[0].kind == "start":
        # What comes after an event that is there already follows that one.
        events = events[1:]
    stored = store.append(session_id, events, log=log)
    return [event for event in stored if last is None or event.seq > last.seq]


def _entries(file: str, lines: list[Line], taken: Taken) -> Iterator[NewEvent]:
    seen: set[str | None] = set()
    last_time = next((line.ts for line in lines if line.ts), None)
    for line in lines:
        # The second line of an id is kept under a name of its own.
        id = None if line.own_id in seen else line.own_id
        seen.add(id)
        # A line without a time was written after the one before it.
        last_time = line.ts or last_time
        home, behind = taken.homes.get(line.at), taken.behind.get(line.at)
        yield from entries(file, line, id, last_time, home, behind)


def _chunks(lines: Iterator[Line], cut: Callable[[Line], bool]) -> Iterator[list[Line]]:
    """Lines in batches of some megabytes."""
    chunk: list[Line] = []
    size = 0
    for line in lines:
        if chunk and (size + len(line.raw) > _MOST or (size > _CHUNK and cut(line))):
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += len(line.raw)
    if chunk:
        yield chunk
