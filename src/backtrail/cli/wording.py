"""Numbers, times and texts as people read them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ..exchange.shelf import short
from ..session.titles import shortened as brief
from .verbs import Usage

__all__ = ["brief", "short"]

_SPAN = re.compile(r"([0-9]+) ?(min|m|h|d|w)")
_SECONDS = {"min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_STEPS = ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600), (30 * 86400, "d", 86400))


def plural(count: int, word: str) -> str:
    """Such as "1 file", "3 files"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def things(folders: Iterable[bool]) -> str:
    """Such as "3 files and 1 folder"; each thing says whether it is a folder. Empty for none."""
    each = list(folders)
    counts = {"file": each.count(False), "folder": each.count(True)}
    return " and ".join(plural(count, word) for word, count in counts.items() if count)


def mode_change(modes: tuple[str, str]) -> str:
    """A change of mode, such as "mode 644 → 755"."""
    return f"mode {modes[0]} → {modes[1]}"


SHORT = 17
"""Columns of a terminal: a column of a table that is no wider is shown whole or not at all."""

_LEAST = 12
_GAP = 2


def fitted(widths: Sequence[int], room: int) -> list[int]:
    """How wide the columns of a table are in so many columns of a terminal; 0: left out.

    What gives way is the long ones. If that is not enough, short ones are left out from the
    right, since half of a number or a time is of no use. The first is what people type, so
    it stays.
    """
    sizes = list(widths)
    long = [at for at, size in enumerate(widths) if size > SHORT and at > 0]
    short = [at for at in range(1, len(widths)) if at not in long]

    def free() -> int:
        """What is left for the long columns."""
        kept = [size for at, size in enumerate(sizes) if size and at not in long]
        return room - sum(kept) - _GAP * (len(kept) + len(long) - 1)

    while short and free() < _LEAST * len(long):
        sizes[short.pop()] = 0
    left = free()
    for place, at in enumerate(sorted(long, key=lambda at: widths[at])):
        sizes[at] = max(1, min(widths[at], left // (len(long) - place)))
        left -= sizes[at]
    return sizes


def size(count: float) -> str:
    """Bytes, such as "1.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def lines(insertions: int, deletions: int) -> str:
    """Lines added and removed, such as "+3 −1"."""
    return f"+{insertions} −{deletions}"


def money(cost: float | None) -> str:
    """A cost in dollars; a dash where none is known."""
    return "–" if cost is None else f"${cost:,.2f}" if cost >= 0.01 or not cost else f"${cost:.4f}"


def ago(ts: str, now: datetime | None = None) -> str:
    """How long ago a time was, such as "3 min ago"; after a month, the day."""
    try:
        moment = datetime.fromisoformat(ts)
    except ValueError:
        return ts
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 5:
        return "just now" if seconds > -60 else ts[:10]
    for limit, unit, step in _STEPS:
        if seconds < limit:
            return f"{int(seconds // step)} {unit} ago"
    return ts[:10]


def moment(text: str, now: datetime | None = None) -> datetime:
    """A time that a person gives: `2026-04-26`, `2026-04-26T12:00`, or `3d`, `2h`, `10min` ago.

    Without a zone it is local time.
    """
    from datetime import timedelta

    found = _SPAN.fullmatch(text.strip())
    try:
        if found is not None:
            back = timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
            return (now or datetime.now(UTC)) - back
        when = datetime.fromisoformat(text.strip())
        return (when if when.tzinfo else when.astimezone()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Usage(
            f"`{text}` is not a time: use such as 2026-04-26, 2026-04-26T12:00, 3d or 2h"
        ) from error
