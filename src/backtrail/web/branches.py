"""Where a session went: its live way, the ways it was taken back from, and its forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..events import Event
from ..events.history import branches
from ..events.messages import speech_of
from ..exchange.export.page import one_line
from ..exchange.export.step import noted
from .answers import Asked
from .home import session_row

if TYPE_CHECKING:
    from ..events import Json, SessionInfo

_SHOWN = ("user_message", "rewound", "undone", "redone", "checkpoint", "compaction")
_MOST = 2_000


def tree(asked: Asked) -> Json:
    """The nodes of a session in order: prompts, points, ways back; each with what it follows."""
    store, info = asked.store, asked.record()
    outline = asked.outlines.of(store, asked.id)
    # The newest, where there are too many to be drawn.
    newest = store.read(asked.id, kinds=_SHOWN, reverse=True, limit=_MOST)
    events = list(newest)[::-1]
    ends = branches(store.read(asked.id)) if outline.head <= 20_000 else []
    return {
        "session": session_row(store, info),
        "head": outline.head,
        "nodes": [_node(event, live=outline.is_live(event.seq)) for event in events],
        "branches": [branch.to_dict() for branch in ends],
        "family": _family(asked, info),
        "more": len(events) == _MOST,
    }


def _node(event: Event, *, live: bool) -> dict[str, Json]:
    said = event.kind == "user_message"
    text = speech_of(event.data.get("message")) if said else noted(event)
    row: dict[str, Json] = {
        "seq": event.seq, "kind": event.kind, "ts": event.ts, "follows": event.follows,
        "text": one_line(text, 120), "live": live,
    }  # fmt: skip
    if event.kind == "checkpoint":
        row["at"] = event.data.get("at")
        row["label"] = one_line(str(event.data.get("label") or ""))
    for name in ("events_dropped", "scope"):
        value = event.data.get(name)
        if isinstance(value, (int, str)):
            row[name] = value
    return row


def _family(asked: Asked, info: SessionInfo) -> list[Json]:
    """The session that this one comes from, and those that come from it, at any depth."""
    infos = {one.id: one for one in asked.store.sessions() if one.relation == "fork"}
    known = {**infos, **{one.id: one for one in asked.store.sessions()}}
    top, passed = info, {info.id}
    while top.parent_id in known and top.parent_id not in passed:
        top = known[top.parent_id]
        passed.add(top.id)
    found: list[Json] = []

    def walk(one: SessionInfo, depth: int) -> None:
        found.append({"depth": depth, **session_row(asked.store, one)})
        if len(found) > 500 or depth > 50:
            return
        for other in infos.values():
            if other.parent_id == one.id:
                walk(other, depth + 1)

    walk(top, 0)
    return found
