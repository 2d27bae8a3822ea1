"""Taking a foreign session into a store, whichever agent wrote it.

A `Reader` is what is particular about an agent: a module that reads its transcripts.

An import takes in a whole session. A mirror takes in a live transcript, into the session that
hooks write to: hooks note prompts and what happened to files, as it happens, and what was said
comes from the agent's own transcript, which lags behind. Each call of `mirror` takes in the
whole lines that are new. A prompt that a hook noted is not said again. Two processes may do so
at once.

After a rewind a session goes on in a new native one. When a person still goes on in the old one,
it goes on with what was taken back. That is another conversation: `gone_on` makes it a fork of
the session as it was when the native one was left, with the lines that were read until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol, get_args

import msgspec

from ..errors import AlreadyExists, BacktrailError, InvalidData, NotFound, StoreFailed
from ..events import Event, Json, NewEvent, SessionInfo
from ..stores.base import Store
from .intake import Progress, Taken
from .jsonlines import Line, read_lines, size_of, unpacked
from .records import Facts, Found, Imported, Natives, has_left, known, make, natives, update
from .transcript import TRANSCRIPT, position

_MOVES = ("rewound", "undone", "redone")
_BATCH = 200

Agent = Literal["claude-code", "codex"]
"""The agents whose sessions can be imported."""

Span = tuple[int, int | None]
"""Bytes of a file, from and to; None where the file is gone."""


class Reader(Protocol):
    """How one agent's transcripts are read."""

    def home(self) -> Path:
        """Where the agent keeps its things."""

    def find(self, path: Path | None = None, /) -> list[Found]:
        """The sessions in a file, in a folder, or where the agent keeps them; oldest first."""

    def native_id(self, path: Path, /) -> str:
        """The agent's own id of the session in a file."""

    def facts_in(self, lines: Iterator[Line], /) -> Facts:
        """What lines say about their session."""

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


def reader_of(agent: str) -> Reader:
    """The module for an agent. A hook pays for every import, so the other stays away."""
    if agent == "codex":
        from .codex import sessions as codex

        return codex
    from .claude_code import sessions as claude_code

    return claude_code


# --- importing ---------------------------------------------------------------------------


def find(agent: Agent, path: Path | None = None) -> list[Found]:
    """The sessions of an agent, in a file or folder or where it keeps them; oldest first.

    Each says whether it lies in the agent's own folder.
    """
    if agent not in get_args(Agent):
        raise InvalidData(f"`{agent}` is no agent known here: use {' or '.join(get_args(Agent))}")
    reader = reader_of(agent)
    try:
        home = reader.home().resolve()
        return [
            msgspec.structs.replace(one, own=one.path.resolve().is_relative_to(home))
            for one in reader.find(path)
        ]
    except OSError as error:
        if isinstance(error, BacktrailError):
            raise
        raise StoreFailed(f"cannot look for sessions: {error}") from error


def import_found(
    store: Store,
    found: Iterable[Found],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Iterator[Imported]:
    """Import sessions, or say what that would do; one that fails does not stop the others."""
    others = natives(store)
    for one in found:
        try:
            yield import_session(store, one, dry_run=dry_run, progress=progress, others=others)
        except (BacktrailError, OSError) as error:
            # Files come and go while their agents work.
            yield Imported(one.agent, one.id, str(one.path), "", error=str(error))


def import_session(
    store: Store,
    found: Found,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    others: Natives | None = None,
) -> Imported:
    """Take a session into the store, with subagents and files, or say what that would do.

    `others` are the sessions that other native ones are already, where the caller knows them.
    """
    info = known(store, found, others)
    with unpacked(found.path) as file:
        return _imported(store, found, file, info, dry_run, progress)


def _imported(
    store: Store, found: Found, file: Path, info: SessionInfo | None, dry_run: bool,
    progress: Progress | None,
) -> Imported:  # fmt: skip
    """Take in the session in `file`; `info` is the session that it is already, if it is."""

    def imported(id: str, title: str | None = None) -> Imported:
        return Imported(found.agent, found.id, str(found.path), id, title)

    reader = reader_of(found.agent)
    start = position(store, info.id, found.id) if info is not None else 0
    length = size_of(file)
    if info is None and length == 0:
        # Nothing was said yet.
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


# --- mirroring ---------------------------------------------------------------------------


def mirror(store: Store, session_id: str, transcript: Path, agent: str) -> int:
    """Take in what is new in a transcript and its subagents'; the number of events appended.

    Nothing new costs a look at the end of the log and at the size of each file. A transcript
    that is not there yet is empty. Gemini's is not understood: nothing is taken in.
    """
    length = size_of(transcript)
    if agent == "gemini" or length is None:
        return 0
    reader = reader_of(agent)
    start = position(store, session_id, reader.native_id(transcript))
    taken = Taken()
    if length != start:
        taken = reader.take_main(store, session_id, transcript, final=False)
        if taken.lines:
            lines = read_lines(transcript, start if length > start else 0, final=False)
            facts = reader.facts_in(lines)
            # Where it runs is known from the hook.
            facts.cwd = None
            update(store, store.info(session_id), facts)
    return taken.events + reader.take_sides(store, session_id, transcript, final=False).events


def mirror_side(store: Store, session_id: str, name: str, rollout: Path) -> int:
    """Take in what is new in the rollout of a subagent of Codex's; the number of events."""
    from .codex import sessions as codex

    if size_of(rollout) is None:
        return 0
    return codex.take_side(store, session_id, name, rollout, final=False).events


# --- going on in a session that was left -------------------------------------------------


def gone_on(store: Store, info: SessionInfo, found: Found) -> SessionInfo:
    """The fork that a native session becomes which `info` was once, and is no more."""
    # A hook that mirrors has no time to load what opens a session.
    from ..session.session import Session

    native: dict[str, Json] = {"agent": found.agent, "id": found.id, "path": str(found.path)}
    with (
        Session.resume(store, info.id, files=False, lease=None) as parent,
        parent.fork(
            at=_left_at(store, info.id, found.id), files=False, metadata={"native": native}
        ) as fork,
    ):
        fork_id = fork.id
    lines = _lines_of(store, info.id, found.id)
    while batch := list(islice(lines, _BATCH)):
        again = [NewEvent(line.kind, line.data, id=line.id, ts=line.ts) for line in batch]
        store.append(fork_id, again, log=TRANSCRIPT)
    try:
        # Only now can others find it: a process that took in the old file before its lines are
        # known would take in all of it again.
        return store.update(fork_id, key=found.key)
    except AlreadyExists:
        store.delete(fork_id)
        return store.sessions(key=found.key, limit=1)[0]


def _lines_of(
    store: Store, session_id: str, native_id: str, *, reverse: bool = False
) -> Iterator[Event]:
    for event in store.read(session_id, log=TRANSCRIPT, reverse=reverse):
        if event.data.get("file") == native_id:
            yield event


def _left_at(store: Store, session_id: str, native_id: str) -> int:
    """The last event before the rewind by which a native session was left."""
    from .gemini.format import STAMPED, stamp_of

    last = 0
    line = next(_lines_of(store, session_id, native_id, reverse=True), None)
    name = (line.data.get("event") or line.data.get("behind")) if line is not None else None
    if isinstance(name, str):
        try:
            last = store.find(session_id, name).seq
        except NotFound:
            pass
    if line is None:
        # Of Gemini CLI no lines are kept: its events say which record they come with.
        stamped = store.read(session_id, kinds=STAMPED, reverse=True)
        last = next((e.seq for e in stamped if (s := stamp_of(e)) and s.file == native_id), 0)
    for event in store.read(session_id, after=last, kinds=_MOVES):
        # A rollback that the agent made itself comes from its own lines.
        if event.follows is not None and "source" not in event.data:
            return event.seq - 1
    return last
