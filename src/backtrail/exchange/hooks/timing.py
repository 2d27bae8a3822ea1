"""Since when a call ran that a person was asked about first.

An agent's hook before a call comes before the question, and none comes with the answer. So
what the call says of its own length is counted back from its end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...events import Json

_MARGIN = 0.5
"""Seconds that an agent may need from a call's end to our hook; nobody saves and answers in it."""

_BRIEF = 1.0
"""Seconds that a call counts as running where nothing says how long it did."""

_TAIL = 256 * 1024


def ran_from(event: Mapping[str, Json], transcript: Path | None, now: float) -> float:
    """When a call began to run, given the event of its end, which came just `now`."""
    length = event.get("duration_ms")
    if isinstance(length, (int, float)) and not isinstance(length, bool) and length >= 0:
        return now - length / 1000 - _MARGIN
    call = event.get("tool_use_id")
    found = _in_rollout(transcript, call) if transcript and isinstance(call, str) else None
    return found - _MARGIN if found is not None else now - _BRIEF


def _in_rollout(path: Path, call: str) -> float | None:
    """When a command began, as Codex notes it in its session's file when it is over."""
    from .follower import tail

    needle = json.dumps(call).encode()
    for line in reversed(tail(path, _TAIL).split(b"\n")):
        if needle not in line or b"item_completed" not in line:
            continue
        try:
            payload = json.loads(line)["payload"]
            length = payload["item"]["duration"]
            if payload["item"]["id"] == call:
                seconds = length["secs"] + length["nanos"] / 1e9
                return float(payload["completed_at_ms"] / 1000 - seconds)
        except (ValueError, KeyError, TypeError):
            continue
    return None
