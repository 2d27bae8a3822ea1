"""Lists of messages, as programs hold them: OpenAI chat, Responses, Anthropic.

A file holds a JSON list, or one message a line, or the body of a request with `messages` or
`input` in it. The messages are stored as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Literal, get_args

import msgspec

from ..errors import Conflict, InvalidData
from ..events import Format, Json, NewEvent, SessionInfo, encode_data, new_id
from ..events.messages import format_of, message_event, prompt_event
from ..session.views import beyond, spoken
from ..stores.base import Store
from ..stores.opening import store_at
from .foreign_record import Imported
from .shapes import text_in

Wanted = Literal["auto", "openai", "responses", "anthropic"]
"""The format that a caller says a list is in."""

AGENT = "messages"


def parse(content: bytes) -> dict[str, Json]:
    """The list in a file, as `messages`, with what else a request says."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        value = _each_line(content, error)
    if isinstance(value, dict):
        for name in ("messages", "input", "items"):
            if isinstance(value.get(name), list):
                return {**value, "messages": value[name]}
        if "role" in value or "type" in value:
            return {"messages": [value]}
        raise InvalidData("this is no list of messages: it has neither `messages` nor `input`")
    if not isinstance(value, list):
        raise InvalidData("this is no list of messages, but a single JSON value")
    return {"messages": value}


def _each_line(content: bytes, first: Exception) -> list[Json]:
    lines = [line for line in content.split(b"\n") if line.strip()]
    found: list[Json] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if number == 1:
                raise InvalidData(f"this is not JSON: {first}") from error
            raise InvalidData(f"line {number} is not JSON: {error}") from error
    if not found:
        raise InvalidData("there is nothing in it")
    return found


def events_of(messages: list[Json], wanted: Wanted = "auto") -> list[NewEvent]:
    """The events of a list; `InvalidData` names the message that is none."""
    if wanted not in get_args(Wanted):
        raise InvalidData(f"`{wanted}` is not a format: use {', '.join(get_args(Wanted))}")
    format = _format(messages) if wanted == "auto" else wanted
    found: list[NewEvent] = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise InvalidData(f"message {number} is no object")
        try:
            event = message_event(message, format=format)
            encode_data(event.data)
        except InvalidData as error:
            raise InvalidData(f"message {number}: {error}") from error
        found.append(event)
    return found


def _format(messages: list[Json]) -> Format:
    """The format of a list: plain text is the same in all, the rest shows it."""
    given = [format_of(message) for message in messages if isinstance(message, Mapping)]
    return next((format for format in given if format != "openai"), "openai")


def import_messages(
    store: Store | str, content: bytes, *, name: str = "", wanted: Wanted = "auto",
    key: str | None = None, title: str | None = None, cwd: str | None = None,
    ts: str | None = None, dry_run: bool = False,
) -> Imported:  # fmt: skip
    """A session of a list of messages.

    The same list, or with a `key` the same list grown longer, is the same session: only what
    is new is appended. Another list under that key is a `Conflict`.
    """
    body = parse(content)
    events = events_of(body["messages"], wanted)
    if not events:
        raise InvalidData("the list has no messages")
    digest = sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:32]
    key = key or f"{AGENT}:{digest}"
    prompt = _prompt(body)
    with store_at(store, create=not dry_run) as place:
        there = place.sessions(key=key, limit=1)
        if there:
            info = there[0]
            events = _new(place, info, events, prompt)
        else:
            info = SessionInfo(
                id=new_id(), key=key, title=title, cwd=cwd, created_at=ts or "",
                model=text_in(body, "model"),
                metadata={"imported": True, "source": name} if name else {"imported": True},
            )  # fmt: skip
        lines = len(body["messages"]) if events else 0
        if not dry_run and events:
            if not there:
                place.create(info)
                begin = NewEvent("session_start", {"info": place.info(info.id).to_dict()})
                events = [begin, *([prompt_event(prompt)] if prompt else ()), *events]
            place.append(info.id, [NewEvent(e.kind, e.data, id=e.id, ts=ts) for e in events])
    appended = 0 if dry_run else len(events)
    return Imported(AGENT, digest, name, info.id, info.title, not there, appended, lines)


def _prompt(body: Mapping[str, Json]) -> str | None:
    """The system prompt that stands beside the messages in a request."""
    given = body.get("system", body.get("instructions"))
    if isinstance(given, list):
        given = "\n".join(filter(None, (text_in(block, "text") for block in given)))
    return text_in(given)


def _new(
    store: Store, info: SessionInfo, events: list[NewEvent], prompt: str | None
) -> list[NewEvent]:
    """The events that the session does not have yet."""
    known = spoken(store.pages(info.id))
    given = [event.data["message"] for event in events]
    if prompt is not None:
        known = [m for m in known if m != {"role": "system", "content": prompt}]
    new = beyond(known, given)
    if known and new is given:
        raise Conflict(
            f"session `{info.id}` has the key `{info.key}` and other messages: give another --key"
        )
    return events[len(events) - len(new) :]
