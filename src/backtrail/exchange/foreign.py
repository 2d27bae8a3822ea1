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
from ..events.messages import speech_of
from ..stores.base import Store
from .foreign_record import Facts, Found, Imported, Natives, has_left, known, make, natives, update
from .hooks.dialects import home_of
from .intake import FilesOf, Make, Progress, Side, Taken, append_new, no_files, take_in
from .jsonlines import Line, Unreadable, read_lines, size_of, unpacked
from .shapes import object_in
from .transcript import TRANSCRIPT, position

_MOVES = ("rewound", "undone", "redone")
_BATCH = 200

Agent = Literal["claude-code", "codex"]
"""The agents whose sessions can be imported."""


class Reader(Protocol):
    """How one agent's transcripts are read."""

    SPEAKS: frozenset[str]

    def find(self, path: Path | None = None, /) -> list[Found]:
        """The sessions in a file, in a folder, or where the agent keeps them; oldest first."""

    def native_id(self, path: Path, /) -> str:
        """The agent's own id of the session in a file."""

    def facts_in(self, lines: Iterator[Line], /) -> Facts:
        """What lines say about their session."""

    def what_is(self, line: Line, /) -> str:
        """What a line is, in the agent's words; with one of `SPEAKS` the conversation goes on."""

    def files_in(
        self, store: Store, info: SessionInfo, found: Found, start: int, /
    ) -> tuple[FilesOf, list[str]]:
        """What a transcript says of files from a byte on, and what is wrong with that."""

    def maker(self, info: SessionInfo, path: Path, files_of: FilesOf, /) -> Make:
        """What makes events of the lines of a session's own transcript."""

    def sides(self, path: Path, file: Path, /, *, final: bool) -> Iterator[Side]:
        """The transcripts of a session's subagents; `file` is the transcript, unpacked."""

    def side_maker(self, name: str, path: Path, /) -> Make:
        """What makes events of the lines of a subagent."""

    def is_finished(self, path: Path, /) -> bool:
        """Whether the subagent of a transcript is done."""


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
        home = home_of(agent).resolve()
        return [
            msgspec.structs.replace(one, own=one.path.resolve().is_relative_to(home))
            for one in reader.find(path)
        ]
    except OSError as error:
        if isinstance(error, BacktrailError):
            raise
        raise StoreFailed(f"cannot look for sessions: {error}") from error


def import_found(
    store: Store, found: Iterable[Found], *, dry_run: bool = False, progress: Progress | None = None
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
    store: Store, found: Found, *, dry_run: bool = False, progress: Progress | None = None,
    others: Natives | None = None,
) -> Imported:  # fmt: skip
    """Take a session into the store, with subagents and files, or say what that would do.

    `others` are the sessions that other native ones are already, where the caller knows them.
    """
    reader = reader_of(found.agent)
    info = known(store, found, others)
    report = Imported(found.agent, found.id, str(found.path), info.id if info is not None else "")
    replace = msgspec.structs.replace
    with unpacked(found.path) as file:
        start = position(store, info.id, found.id) if info is not None else 0
        length = size_of(file)
        if info is None and length == 0:
            # Nothing was said yet.
            return report
        grown = length != start
        left = info is not None and grown and has_left(info, found)
        new = (reader.what_is(line) for line in read_lines(file, start))
        if left and info is not None and not any(what in reader.SPEAKS for what in new):
            # The agent's farewell to a session that goes on elsewhere.
            return replace(report, title=info.title)
        facts = reader.facts_in(read_lines(file)) if grown else Facts()
        report = replace(report, created=info is None or left, prompt=facts.prompt)
        if dry_run:
            title = (info.title if info is not None else None) or (facts.title or (0, None))[1]
            lines = sum(1 for _ in read_lines(file, start)) if grown else 0
            return replace(
                report, session_id=report.session_id or found.id, title=title, lines=lines
            )
        if info is None:
            info = make(store, found, facts)
        elif left:
            info = gone_on(store, info, found)
        files_of, problems = reader.files_in(store, info, found, start) if grown else (no_files, [])
        taken = Taken(problems=problems)
        # What comes in while we read is for the next time: its files were not looked at.
        taken.add(_take_main(store, info, reader, file, files_of, length, progress))
        taken.add(_take_sides(store, info.id, reader, found.path, file, progress))
    update(store, store.info(info.id), facts, found if taken.lines else None)
    return replace(
        report, session_id=info.id, title=store.info(info.id).title, events=taken.events,
        lines=taken.lines, problems=taken.problems,
    )  # fmt: skip


def _take_main(
    store: Store, info: SessionInfo, reader: Reader, path: Path, files_of: FilesOf = no_files,
    until: int | None = None, progress: Progress | None = None, *, final: bool = True,
) -> Taken:  # fmt: skip
    """Take in what is new in a session's own transcript."""
    file, make = reader.native_id(path), reader.maker(info, path, files_of)
    return take_in(store, info.id, path, file, make, final=final, until=until, progress=progress,
                   cut=lambda line: reader.what_is(line) == "prompt")  # fmt: skip


def _take_sides(
    store: Store, session_id: str, reader: Reader, path: Path, file: Path,
    progress: Progress | None = None, *, final: bool = True,
) -> Taken:  # fmt: skip
    """Take in what is new in the transcripts of a session's subagents."""
    total = Taken()
    for side in reader.sides(path, file, final=final):
        try:
            total.add(_take_side(store, session_id, reader, side, progress, final=final))
            total.events += _finish(store, session_id, reader, side)
        except (InvalidData, NotFound, Unreadable) as error:
            total.problems.append(f"subagent {side.name}: {error}")
    return total


def _take_side(
    store: Store, session_id: str, reader: Reader, side: Side, progress: Progress | None = None,
    *, final: bool,
) -> Taken:  # fmt: skip
    """Take in what is new in the transcript of a subagent."""
    with unpacked(side.path) as plain:
        if size_of(plain) == position(store, session_id, side.file, side.name):
            return Taken()
        make = reader.side_maker(side.name, plain)
        return take_in(store, session_id, plain, side.file, make,
                       side=side.name, final=final, progress=progress)  # fmt: skip


def _finish(store: Store, session_id: str, reader: Reader, side: Side) -> int:
    """Note the result of a subagent that is done."""
    log = f"subagents/{side.name}"
    last = next(store.read(session_id, log=log, reverse=True, limit=1), None)
    if last is None or last.kind == "result" or not reader.is_finished(side.path):
        return 0
    said = speech_of(object_in(last.data, "message"))
    result = NewEvent("result", {"ok": True, "text": said}, id="result", ts=last.ts)
    return len(append_new(store, session_id, log, [result]))


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
        taken = _take_main(store, store.info(session_id), reader, transcript, final=False)
        if taken.lines:
            lines = read_lines(transcript, start if length > start else 0, final=False)
            facts = reader.facts_in(lines)
            # Where it runs is known from the hook.
            facts.cwd = None
            update(store, store.info(session_id), facts)
    taken.add(_take_sides(store, session_id, reader, transcript, transcript, final=False))
    return taken.events


def mirror_side(store: Store, session_id: str, name: str, rollout: Path) -> int:
    """Take in what is new in the rollout of a subagent of Codex's; the number of events."""
    from .codex import sessions as codex

    if size_of(rollout) is None or not codex.ID.fullmatch(name):
        return 0
    side = Side(name, name, rollout)
    return _take_side(store, session_id, codex, side, final=False).events


# --- going on in a session that was left -------------------------------------------------


def gone_on(store: Store, info: SessionInfo, found: Found) -> SessionInfo:
    """Make a fork for a native session that `info` was once, and is not any more."""
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
