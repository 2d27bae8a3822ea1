"""What changed in the files: by a turn, between points, in a session, between two sessions."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..errors import NotFound
from ..events.history import root_of
from ..exchange.export.document import Net, Reader
from ..exchange.export.page import visible
from ..exchange.export.step import step_of
from ..files.depot import has_contents, opened
from ..files.differences import FileDiff, diff
from ..session.filepoints import last_tree, left_elsewhere, point_at
from .answers import Asked
from .colour import diff_rows
from .windows import check_seq, file_row, turn_events

if TYPE_CHECKING:
    from ..events import Json

ROWS = 3_000
"""Lines of one file's diff that a page gets; more is asked for."""


def changed(asked: Asked) -> Json:
    """The files that differ, without their lines; with `path`, the lines of that one."""
    found = _wanted(asked)
    path = asked.text("path")
    if path is None:
        return {
            "files": [file_row(file) for file in found.files],
            "perhaps": {visible(name): _by(whose) for name, whose in found.perhaps.items()},
            "plus": sum(file.insertions for file in found.files),
            "minus": sum(file.deletions for file in found.files),
            "places": [asked.place(asked.number(name)) for name in ("event", "from", "to")],
        }
    file = next((one for one in found.files if visible(one.path) == path), None)
    if file is None:
        raise NotFound(f"`{path}` does not differ there")
    rows = diff_rows(file.path, file.text)
    first = asked.count("skip", 0, 1 << 31)
    return {
        "file": file_row(file), "modes": file.modes,
        "rows": rows[first : first + ROWS], "total": len(rows),
    }  # fmt: skip


def _by(whose: list[str] | None) -> str:
    return "a person" if whose is None else "another session"


def _wanted(asked: Asked) -> Net:
    """What differs: between two sessions, in a turn, from one point to another or to the last."""
    other = asked.text("other")
    if other is not None:
        return Net(_between_sessions(asked, asked.id, other))
    if asked.text("turn") is not None:
        with Reader(asked.store, asked.record()) as reader:
            return reader.net(turn_events(asked, check_seq(asked, "turn")))
    if asked.text("event") is not None:
        return Net(_of_event(asked, check_seq(asked, "event")))
    return Net(_between(asked, asked.number("from", 0) or 0, asked.number("to")))


def _of_event(asked: Asked, seq: int) -> list[FileDiff]:
    """What one event did."""
    event = next(asked.store.read(asked.id, after=seq - 1, until=seq), None)
    if event is None:
        raise NotFound(f"session `{asked.id}` has no event {seq}")
    with Reader(asked.store, asked.record()) as reader:
        return list(step_of(event, reader.files(event)).files)


def _between(asked: Asked, first: int, last: int | None) -> list[FileDiff]:
    """What leads from the files at one event to those at another, or to the last known."""
    store = asked.store
    if not has_contents(store):
        return []
    before = point_at(store, asked.id, first)
    after = last_tree(store, asked.id) if last is None else point_at(store, asked.id, last).tree
    if before.tree is None or after is None:
        return []
    with opened(store) as depot:
        get = depot.blobs.get
        left = frozenset[bytes]()
        if last is not None:
            event = next(store.read(asked.id, after=last - 1, until=last), None)
            if event is not None and root_of(event) not in ("", before.root):
                left = left_elsewhere(get, before.tree, after)
        return diff(get, before.tree, after, None, left).files


def _between_sessions(asked: Asked, one: str, other: str) -> list[FileDiff]:
    """What leads from the last files of one session to those of another."""
    store = asked.store
    store.record(other)
    trees = [last_tree(store, one), last_tree(store, other)]
    with ExitStack() as stack:
        if None in trees or not has_contents(store):
            raise NotFound("of one of these sessions no files are known")
        depot = stack.enter_context(opened(store))
        return diff(depot.blobs.get, trees[0], trees[1]).files
