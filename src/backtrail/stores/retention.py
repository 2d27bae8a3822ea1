"""Retention: sessions that were not used for long are removed, if that is wished.

A session that a process drives or this process has open stays, and so do those tagged
`pinned` and the notes of projects. Forks of a removed session stay whole.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from .. import telemetry
from ..errors import InvalidData, NotFound, SessionBusy
from ..events import Json, SessionInfo, timestamp
from ..events import now as now_ts
from . import inprocess
from .base import Store
from .disk.fs import failed, failing, replace_file, write_all

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

    With `dry_run`, only say which these are.
    """
    before = timestamp(datetime.now(UTC) - period(retention))
    removed: list[SessionInfo] = []
    for info in store.sessions(before=before):
        if PINNED in info.tags or re.fullmatch(_NOTE, info.id) or inprocess.is_open(store, info.id):
            continue
        try:
            with store.lease(info.id):
                now = store.info(info.id)
                if now.updated_at >= before or PINNED in now.tags:
                    continue
                if not dry_run:
                    store.delete(info.id)
                    named = ("id", "title", "cwd", "updated_at", "turn_count")
                    row = now.to_dict()
                    note_gone(store, {"removed": {n: row[n] for n in named}, "after": retention})
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
    if not is_due(store, retention):
        return []
    removed = sweep(store, retention)
    path, stamps = _stamps(store)
    stamps[store.scope] = (retention, time.time())
    if path is None:
        _unfiled[store.url] = stamps
    else:
        with failing(f"write {path}"):
            replace_file(path, msgspec.json.encode(stamps))
    return removed


def is_due(store: Store, retention: str) -> bool:
    """Whether a store was not swept with this retention within the last day."""
    known = _stamps(store)[1].get(store.scope)
    return known is None or known[0] != retention or not 0 <= time.time() - known[1] < DAY


def note_gone(store: Store, row: dict[str, Json]) -> None:
    """Add a line to the log of what went, which lies beside the store's files."""
    path = log_path(store)
    if path is None:
        return
    line = msgspec.json.encode({"ts": now_ts(), "scope": store.scope, **row}) + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with failing(f"write {path}"):
        fd = os.open(path, flags, 0o600)
        try:
            write_all(fd, line)
        finally:
            os.close(fd)


def read_gone(store: Store) -> list[dict[str, Json]]:
    """What went from a store by itself, oldest first."""
    path = log_path(store)
    try:
        lines = path.read_bytes().splitlines() if path is not None else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise failed(error, f"read {path}") from error
    rows: list[dict[str, Json]] = []
    for line in lines:
        # A line that a crash cut short says nothing.
        with suppress(msgspec.MsgspecError):
            rows.append(msgspec.json.decode(line, type=dict))
    return [row for row in rows if row.get("scope") == store.scope]


def log_path(store: Store) -> Path | None:
    """The log of what went; None for a store without files."""
    stamps = _stamp_path(store)
    return None if stamps is None else stamps.with_name(f"{stamps.name.removesuffix('.json')}.log")


def _stamps(store: Store) -> tuple[Path | None, Stamps]:
    path = _stamp_path(store)
    return path, _read(path) if path is not None else _unfiled.get(store.url, {})


def _stamp_path(store: Store) -> Path | None:
    if not store.places:
        return None
    first = store.places[0]
    if first.is_dir():
        return first / "retention.json"
    return first.with_name(f"{first.name}-retention")


def _read(path: Path) -> Stamps:
    """The last sweep of each scope; none where that is not known."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stamps)
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}
    except OSError as error:
        raise failed(error, f"read {path}") from error
