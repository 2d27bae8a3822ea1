"""Sessions of Gemini CLI: where its chat stood at an event, where it went back to, a new one.

What is said comes from hooks. An event of such a session says how long Gemini's own record of
the chat was at that moment (`source`: `file`, its session's id, and `at`), and that record up to
there is the chat as it was before the event. So the record shows which event Gemini's `/rewind`
and `/restore` go back to, and what a new native session begins with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..._startup.hashing import sha256
from ...errors import BacktrailError, Unsupported
from ...events import Event, Json, NewEvent
from ...events.history import WORK_KINDS
from ...events.messages import speech_of
from ...stores.base import Store
from ..hooks.dialects import home_of
from ..jsonlines import read_lines
from . import format as gemini
from .format import Atom, Chat, Record, atoms, stamp_of

AGENT = "gemini"


# --- going back in Gemini ----------------------------------------------------------------


def turns_of_chat(
    store: Store, session_id: str, native_id: str, path: Path, after: int, size: int
) -> Iterator[NewEvent]:
    """The rewinds and summaries that Gemini made by itself, in its record between two places.

    Each is to be appended before the next is asked for.
    """
    for at, end, before, now in _turns(path, after, size):
        source: dict[str, Json] = {"file": native_id, "at": at, "end": end}
        data = _compaction(store, session_id, path, before, now)
        if data is not None:
            name = f"{native_id[:64]}-summary-{at}"
            yield NewEvent("compaction", data | {"source": source}, id=name)
            continue
        target = _target(store, session_id, path, now)
        summary = None
        if target is None and before[: len(now)] == now:
            target, summary = _behind_summary(store, session_id, path, before, len(now))
        data = _rewind(store, session_id, target) if target is not None else None
        if data is not None:
            # Two hooks may see it at once.
            name = f"{native_id[:64]}-back-{at}"
            yield NewEvent("rewound", data | {"source": source}, id=name, follows=target)
            if summary is not None:
                # It is left behind, and the chat still begins with it.
                again = {**summary.data, "until": min(summary.data["until"], target or 0)}
                yield NewEvent("compaction", again | {"source": source}, id=f"{name}-summary")


def _turns(path: Path, after: int, size: int) -> Iterator[tuple[int, int, list[Atom], list[Atom]]]:
    """The lines with which a chat is another: where each is, and the chat before and after it.

    A chat that is resumed is empty for some lines, and then what it was.
    """
    lines = [
        line for line in read_lines(path, after) if any(mark in line.raw for mark in gemini.BACK)
    ]
    spots = [(line.at, line.end) for line in lines if line.end <= size]
    said = [atoms(one) for one in states(path, [byte for spot in spots for byte in spot])]
    number = 0
    while number < len(spots):
        before, later = said[2 * number], said[2 * number + 1 :: 2]
        same = [n for n, now in enumerate(later, number) if now[: len(before)] == before]
        if not same:
            yield *spots[number], before, later[0]
        number = same[-1] + 1 if same else number + 1


def _behind_summary(
    store: Store, session_id: str, path: Path, before: list[Atom], kept: int
) -> tuple[int | None, Event | None]:
    """The event that a chat went back to among what its last summary kept word for word."""
    summaries = (event for event in store.walk(session_id) if event.kind == "compaction")
    summary = next(summaries, None)
    stamp = stamp_of(summary) if summary is not None else None
    file = found_chat(path.parent, stamp.file) if stamp else None
    if stamp is None or file is None:
        return None, None
    whole, begun = (atoms(one) for one in states(file, [stamp.at, stamp.end]))
    if before[: len(begun)] != begun:
        return None, None
    # Counted from the end, the chat is the same with the summary and without it.
    said = whole + before[len(begun) :]
    target = _target(store, session_id, path, said[: len(said) - (len(before) - kept)])
    return target, summary


def _rewind(store: Store, session_id: str, target: int) -> dict[str, Json] | None:
    """What a rewind to an event says; None if it would leave nothing behind."""
    gone = [event for event in store.walk(session_id) if event.seq > target]
    if not any(event.kind in WORK_KINDS for event in gone):
        return None
    return {"to": target, "scope": "conversation", "mode": "mine", "events_dropped": len(gone)}


def _compaction(
    store: Store, session_id: str, path: Path, before: list[Atom], now: list[Atom]
) -> dict[str, Json] | None:
    """What a summary says, if the chat begins with one now: itself, and up to where it goes."""
    if len(now) < 2 or now[0][0] != "user" or now[1] != gemini.ACKNOWLEDGED:
        return None
    kept = now[2:]
    if kept != before[len(before) - len(kept) :] or before[:2] == now[:2]:
        return None
    until = _target(store, session_id, path, before[: len(before) - len(kept)]) if kept else None
    if until is None:
        until = next((event.seq for event in store.walk(session_id)), 0)
    summary = {"role": "user", "content": now[0][1]}
    return {"summary": summary, "until": until, "format": "openai"}


def _target(store: Store, session_id: str, path: Path, now: list[Atom]) -> int | None:
    """The event after which the chat was as it is `now`; None if it never was."""
    live = {event.seq for event in store.walk(session_id)}
    events = [event for event in store.read(session_id, kinds=gemini.STAMPED) if stamp_of(event)]
    found: list[tuple[int, bool, Event]] = []
    for event, records in _at_events(events, path):
        said = atoms(records)
        if now[: len(said)] == said:
            found.append((len(said), event.seq in live, event))
    if not found:
        return None
    most = max(length for length, _, _ in found)
    same = [(is_live, event) for length, is_live, event in found if length == most]
    same = [one for one in same if one[0]] or same
    if most == len(now):
        first = same[0][1]
        # What a rewind leaves is the event before it in the log.
        return first.seq - 1 if first.kind == "rewound" else first.previous
    # Within a turn: what is more are results of the calls that began there.
    calls = [event for _, event in same if event.kind == "action"]
    only_results = all(side == "result" for side, _ in now[most:])
    return calls[-1].seq if calls and only_results else None


def _at_events(events: Sequence[Event], path: Path) -> Iterator[tuple[Event, list[Record]]]:
    """The chat before each event, from the records that are still there."""
    files: dict[str, list[Event]] = {}
    for event in events:
        stamp = stamp_of(event)
        files.setdefault(stamp.file if stamp else "", []).append(event)
    for name, some in files.items():
        file = found_chat(path.parent, name)
        stamps = [stamp.at for event in some if (stamp := stamp_of(event))]
        if file is not None:
            yield from zip(some, states(file, stamps), strict=True)


def states(path: Path, lengths: Sequence[int]) -> list[list[Record]]:
    """The messages of a chat when its record was so many bytes long, for each number."""
    chat = Chat()
    wanted = sorted(set(lengths), reverse=True)
    found: dict[int, list[Record]] = {}
    for line in read_lines(path):
        while wanted and line.end > wanted[-1]:
            found[wanted.pop()] = chat.records
        if not wanted:
            break
        chat.take(line.value or {})
    found |= dict.fromkeys(wanted, chat.records)
    return [found[length] for length in lengths]


# --- a new native session ----------------------------------------------------------------


def chats_of(cwd: str) -> Path:
    """Where Gemini CLI keeps its chats of a folder; `Unsupported` where it was never used."""
    home = home_of(AGENT) / ".gemini"
    try:
        projects = msgspec.json.decode((home / "projects.json").read_bytes())["projects"]
        name = projects[cwd]
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise KeyError(cwd)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unsupported(
            f"Gemini CLI was never used in {cwd}, so it has no place for a session there"
        ) from error
    return home / "tmp" / name / "chats"


def has_chat(cwd: str, native_id: str) -> bool:
    """Whether Gemini CLI has a session in a folder."""
    try:
        return found_chat(chats_of(cwd), native_id) is not None
    except Unsupported:
        return False


def found_chat(folder: Path, native_id: str) -> Path | None:
    """The record of a session."""
    short = native_id[:8]
    if not short.isalnum():
        return None
    for path in sorted(folder.glob(f"session-*-{short}.jsonl")):
        try:
            first = next(read_lines(path), None)
        except (BacktrailError, OSError):
            continue
        if first is not None and first.get("sessionId") == native_id:
            return path
    return None


def kept_records(
    store: Store, session_id: str, history: Sequence[Event], folder: Path
) -> list[Record]:
    """What Gemini's chat had of a history, by its records; without them, what hooks reported."""
    spoken = [e for e in history if e.kind in (*WORK_KINDS, "turn_end", "compaction")]
    stamps = [stamp for event in spoken if (stamp := stamp_of(event))]
    path = found_chat(folder, stamps[-1].file) if stamps else None
    if path is None:
        return [record for event in spoken if (record := _reported(event))]
    later = map(stamp_of, store.read(session_id, after=spoken[-1].seq, kinds=gemini.STAMPED))
    lengths = (stamp.at for stamp in later if stamp and stamp.file == stamps[-1].file)
    # How long the record was with the next event that says so; else all of it counts.
    length = next(lengths, None)
    length = path.stat().st_size if length is None else length
    (records,) = states(path, [length])
    ended = spoken[-1].kind in ("turn_end", "assistant_message", "compaction")
    return gemini.once(records if ended else _unfinished(records))


def _reported(event: Event) -> Record | None:
    """A message as a hook reported it; None for what was not said."""
    side = {"user_message": "user", "assistant_message": "gemini"}.get(event.kind)
    text = speech_of(event.data.get("message")) if side else ""
    if not text:
        return None
    return {"id": event.id, "timestamp": event.ts, "type": side, "content": [{"text": text}]}


def _unfinished(records: list[Record]) -> list[Record]:
    """A chat whose last turn has no answer yet."""
    last = max((at for at, one in enumerate(records) if gemini.is_prompt(one)), default=-1)
    return [one for at, one in enumerate(records) if at <= last or not gemini.is_answer(one)]


def native_lines(records: list[Record], native_id: str, cwd: str, ts: str) -> list[Record]:
    """The lines of a new record."""
    digest = sha256(cwd.encode("utf-8", "surrogateescape")).hexdigest()
    header: Record = {"sessionId": native_id, "projectHash": digest, "startTime": ts,
                      "lastUpdated": ts, "kind": "main"}  # fmt: skip
    return [header, *records]
