"""Tables in Markdown, and the results section of docs/performance.md."""

from __future__ import annotations

import math
import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from .environments import ROOT
from .goals import Verdict, judge
from .parts import Part
from .parts.base import Column
from .running import Result

DOCS = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"

Measured = list[tuple[Part, list[Result]]]


def facts(data: Path, rounds: int, versions: Sequence[str]) -> list[str]:
    """The machine and the versions, without names of hosts or places."""
    return [
        f"{datetime.now(UTC):%Y-%m-%d}, rounds: {rounds}, contenders shuffled in each",
        f"{os.cpu_count()} CPUs ({_cpu()}), {platform.system()} "
        f"{platform.release().partition('-')[0]}, "
        f"{file_system(data)} file system",
        f"{platform.python_implementation()} {platform.python_version()}, "
        f"SQLite of the standard module {sqlite3.sqlite_version}",
        *versions,
    ]


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def file_system(path: Path) -> str:
    """The type of the file system that holds a path, where it is known."""
    if sys.platform != "linux":
        return "unknown"
    best, kind = "", "unknown"
    with open("/proc/self/mounts", encoding="utf-8") as file:
        for line in file:
            place, name = line.split()[1:3]
            inside = path == Path(place) or Path(place) in path.parents
            if inside and len(place) >= len(best):
                best, kind = place, name
    return kind


def verdicts(measured: Measured) -> list[Verdict]:
    """Every goal of the parts that ran."""
    results = {result.contender.name: result for _, found in measured for result in found}
    return [judge(goal, results) for part, _ in measured for goal in part.goals]


def markdown(measured: Measured, known: Sequence[str]) -> str:
    """Everything as one text."""
    blocks = [facts_list(known)]
    judged = verdicts(measured)
    if judged:
        blocks += ["### Goals", goals_table(judged), summary(judged)]
    for part, results in measured:
        blocks += section(part, results)
    return "\n\n".join(blocks) + "\n"


def facts_list(known: Sequence[str]) -> str:
    return "\n".join(f"- {fact}" for fact in known if fact)


def section(part: Part, results: Sequence[Result]) -> list[str]:
    """One part: its title, what it means, its table."""
    blocks = [f"### {part.title}", *([part.note] if part.note else []), part_table(part, results)]
    absent = [f"{r.contender.name} ({r.absent})" for r in results if r.absent]
    return [*blocks, f"Absent: {', '.join(absent)}."] if absent else blocks


def summary(judged: Sequence[Verdict]) -> str:
    judged = [verdict for verdict in judged if verdict.goal.binding]
    passed = sum(verdict.passed is True for verdict in judged)
    missing = sum(verdict.passed is None for verdict in judged)
    text = f"{passed} of {len(judged)} goals hold"
    return f"{text}, {missing} have no figure." if missing else f"{text}."


_UNITS = (
    {"p50": "µs", "ms": "ms", "mb": "MB", "rate": "/s", "growth": ""}
    | dict.fromkeys(("first", "again", "changed", "back", "before", "after", "over"), "ms")
    | {"stored": "MB", "memory": "MB", "per_mb": "ms/MB", "each": "", "ratio": ""}
    | {"times": "", "share": "", "late": "ms", "late_locked": "ms"}
    | dict.fromkeys(("at_3", "copy", "few", "many"), "ms")
)


def goals_table(judged: Sequence[Verdict]) -> str:
    rows = []
    for verdict in judged:
        goal = verdict.goal
        unit = _UNITS[goal.metric]
        bound = f"≤ {_ratio(goal.at_most)}" if goal.at_most else ""
        if goal.at_least is not None:
            bound = f"≥ {_ratio(goal.at_least)}"
        other = _figure(verdict.other, unit)
        rows.append(
            [
                goal.row,
                goal.ours,
                _figure(verdict.ours, unit),
                f"{verdict.best} {other}".strip() or _named(goal.against),
                "" if verdict.ratio is None else _ratio(verdict.ratio),
                bound,
                verdict.word,
            ]
        )
    return table(["row", "Backtrail", "figure", "against", "ratio", "goal", ""], rows)


def _named(against: Sequence[str]) -> str:
    if len(against) > 1:
        return f"the best of {len(against)}"
    return against[0] if against else "itself"


def part_table(part: Part, results: Sequence[Result]) -> str:
    order = {"ours": 0, "peer": 1, "limit": 2}
    first = part.columns[1] if part.columns[0].metric == "n" else part.columns[0]
    sign = -1 if first.metric == "rate" else 1

    def key(result: Result) -> tuple[int, float]:
        value = result.median(first.metric)
        return order[result.contender.kind], math.inf if value is None else sign * value

    survives = any(result.contender.survives for result in results)
    header = ["", "kind", *(column.title for column in part.columns)]
    rows = []
    for result in sorted(results, key=key):
        contender = result.contender
        cells = [_cell(result, column) for column in part.columns]
        if not result.rounds:
            cells[0] = "failed" if result.failed else "absent"
        row = [contender.name, contender.kind, *cells]
        rows.append([*row, contender.survives] if survives else row)
    return table([*header, "an acknowledged append survives"] if survives else header, rows)


def _cell(result: Result, column: Column) -> str:
    value = result.median(column.metric)
    if value is None:
        return ""
    values = result.values(column.metric)
    text = number(value, column.digits)
    if not column.span or len(values) < 2:
        return text
    return f"{text} ({number(min(values), column.digits)}–{number(max(values), column.digits)})"


def number(value: float, digits: int = 3) -> str:
    """Three digits that matter, thousands grouped; 0 digits: a whole number."""
    if digits == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 5)}f}"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{number(value)}{unit}" if unit == "/s" else f"{number(value)} {unit}".strip()


def _ratio(value: float) -> str:
    """A ratio as people say it: 0.05 is 1/20."""
    if 0 < value < 0.3:
        return f"1/{_short(1 / value)}"
    return f"{_short(value)}×"


def _short(value: float) -> str:
    """Three digits at most, without zeros at the end."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up in a terminal too."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


_SHOWN = ("growth", "stores")
"""Parts whose tables are in the docs; of the others the goals say it."""


def write_docs(measured: Measured, known: Sequence[str]) -> None:
    """Put all goals, and how costs grow, between the markers."""
    judged = verdicts(measured)
    blocks = [facts_list(known), "### Goals", goals_table(judged), summary(judged)]
    for part, results in measured:
        if part.name in _SHOWN:
            blocks += section(part, results)
    text = "\n\n".join(blocks) + "\n"
    page = DOCS.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCS.name} has no markers {BEGIN} and {END}")
    DOCS.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
