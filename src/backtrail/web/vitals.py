"""How things stand: what was not captured, what hooks missed, sizes, restores that were cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import BacktrailError
from ..exchange.export.page import visible
from ..exchange.hooks.places import folder_of
from ..exchange.hooks.small_files import read_misses
from ..files.contents.garbage import default_budget
from ..files.depot import has_contents, opened
from ..files.names import shown
from ..files.restore.repairs import listed
from ..session.uncaptured import whole
from ..settings import load
from .answers import Asked
from .home import session_row

if TYPE_CHECKING:
    from ..events import Json

_MOST = 100


def health(asked: Asked) -> Json:
    """The account of the store."""
    store = asked.store
    infos = store.sessions()
    row: dict[str, Json] = {
        "store": visible(store.url),
        "sessions": len(infos),
        "turns": sum(info.turn_count for info in infos),
        "messages": sum(info.message_count for info in infos),
        "writable": all(os.access(place, os.W_OK) for place in store.places if place.exists()),
        "settings": _settings(),
        "problems": [],
    }
    for name, part in (("contents", _contents), ("calls", _calls), ("misses", _misses)):
        try:
            row[name] = part(asked)
        except (BacktrailError, OSError) as error:
            row[name] = None
            row["problems"].append(visible(f"{name}: {error}"))
    gone = [info for info in infos if info.root is not None and not os.path.isdir(info.root)]  # noqa: PTH112 - a stranger's path may be too long for `Path`
    row["gone"] = [session_row(store, info) for info in gone[:_MOST]]
    return row


def _settings() -> Json:
    found = load({})
    return [
        [name, visible(str(found.values[name].value)), visible(found.values[name].origin)]
        for name in ("budget", "retention", "collect", "hooks")
    ]


def _contents(asked: Asked) -> Json:
    if not has_contents(asked.store):
        return None
    with opened(asked.store) as depot:
        places = depot.catalogue.places()
        cut = [p for p in places if depot.catalogue.journal(p.n) is not None]
        return {
            "used": depot.blobs.used(),
            "budget": default_budget(depot.folder),
            "folders": len(places),
            "cut_short": [visible(shown(place.path)) for place in cut],
        }


def _calls(asked: Asked) -> Json:
    return [{"what": visible(str(c)), "lives": c.lives, "over": c.over}
            for c in listed(asked.store)[:_MOST]]  # fmt: skip


def _misses(asked: Asked) -> Json:
    missed = read_misses(folder_of(asked.store))
    rows = [
        {"ts": m.ts, "agent": visible(m.agent), "event": visible(m.event), "why": visible(m.why),
         "cwd": visible(m.cwd)}
        for m in missed[-_MOST:][::-1]
    ]  # fmt: skip
    return {"count": len(missed), "rows": rows}


def uncaptured(asked: Asked) -> Json:
    """What of one session was not captured."""
    rows = whole(asked.store, asked.record())
    shown_rows = [[visible(path), visible(why), size] for path, why, size in rows[:1_000]]
    return {"rows": shown_rows, "total": len(rows)}
