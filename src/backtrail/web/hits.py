"""Words in what was said, by subagents too, and in the paths of files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from ..errors import BacktrailError
from ..events import Hit, SessionInfo
from ..exchange.export.document import SUBAGENTS
from ..exchange.export.page import one_line, visible
from ..files.depot import has_contents, opened
from ..files.names import shown
from ..files.trees import flatten
from ..session.filepoints import last_tree
from ..stores.query import Query, in_side_logs, words_of
from .answers import Asked
from .home import session_row

if TYPE_CHECKING:
    from ..events import Json

_HITS = 60
_PATHS = 30
_SESSIONS = 100
"""Newest sessions whose subagents and files are looked at: these have no index."""

_FILES = 30_000


def search(asked: Asked) -> Json:
    """Messages that hold all the words, then files whose paths do; the sessions they are in."""
    text = asked.text("q") or ""
    query = Query(text)
    store = asked.store
    limit = asked.count("limit", _HITS, 500)
    rows = [_hit_row(hit, text) for hit in store.search(text, limit=limit)]
    newest = [info for info in store.sessions() if info.relation != "subagent"][:_SESSIONS]
    for info in newest:
        left = limit - len(rows)
        found = islice(in_side_logs(store, info.id, query, SUBAGENTS), left)
        rows += [_hit_row(hit, text, agent) for agent, hit in found]
    paths = list(islice(_paths(asked, newest, words_of(text)), _PATHS))
    known = {row["session"]: store.record(row["session"]) for row in [*rows, *paths]}
    return {
        "text": text,
        "hits": rows,
        "paths": paths,
        "sessions": {id: session_row(store, info) for id, info in known.items()},
    }


def _hit_row(hit: Hit, text: str, agent: str = "") -> dict[str, Json]:
    author = hit.event.kind.removesuffix("_message").replace("_", " ")
    return {
        "session": hit.session_id,
        "seq": hit.event.seq,
        "ts": hit.event.ts,
        "kind": "subagent" if agent else author,
        "agent": visible(agent),
        "snippet": one_line(hit.snippet, 400),
        "words": words_of(text),
    }


def _paths(asked: Asked, infos: list[SessionInfo], words: list[str]) -> Iterator[dict[str, Json]]:
    """Files as each folder's newest session last saw them, whose paths hold all the words."""
    if not has_contents(asked.store):
        return
    seen: set[str | None] = {None}
    with opened(asked.store) as depot:
        for info in infos:
            if info.root in seen:
                continue
            seen.add(info.root)
            try:
                tree = last_tree(asked.store, info.id)
                files = () if tree is None else flatten(depot.blobs.get, tree)
                for path, entry in islice(files, _FILES):
                    name = visible(shown(path))
                    if entry.kind == "file" and all(word in name.casefold() for word in words):
                        yield {"session": info.id, "path": name, "words": words}
            except BacktrailError:
                # Contents that were given up, or damaged: `verify` says so.
                continue
