"""Retention: sessions that nobody touched for long are removed, if that is wished.

A session that somebody drives or this process has open stays, and so do those tagged
`pinned` and the notes of projects. Forks of a removed session stay whole.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from .. import telemetry
from ..errors import InvalidData, NotFound, SessionBusy
from ..events import SessionInfo, timestamp
from . import live
from .base import Store
from .files import failed, replace_file

PINNED = "pinned"
"""The tag of a session that stays."""

DAY = 24 * 3600.0

_TEXT = r"([0-9]+) ?([hdw])"
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_NOTE = r"memory-[0-9a-f]{32}"

Stamps = dict[str, tuple[str, float]]
"""For each scope the retention it was last swept with, and when."""

_unfiled: dict[str, Stamps] = {}


def period(text: str) -> timedelta:
    """The length of time that such as `12h`, `30d` or `8w` means."""
    match = re.fullmatch(_TEXT, text) if isinstance(text, str) else None
    if match is None or not int(match[1]):
        raise InvalidData(f"retention is such as '12h', '30d' or '8w', not {text!r}")
    try:
        length = timedelta(**{_UNITS[match[2]]: int(match[1])})
        _ = datetime.now(UTC) - length
    except OverflowError as error:
        raise InvalidData(f"a retention of {text} is longer than time goes back") from error
    return length


def sweep(store: Store, retention: str, *, dry_run: bool = False) -> list[SessionInfo]:
    """Remove the sessions that were last updated longer ago than that; returns them.

    With `dry_run`, only tell which these are.
    """
    before = timestamp(datetime.now(UTC) - period(retention))
    removed: list[SessionInfo] = []
    for info in store.sessions(before=before):
        if PINNED in info.tags or re.fullmatch(_NOTE, info.id) or live.is_open(store, info.id):
            continue
        try:
            with store.lease(info.id):
                now = store.info(info.id)
                if now.updated_at >= before or PINNED in now.tags:
                    continue
                if not dry_run:
                    store.delete(info.id)
                    telemetry.logger().info(
                        "retention of %s removed session %s, last updated %s",
                        *(retention, info.id, now.updated_at),
                    )
        except (NotFound, SessionBusy):
            # Removed by another, or live.
            continue
        removed.append(now)
    if not dry_run:
        ids = [info.id for info in removed]
        metadata = {"store": type(store).__name__, "retention": retention, "sessions": ids}
        telemetry.emit("store.retention", {"count": len(ids)}, metadata)
    return removed


def sweep_daily(store: Store, retention: str) -> list[SessionInfo]:
    """Sweep, unless that was done with the same retention within the last day.

    When it was is kept beside the store's files; for a store without files, in this process.
    """
    path = _stamp_path(store)
    stamps = _read(path) if path is not None else _unfiled.get(store.url, {})
    known = stamps.get(store.scope)
    if known is not None and known[0] == retention and 0 <= time.time() - known[1] < DAY:
        return []
    removed = sweep(store, retention)
    stamps[store.scope] = (retention, time.time())
    if path is None:
        _unfiled[store.url] = stamps
    else:
        try:
            replace_file(path, msgspec.json.encode(stamps))
        except OSError as error:
            raise failed(error, f"write {path}") from error
    return removed


def _stamp_path(store: Store) -> Path | None:
    if not store.places:
        return None
    first = store.places[0]
    if first.is_dir():
        return first / "retention.json"
    return first.with_name(f"{first.name}-retention")


def _read(path: Path) -> Stamps:
    """The last sweep of each scope; none where that cannot be told."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stamps)
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError:
        return {}
    except OSError as error:
        raise failed(error, f"read {path}") from error
