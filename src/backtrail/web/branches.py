"""Where a session went: its live way, the ways it was taken back from, and its forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import NotFound
from ..events import Event
from ..events.history import branches
from ..events.messages import speech_of
from ..events.operations import TURN
from ..exchange.export.page import one_line
from ..exchange.export.step import noted
from .answers import Asked
from .home import session_row

if TYPE_CHECKING:
    from ..events import Json, SessionInfo
    from .outline import Outline

_SHOWN = ("user_message", "rewound", "undone", "redone", "checkpoint", "compaction")
_MOST = 2_000


def tree(asked: Asked) -> Json:
    """The nodes of a session in order: prompts, points, ways back; each with what it follows."""
    store, info = asked.store, asked.store.info(asked.id)
    outline = asked.outlines.of(store, asked.id)
    # The newest, where there are too many to be drawn.
    newest = store.read(asked.id, kinds=_SHOWN, reverse=True, limit=_MOST)
    events = list(newest)[::-1]
    ends = branches(store.read(asked.id)) if outline.head <= 20_000 else []
    return {
        "session": session_row(store, info),
        "head": outline.head,
        "nodes": [_node(event, outline) for event in events],
        "branches": [branch.to_dict() for branch in ends],
        "family": _family(asked, info),
        "more": len(events) == _MOST,
    }


def _node(event: Event, outline: Outline) -> dict[str, Json]:
    said = event.kind == "user_message"
    text = speech_of(event.data.get("message")) if said else _noted(event, outline)
    row: dict[str, Json] = {
        "seq": event.seq, "kind": event.kind, "ts": event.ts, "follows": event.follows,
        "text": one_line(text, 120), "live": outline.is_live(event.seq),
        "place": outline.place(event.seq),
    }  # fmt: skip
    if event.kind == "checkpoint":
        row["label"] = one_line(str(event.data.get("label") or ""))
    for name in ("events_dropped", "scope"):
        value = event.data.get(name)
        if isinstance(value, (int, str)):
            row[name] = value
    return row


def _noted(event: Event, outline: Outline) -> str:
    if event.kind == "rewound":
        return back_to(event, outline)
    if event.kind in ("undone", "redone"):
        return "of a rewind" if event.data.get("kind") == "rewound" else "of a turn"
    return noted(event)


def back_to(event: Event, outline: Outline) -> str:
    """Where a rewind went, in words; empty if it does not say."""
    turn = event.data.get(TURN)
    if isinstance(turn, int):
        return f"of {outline.place(turn)} alone"
    target = event.data.get("target", event.data.get("to"))
    if not isinstance(target, int):
        return ""
    before = "before " if event.data.get("before") is True else ""
    scope = event.data.get("scope")
    only = f", {scope} only" if scope in ("files", "conversation") else ""
    return f"to {before}{outline.place(target)}{only}"


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
        row = session_row(asked.store, one if one.id != info.id else info)
        found.append({"depth": depth, "from": _fork_place(asked, one), **row})
        if len(found) > 500 or depth > 50:
            return
        for other in infos.values():
            if other.parent_id == one.id:
                walk(other, depth + 1)

    walk(top, 0)
    return found


def _fork_place(asked: Asked, info: SessionInfo) -> str:
    """Where a fork left its parent; empty for what is none."""
    if info.relation != "fork" or info.parent_id is None or info.fork_seq is None:
        return ""
    try:
        return asked.outlines.of(asked.store, info.parent_id).place(info.fork_seq)
    except NotFound:
        return f"event {info.fork_seq}"
