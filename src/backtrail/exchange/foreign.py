"""Taking a foreign session into a store, whoever's it is.

A `Reader` is what is particular about an agent: a module that reads its transcripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from ..events import SessionInfo
from ..stores.base import Store
from .intake import Progress, Taken
from .jsonlines import Line, read_lines, size_of
from .records import Facts, Found, Imported, has_left, make, update
from .transcript import position

Span = tuple[int, int | None]
"""Bytes of a file, from and to; None where the file is gone."""


class Reader(Protocol):
    """How one agent's transcripts are read."""

    def native_id(self, path: Path, /) -> str:
        """The agent's own id of the session in a file."""

    def facts_in(self, lines: Iterator[Line], /) -> Facts:
        """What lines tell about their session."""

    def speaks(self, line: Line, /) -> bool:
        """Whether with a line the conversation goes on."""

    def take_main(self, store: Store, session_id: str, path: Path, /, *, final: bool) -> Taken:
        """Take in what is new in a session's own transcript."""

    def take_sides(self, store: Store, session_id: str, path: Path, /, *, final: bool) -> Taken:
        """Take in what is new in the transcripts of a session's subagents."""

    def take_all(
        self,
        store: Store,
        info: SessionInfo,
        found: Found,
        file: Path,
        span: Span,
        progress: Progress | None,
        /,
    ) -> Taken:
        """Take in what is new anywhere; of the transcript, what lies in a span of bytes."""


def reader_of(agent: Literal["claude-code", "codex"]) -> Reader:
    """The module for an agent. A hook pays for every import, so the other stays away."""
    if agent == "codex":
        from .codex import sessions as codex

        return codex
    from .claude_code import sessions as claude_code

    return claude_code


def import_from(
    reader: Reader,
    store: Store,
    found: Found,
    file: Path,
    info: SessionInfo | None,
    *,
    dry_run: bool,
    progress: Progress | None,
) -> Imported:
    """Take the session in `file` into the store, or say what that would do.

    `info` is the session that it is already, if it is.
    """

    def imported(id: str, title: str | None = None) -> Imported:
        return Imported(found.agent, found.id, str(found.path), id, title)

    start = position(store, info.id, found.id) if info is not None else 0
    length = size_of(file)
    if info is None and length == 0:
        # Nobody said anything yet.
        return imported("")
    grown = length != start
    left = info is not None and grown and has_left(info, found)
    if left and info is not None and not any(map(reader.speaks, read_lines(file, start))):
        # The agent's farewell to a session that goes on elsewhere.
        return imported(info.id, info.title)
    facts = reader.facts_in(read_lines(file)) if grown else Facts()
    created = info is None or left
    if dry_run:
        id, title = (info.id, info.title) if info is not None else (found.id, None)
        would = imported(id, title or (facts.title[1] if facts.title else None))
        lines = sum(1 for _ in read_lines(file, start)) if grown else 0
        return msgspec.structs.replace(would, created=created, lines=lines, prompt=facts.prompt)
    if info is None:
        info = make(store, found, facts)
    elif left:
        from .leaving import gone_on

        info = gone_on(store, info, found)
    # What comes in while we read is for the next time: its files were not looked at.
    taken = reader.take_all(store, info, found, file, (start, length), progress)
    update(store, store.info(info.id), facts, found if taken.lines else None)
    return msgspec.structs.replace(
        imported(info.id, store.info(info.id).title),
        created=created,
        events=taken.events,
        lines=taken.lines,
        problems=taken.problems,
        prompt=facts.prompt,
    )
