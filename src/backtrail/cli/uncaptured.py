"""What is not captured, as every verb shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..files.names import one_line
from ..files.trees import MOVED_FROM
from ..session.uncaptured import Row, row_dict
from .output import Output
from .wording import brief, plural, size

if TYPE_CHECKING:
    from ..events import Json

SHOWN = 3
"""Rows that people see; the rest is counted."""


def rows_json(rows: Sequence[Row]) -> list[Json]:
    """The rows as `not_captured` in JSON."""
    return [row_dict(row) for row in rows]


def told(row: Row) -> str:
    """A row on a line."""
    path, reason, taken = row
    name = brief(one_line(path), 200)
    return f"{name}  {one_line(reason)}{f', {size(taken)}' if taken else ''}"


def print_rows(out: Output, rows: Sequence[Row], verb: str) -> None:
    """How many there are, and the first of them; `verb` with --json has all."""
    if not rows:
        return
    out.line()
    # What is not where it first was, a rewind moves back.
    moved = any(MOVED_FROM.decode() in reason for _, reason, _ in rows)
    words = "Not captured" if moved else "Not captured, so never touched"
    out.line(f"{words}: {plural(len(rows), 'path')}", "yellow")
    for row in rows[:SHOWN]:
        out.line(f"  {told(row)}", "dim")
    if len(rows) > SHOWN:
        out.line(f"  … {len(rows) - SHOWN} more: `backtrail {verb} --json` has all", "dim")
