"""Lines of a foreign transcript in a side log, each as it was.

The main file of a session goes into the log `transcript`, a subagent's into
`transcript/<name>`. An entry says where its line is in which file, and to which event of
the main log it belongs. So the log itself shows how far a file was read.

    {"file", "at", "end", "line" | "text" | "bytes", "event" or "behind"}

`line` is the object, where writing it again gives the very same bytes; `text` is the line
otherwise, `bytes` is base64 of what is no text. A very long line is in pieces: `part` is
[number, of how many]. `event` is the id of the event that the line is part of, `behind` of
the one it comes after.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec

from ..errors import NotFound
from ..events import Event, Json, NewEvent
from ..stores.base import Store
from .jsonlines import MOST, Line, as_line
from .shapes import number_in, text_in

TRANSCRIPT = "transcript"
"""The side log of a session's own transcript."""

_PIECE = 16 << 20


def log_of(name: str = "") -> str:
    """The log with the lines of a subagent's file, or of the session's own."""
    return f"{TRANSCRIPT}/{name}" if name else TRANSCRIPT


class Kept(msgspec.Struct, frozen=True):
    """A line as the side log has it."""

    file: str
    line: Line
    event: str | None
    behind: str | None


def entries(
    file: str, line: Line, id: str | None, ts: str | None, event: str | None, behind: str | None
) -> list[NewEvent]:
    """The entries of one line: one, or several for a very long one."""
    data: dict[str, Json] = {"file": file, "at": line.at, "end": line.end}
    if event is not None:
        data["event"] = event
    elif behind is not None:
        data["behind"] = behind
    if len(line.raw) > MOST:
        return _pieces(data, line, ts)
    return [NewEvent("line", data | _content(line), id=id or line.place_id, ts=ts)]


def _content(line: Line) -> dict[str, Json]:
    if line.value is not None and msgspec.json.encode(line.value) == line.raw:
        return {"line": line.value}
    try:
        return {"text": line.raw.decode()}
    except UnicodeDecodeError:
        return {"bytes": _coded(line.raw)}


def _coded(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def _pieces(data: dict[str, Json], line: Line, ts: str | None) -> list[NewEvent]:
    starts = range(0, len(line.raw), _PIECE)
    return [
        NewEvent(
            "line",
            # Only the last says that the line was read to its end.
            data
            | {"end": line.at if number < len(starts) else line.end}
            | {"bytes": _coded(line.raw[start : start + _PIECE])}
            | {"part": [number, len(starts)]},
            id=f"{line.place_id}-{number}",
            ts=ts,
        )
        for number, start in enumerate(starts, 1)
    ]


def kept(event: Event) -> Kept | None:
    """The line in an entry; None for a piece of one, and for what was purged."""
    data = event.data
    at, end = number_in(data, "at"), number_in(data, "end")
    if at is None or end is None or "part" in data:
        return None
    value, text, coded = data.get("line"), data.get("text"), data.get("bytes")
    if isinstance(value, dict):
        line = Line(at, end, msgspec.json.encode(value), value)
    elif isinstance(text, str):
        line = as_line(at, end, text.encode("utf-8", "surrogatepass"))
    elif isinstance(coded, str):
        try:
            line = as_line(at, end, binascii.a2b_base64(coded, strict_mode=True))
        except binascii.Error:
            return None
    else:
        return None
    return Kept(text_in(data, "file") or "", line, text_in(data, "event"), text_in(data, "behind"))


def position(store: Store, session_id: str, file: str, name: str = "") -> int:
    """Up to which byte a file was taken in."""
    for event in store.read(session_id, log=log_of(name), reverse=True):
        end = event.data.get("end")
        if event.data.get("file") == file and isinstance(end, int):
            return end
    return 0


def purged(store: Store, session_id: str, name: str = "") -> set[str]:
    """The ids of purged lines at the end of a log: they look as if they had not been read."""
    found: set[str] = set()
    for event in store.read(session_id, log=log_of(name), reverse=True):
        if not event.data.get("purged"):
            break
        found.add(event.id)
    return found


def find_line(store: Store, session_id: str, id: str) -> Kept | None:
    """The line with this id."""
    try:
        return kept(store.find(session_id, id, log=TRANSCRIPT))
    except NotFound:
        return None


def all_lines(
    store: Store, session_id: str, name: str = "", *, reverse: bool = False
) -> Iterator[Kept]:
    """Every line, in the order in which they were taken in."""
    for event in store.read(session_id, log=log_of(name), reverse=reverse):
        found = kept(event)
        if found is not None:
            yield found


def append_entries(store: Store, session_id: str, new: Iterable[NewEvent], name: str = "") -> None:
    """Append entries. A second line of the same id is kept too, under a name of its own."""
    batch = list(new)
    stored = store.append(session_id, batch, log=log_of(name))
    again = [
        NewEvent(want.kind, want.data, id=_other_name(want), ts=want.ts)
        for want, there in zip(batch, stored, strict=True)
        if _place(there.data) != _place(want.data) and not there.data.get("purged")
    ]
    if again:
        store.append(session_id, again, log=log_of(name))


def _place(data: Json) -> tuple[Json, Json]:
    return data.get("file"), data.get("at")


def _other_name(entry: NewEvent) -> str:
    content = msgspec.json.encode(entry.data, order="sorted")
    return f"line-{entry.data['at']}-{sha256(content).hexdigest()[:16]}"
