"""The record that Gemini CLI keeps of a chat: one line for each change of it.

A line has a message, which takes the place of an earlier one with its id, or says that a message
and all behind it are gone (`$rewindTo`), or sets fields (`$set`), among them all messages. So the
file up to any byte is the chat as it was then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..._startup.frozen import NamedTuple
from ...events import Event, Json, NewEvent
from ...stores.base import Store
from ..shapes import inner, list_in, number_in, object_in, text_in

Record = dict[str, Json]
"""A message as Gemini CLI writes it."""

Atom = tuple[str, str]
"""Something that the model is sent: words of one side, or the result of a call by its id."""

BACK = (b'"$rewindTo"', b'"$set":{"messages"')
"""What a line has by which the chat may have gone back."""

ACKNOWLEDGED: Atom = ("gemini", "Got it. Thanks for the additional context!")
"""What Gemini CLI puts behind the summary that a chat goes on with."""

_CONTEXT = "<session_context>"

STAMPED = ("user_message", "action", "rewound", "compaction")
"""The kinds of events that say how long the record was."""


class Stamp(NamedTuple):
    """How long a record was with an event: `at` before it, `end` when it was looked at."""

    file: str
    at: int
    end: int


def stamp_of(event: Event) -> Stamp | None:
    """What an event says of Gemini's record; None if nothing."""
    source = event.data.get("source")
    file, at = text_in(source, "file"), number_in(source, "at")
    if file is None or at is None:
        return None
    return Stamp(file, at, number_in(source, "end") or at)


def source(native_id: str, chat: Path | None) -> dict[str, Json]:
    """What an event says of the record; nothing where there is none."""
    try:
        size = os.stat(chat).st_size if chat is not None else 0  # noqa: PTH116 - a hook's path
    except OSError:
        return {}
    return {"source": {"file": native_id, "at": size}} if size else {}


def turns_since_stamp(
    store: Store, session_id: str, native_id: str, chat: Path | None
) -> Iterator[NewEvent]:
    """The rewinds and summaries that Gemini CLI made by itself since the last event.

    Each is to be appended before the next is asked for.
    """
    last = next(store.read(session_id, kinds=STAMPED, reverse=True, limit=1), None)
    stamp = stamp_of(last) if last is not None else None
    if chat is None or stamp is None or stamp.file != native_id:
        return
    try:
        with chat.open("rb") as file:
            file.seek(stamp.end)
            new = file.read()
    except OSError:
        return
    if any(mark in new for mark in BACK):
        from .sessions import turns_of_chat

        size = stamp.end + len(new)
        yield from turns_of_chat(store, session_id, native_id, chat, stamp.end, size)


class Chat:
    """A chat as it is after some lines."""

    def __init__(self) -> None:
        self.header: dict[str, Json] = {}
        self.messages: dict[str, Record] = {}

    def take(self, line: Mapping[str, Json]) -> None:
        """Take in the next line."""
        gone, fields, id = line.get("$rewindTo"), line.get("$set"), line.get("id")
        if isinstance(gone, str):
            self._drop(gone)
        elif isinstance(id, str):
            self.messages[id] = dict(line)
        elif isinstance(fields, dict):
            messages = fields.get("messages")
            if isinstance(messages, list):
                self.messages = {
                    str(one["id"]): one for one in messages if isinstance(one, dict) and "id" in one
                }
            self.header |= {name: of for name, of in fields.items() if name != "messages"}
        else:
            self.header |= line

    def _drop(self, id: str) -> None:
        """Drop a message and all behind it; of an unknown one all, as Gemini CLI does."""
        names = list(self.messages)
        first = names.index(id) if id in self.messages else 0
        for name in names[first:]:
            del self.messages[name]

    @property
    def records(self) -> list[Record]:
        """The messages of the two sides, in order."""
        return [one for one in self.messages.values() if one.get("type") in ("user", "gemini")]


def atoms(records: Iterable[Record]) -> list[Atom]:
    """What is said, however it is cut into messages and parts, and which calls have results."""
    found: list[Atom] = []
    known: set[Atom] = set()
    for record in records:
        side = str(record.get("type"))
        for text in _texts(record):
            if found and found[-1][0] == side:
                found[-1] = (side, found[-1][1] + text)
            else:
                found.append((side, text))
        for result in results(record):
            atom = ("result", result)
            if atom not in known:
                known.add(atom)
                found.append(atom)
    return found


def results(record: Record) -> list[str]:
    """The ids of the calls whose results a message has."""
    answered = [object_in(part, "functionResponse") for part in _parts(record.get("content"))]
    calls = [call for call in list_in(record, "toolCalls") if inner(call, "result")]
    return [str(one.get("id")) for one in (*filter(None, answered), *calls)]


def is_prompt(record: Record) -> bool:
    """Whether a person says something."""
    return record.get("type") == "user" and bool("".join(_texts(record)).strip())


def is_answer(record: Record) -> bool:
    """Whether the model says something and asks for no call: with that a turn is over."""
    calls = record.get("toolCalls")
    asks = calls or any("functionCall" in part for part in _parts(record.get("content")))
    return record.get("type") == "gemini" and not asks


def once(records: Iterable[Record]) -> list[Record]:
    """Messages for a new chat: calls that have no result and messages without words are left out.

    Results stand with their calls and again as messages. Gemini CLI takes both for a chat that it
    resumes, and the model would be sent each result twice.
    """
    records = list(records)
    done = {id for record in records for id in results(record)}
    kept: list[Record] = []
    known: set[str] = set()
    for record in records:
        answered = results(record)
        if record.get("type") == "user" and not _texts(record) and known.issuperset(answered):
            continue
        known.update(answered)
        record = _with_results(record, done)
        if _texts(record) or answered or record.get("toolCalls"):
            kept.append(record)
    return kept


def _with_results(record: Record, done: set[str]) -> Record:
    """A message without the calls that have no result."""
    calls, content = record.get("toolCalls"), record.get("content")
    if isinstance(calls, list):
        found = [one for one in calls if isinstance(one, dict) and str(one.get("id")) in done]
        record = {**record, "toolCalls": found}
    if isinstance(content, list):
        asked = [(part, object_in(part, "functionCall")) for part in content]
        kept = [part for part, call in asked if not call or str(call.get("id")) in done]
        record = {**record, "content": kept}
    return record


def _texts(record: Record) -> list[str]:
    parts = (part for part in _parts(record.get("content")) if not part.get("thought"))
    texts = (text_in(part, "text") for part in parts)
    return [text for text in texts if text and not text.startswith(_CONTEXT)]


def _parts(content: Json) -> list[dict[str, Json]]:
    if isinstance(content, str):
        return [{"text": content}]
    parts = content if isinstance(content, list) else [content]
    return [{"text": one} if isinstance(one, str) else one
            for one in parts if isinstance(one, (str, dict))]  # fmt: skip
