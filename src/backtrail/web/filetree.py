"""The files of a session at any moment: folders, contents, and the versions of one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import Damaged, NotFound
from ..events import Event, SessionInfo
from ..events.messages import speech_of
from ..exchange.export.page import one_line, visible
from ..files.changes.effects import changes_of
from ..files.depot import has_contents, opened
from ..files.differences import diff
from ..files.names import hidden, shown
from ..files.patches import is_text
from ..files.trees import Entry, Get, Present, alike
from ..session.filepoints import author_of, last_tree, point_at
from ..session.parts import Parts
from ..session.session import Session
from .answers import Asked
from .colour import lines
from .home import session_row
from .windows import file_row

if TYPE_CHECKING:
    from ..events import Json
    from ..files.changes.blame import BlameLine

LARGEST = 2_000_000
"""Bytes of a file that is shown."""

_NAMES = 2_000
_VERSIONS = 300


@contextmanager
def _contents(asked: Asked) -> Iterator[Get]:
    if not has_contents(asked.store):
        raise NotFound(f"no files of session `{asked.id}` were captured")
    with opened(asked.store) as depot:
        yield depot.blobs.get


def _tree(asked: Asked, name: str) -> bytes | None:
    """The tree at a point that the query names; without one, the last that is known."""
    seq = asked.number(name)
    if seq is None:
        return last_tree(asked.store, asked.id)
    return point_at(asked.store, asked.id, seq).tree


def folder(asked: Asked) -> Json:
    """What is in a folder at a point, and what of it differs from an earlier point."""
    with _contents(asked) as get:
        tree = _tree(asked, "at")
        path = _real(get, tree, asked.query.get("dir", ""))
        base = _tree(asked, "base") if asked.text("base") is not None else tree
        now, then = _listed(get, tree, path), _listed(get, base, path)
    rows = []
    for name in sorted({*now, *then}):
        entry, earlier = now.get(name), then.get(name)
        rows.append([visible(shown(name)), *_described(entry or earlier), _status(earlier, entry)])
    # Folders first, as people look for them.
    rows.sort(key=lambda row: (row[1] != "directory", row[0]))
    place = asked.place(asked.number("at"))
    return {"entries": rows[:_NAMES], "more": max(0, len(rows) - _NAMES), "place": place}


def _real(get: Get, tree: bytes | None, path: str) -> bytes:
    """The path that a page names by what it was shown."""
    plain = hidden(path)
    there = None if tree is None else Present(get, tree)
    if tree is None or there is None or not path or there.at(plain) is not None:
        return plain
    found = b""
    for part in path.split("/"):
        entry = there.at(found) if found else Entry("directory", 0, 0, tree)
        names = there.names(entry) if entry is not None and entry.kind == "directory" else []
        name = next((name for name in names if visible(shown(name)) == part), None)
        if name is None:
            return plain
        found = found + b"/" + name if found else name
    return found


def _listed(get: Get, tree: bytes | None, path: bytes) -> dict[bytes, Entry]:
    if tree is None:
        return {}
    there = Present(get, tree)
    entry = there.at(path) if path else Entry("directory", 0, 0, tree)
    if entry is None or entry.kind != "directory":
        return {}
    found = {}
    for name in there.names(entry):
        below = there.at(path + b"/" + name if path else name)
        if below is not None:
            found[name] = below
    return found


def _described(entry: Entry | None) -> tuple[str, int]:
    return ("", 0) if entry is None else (entry.kind, entry.size)


def _status(before: Entry | None, after: Entry | None) -> str:
    """A for what came, D for what went, M for what changed, also in a folder; else empty."""
    if before is None:
        return "A"
    if after is None:
        return "D"
    same = alike(before, after) and (before.kind != "directory" or before.value == after.value)
    return "" if same else "M"


def content(asked: Asked) -> Json:
    """A file at a point, line by line in the colours of its language."""
    path = asked.text("path") or ""
    with _contents(asked) as get:
        tree = _tree(asked, "at")
        entry = None if tree is None else Present(get, tree).at(_real(get, tree, path))
        if entry is None:
            raise NotFound(f"there is no {path} at that point")
        row: dict[str, Json] = {
            "path": visible(path), "kind": entry.kind, "size": entry.size,
            "mode": f"{entry.mode:o}", "place": asked.place(asked.number("at")),
        }  # fmt: skip
        if entry.kind == "link":
            return row | {"link": visible(shown(entry.value))}
        if entry.kind != "file":
            return row | {"why": "a folder" if entry.kind == "directory" else "not captured"}
        try:
            data = get(entry.value)
        except (NotFound, Damaged) as error:
            return row | {"why": str(error)}
    if len(data) > LARGEST:
        return row | {"why": "too large to be shown"}
    if not is_text(data):
        return row | {"why": "not text"}
    text = data.decode("utf-8", "backslashreplace")
    return row | {"lines": lines(path, text.removesuffix("\n"))}


def blame(asked: Asked) -> Json:
    """The author of each line of a file at a point, with the prompt that it came of."""
    path = asked.text("path") or ""
    with Session(Parts(asked.store, asked.record().id, {"files": True})) as session:
        found = session.blame(hidden(path).decode("utf-8", "surrogateescape"), asked.number("at"))
    said: dict[tuple[str, int], str] = {}
    rows = []
    for line in found:
        row: list[Json] = [line.author, line.session_id, line.event, _label(line), ""]
        if line.session_id is not None and line.event is not None:
            key = line.session_id, line.event
            if key not in said:
                said[key] = _prompt_of(asked, *key)
            row[4] = said[key]
        rows.append(row)
    return {"lines": rows}


def _label(line: BlameLine) -> str:
    if line.session_id is None:
        return line.author
    turn = f"prompt {line.turn}" if line.turn is not None else f"event {line.event}"
    label = " · ".join(filter(None, (turn, one_line(line.tool or "", 40))))
    return label if line.author == "agent" else f"{line.author}: {label}"


def _prompt_of(asked: Asked, session_id: str, event: int) -> str:
    """What was said that a call came of."""
    said = asked.store.read(session_id, until=event, reverse=True, kinds=("user_message",), limit=1)
    prompt = next(said, None)
    return "" if prompt is None else one_line(speech_of(prompt.data.get("message")), 160)


def versions(asked: Asked) -> Json:
    """Each change of a file by the sessions of its folder, newest first, and its author."""
    path = asked.text("path") or ""
    info = asked.record()
    found: list[dict[str, Json]] = []
    with _contents(asked) as get:
        for other in asked.store.sessions(cwd=info.root) if info.root else [info]:
            if other.root == info.root and other.relation != "subagent":
                found += _touches(asked, other, get, path)
    found.sort(key=lambda row: row["ts"], reverse=True)
    return {"versions": found[:_VERSIONS], "more": max(0, len(found) - _VERSIONS)}


def _touches(asked: Asked, info: SessionInfo, get: Get, path: str) -> Iterator[dict[str, Json]]:
    prompt: Event | None = None
    name = session_row(asked.store, info)["title"]
    for event in asked.store.read(info.id, after=info.fork_seq or 0):
        if event.kind == "user_message":
            prompt = event
        files = event.data.get("files")
        if not isinstance(files, dict) or "after" not in files:
            continue
        for change in changes_of(event.seq, files):
            if hidden(path) in change.foreign:
                continue
            try:
                differing = diff(get, change.before, change.after, [hidden(path)]).files
            except NotFound:
                continue
            for file in differing:
                said = "" if prompt is None else speech_of(prompt.data.get("message"))
                yield {
                    "session": info.id, "title": name, "seq": event.seq, "ts": event.ts,
                    "by": one_line(author_of(event)), "prompt": one_line(said, 100),
                    "turn": prompt.seq if prompt else 0, "file": file_row(file),
                    "gone": file.status == "deleted",
                }  # fmt: skip
