"""All sessions of a store: by folder, filtered, named, tagged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ..errors import InvalidData
from ..events import SessionInfo
from ..exchange.export.page import visible
from ..exchange.resume import resume_line
from ..exchange.shelf import ARCHIVED, PINNED, is_empty, short
from ..session.titles import title_of
from ..stores.base import Store
from .answers import Asked

if TYPE_CHECKING:
    from ..events import Json

SHOWN = 200
"""Sessions of one page of the list."""

_LATELY = timedelta(minutes=10)
_OVER = ("turn_end", "session_end", "checkpoint", "rewound", "undone", "redone")


def home(asked: Asked) -> Json:
    """The sessions that the filters let through, the folders they are in, and what there is."""
    store = asked.store
    infos = [i for i in store.sessions() if i.relation != "subagent" and not is_empty(store, i)]
    wanted = _Filters.of(asked)
    found = sorted(
        (info for info in infos if wanted.lets(store, info)),
        key=lambda info: PINNED not in info.tags,
    )
    after = asked.count("after", 0, 1 << 31)
    counts = Counter(info.cwd or "" for info in infos if ARCHIVED not in info.tags)
    agents = Counter(filter(None, (info.agent_name or info.model for info in infos)))
    tags = Counter(tag for info in infos for tag in info.tags)
    return {
        "store": visible(store.url),
        "read_only": asked.read_only,
        "total": len(found),
        "sessions": [session_row(store, info) for info in found[after : after + SHOWN]],
        "folders": [[visible(name), count] for name, count in counts.most_common(500)],
        "agents": [[visible(name), count] for name, count in agents.most_common(50)],
        "tags": [[visible(name), count] for name, count in tags.most_common(50)],
    }


@dataclass(frozen=True, slots=True)
class _Filters:
    """What a person chose in the list."""

    folder: str | None
    agent: str | None
    tag: str | None
    words: str
    archived: bool

    @classmethod
    def of(cls, asked: Asked) -> _Filters:
        words = (asked.text("q") or "").casefold()
        archived = asked.text("archived") == "1"
        return cls(asked.text("folder"), asked.text("agent"), asked.text("tag"), words, archived)

    def lets(self, store: Store, info: SessionInfo) -> bool:
        """Whether a session is one of those."""
        if self.folder is not None and visible(info.cwd or "") != self.folder:
            return False
        if self.agent is not None and self.agent not in (info.agent_name, info.model):
            return False
        if self.tag is not None and self.tag not in info.tags:
            return False
        if not (self.archived or self.tag == ARCHIVED) and ARCHIVED in info.tags:
            return False
        if not self.words:
            return True
        named = " ".join(filter(None, (title_of(store, info, 200), info.cwd, info.id, info.model)))
        return all(word in named.casefold() for word in self.words.split())


def session_row(store: Store, info: SessionInfo) -> dict[str, Json]:
    """A session as the list has it."""
    name = title_of(store, info, 120)
    return {
        "id": info.id,
        "short": short(info.id),
        "title": visible(name),
        "named": visible(info.title or ""),
        "cwd": visible(info.cwd or ""),
        "agent": visible(info.agent_name or ""),
        "model": visible(info.model or ""),
        "turns": info.turn_count,
        "messages": info.message_count,
        "cost": info.cost_usd,
        "tokens": sum(info.usage.get(n, 0) for n in ("input_tokens", "output_tokens")),
        "updated": info.updated_at,
        "created": info.created_at,
        "tags": [visible(tag) for tag in info.tags],
        "pinned": PINNED in info.tags,
        "archived": ARCHIVED in info.tags,
        "parent": info.parent_id if info.relation == "fork" else None,
        "fork_seq": info.fork_seq,
        "running": is_running(store, info),
        "resume": visible(resume_line(info)),
    }


def is_running(store: Store, info: SessionInfo) -> bool:
    """Whether an agent seems to be at work in a session: the last thing in it ended nothing."""
    try:
        lately = datetime.now(UTC) - datetime.fromisoformat(info.updated_at) < _LATELY
    except ValueError:
        return False
    if not lately:
        return False
    newest = next(store.read(info.id, reverse=True, limit=1), None)
    if newest is None or newest.kind in _OVER or newest.kind == "session_start":
        return False
    said = newest.data.get("message")
    calls = isinstance(said, dict) and (said.get("tool_calls") or _has_calls(said.get("content")))
    return newest.kind != "assistant_message" or bool(calls)


def _has_calls(content: Json) -> bool:
    blocks = content if isinstance(content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "tool_use" for block in blocks)


def label(asked: Asked) -> Json:
    """Change a session's title, and put tags on it or take them off."""
    changes: dict[str, Json] = {}
    if "title" in asked.body:
        changes["title"] = str(asked.given("title", str, "")).strip()[:500] or None
    tags = asked.given("tags", dict, {})
    for name, on in tags.items():
        if not name.strip() or not name.isprintable() or not isinstance(on, bool):
            raise InvalidData(f"{name!r} is no tag: use printable characters")
    if tags:
        changes["tags"] = tags
    info = asked.store.update(asked.id, **changes) if changes else asked.record()
    return session_row(asked.store, info)
