"""The last sign of life of a call that nobody ended: what changed later is perhaps not its own."""

from __future__ import annotations

import json
import os
from datetime import datetime
from typing import TYPE_CHECKING

from ...errors import BacktrailError

if TYPE_CHECKING:
    from ...events import Json
    from ...stores.base import Store
    from .brackets import Bracket

GRACE = 1.0
"""Seconds after its last sign of life in which a change is still a call's."""

_TAIL = 256 * 1024
_STOPPED = b"[Request interrupted by user"


def stopped_at(call: Bracket, store: Store) -> float | None:
    """When a person stopped the agent in a call, as Claude Code's transcript has it.

    No hook tells of it. A subagent goes on when its parent is stopped, or has a transcript of
    its own that says that it was, too.
    """
    if call.program != "claude-code":
        return None
    try:
        native = store.info(call.owner).metadata.get("native")
    except BacktrailError:
        return None
    path = native.get("path") if isinstance(native, dict) else None
    if not isinstance(path, str) or "\0" in path + call.agent or "/" in call.agent:
        return None
    if call.agent:
        path = f"{path.removesuffix('.jsonl')}/subagents/agent-{call.agent}.jsonl"
    for line in reversed(_tail(path).split(b"\n")):
        at = _time_of(line) if _STOPPED in line else None
        if at is not None:
            return at if at > call.since else None
    return None


def _time_of(line: bytes) -> float | None:
    """When a line was written, if it says that a person stopped the agent."""
    try:
        value = json.loads(line)
        if value["type"] != "user" or not _says_so(value["message"]["content"]):
            return None
        return datetime.fromisoformat(value["timestamp"]).timestamp()
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _says_so(content: Json) -> bool:
    blocks = [{"text": content}] if isinstance(content, str) else content
    start = _STOPPED.decode()
    return any(str(block.get("text", "")).startswith(start) for block in blocks)


def _tail(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, _TAIL, max(0, size - _TAIL))
    except OSError:
        return b""
    finally:
        os.close(fd)


def touched_at(path: bytes) -> float:
    """When a path last changed; of one that is gone, when the nearest folder there did."""
    while path:
        try:
            return os.lstat(path).st_ctime
        except (FileNotFoundError, NotADirectoryError):
            path = path.rpartition(b"/")[0]
        except OSError:
            break
    return 0.0
