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
from ..files.differences import diff, is_text
from ..files.names import hidden, shown
from ..files.trees import Entry, Get, Present, alike
from ..session.filepoints import author_of, last_tree, point_at
from .answers import Asked
from .colour import lines
from .home import session_row
from .reading import file_row

if TYPE_CHECKING:
    from ..events import Json

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
    path = hidden(asked.query.get("dir", ""))
    with _contents(asked) as get:
        tree = _tree(asked, "at")
        base = _tree(asked, "base") if asked.text("base") is not None else tree
        now, then = _listed(get, tree, path), _listed(get, base, path)
    rows = []
    for name in sorted({*now, *then}):
        entry, earlier = now.get(name), then.get(name)
        rows.append([visible(shown(name)), *_described(entry or earlier), _status(earlier, entry)])
    # Folders first, as people look for them.
    rows.sort(key=lambda row: (row[1] != "directory", row[0]))
    return {"entries": rows[:_NAMES], "more": max(0, len(rows) - _NAMES)}


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
        entry = None if tree is None else Present(get, tree).at(hidden(path))
        if entry is None:
            raise NotFound(f"there is no {path} at that point")
        row: dict[str, Json] = {"path": visible(path), "kind": entry.kind, "size": entry.size,
                                "mode": f"{entry.mode:o}"}  # fmt: skip
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
